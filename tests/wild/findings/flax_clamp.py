"""flax: past the cache's end the write moves back over the last entry.

pins: flax==0.12.8 jax==0.10.2
"""

import jax
import jax.numpy as jnp
from flax import nnx

jax.config.update("jax_enable_x64", True)
wide = dict(dtype=jnp.float64, param_dtype=jnp.float64)
rngs = nnx.Rngs(0)
attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs, **wide)
x = 2 * jax.random.normal(jax.random.key(1), (2, 14, 16), jnp.float64)
whole = attention(x, mask=nnx.make_causal_mask(x[..., 0]))


def off(capacity):
    """Return the largest error of one token a step, relative, and the first wrong position."""
    attention.init_cache((2, capacity, 16), dtype=jnp.float64)
    out = [attention(x[:, at : at + 1], decode=True) for at in range(14)]
    error = jnp.abs(jnp.concatenate(out, 1) - whole).max((0, 2)) / jnp.abs(whole).max()
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-5), None)}"


print(f"wrong: {off(10)}; with room for all: {off(14)}")
