"""cuDNN's attention, for the first tokens of a text on a GPU; elsewhere none, and plain blocks run.

On a GPU many small blocks are slow, and cuDNN's kernel never writes scores out. It knows 16-bit
numbers, windows and texts of different lengths, and neither soft caps nor biases. Letters: B rows,
T new tokens, N query heads, K key/value heads, H head width.
"""

from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxkv import ops

# What runs it; "xla", which knows the same arguments, in tests.
IMPLEMENTATION = "cudnn"
_DTYPES = (jnp.bfloat16, jnp.float16)


def attend_fresh(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K _"],
    *,
    valid_BT: Bool[Array, "B T"],
    rule: ops.Rule,
) -> Float[Array, "B T N _"] | None:
    """Return attention of T first tokens to themselves; None where the kernel cannot be had.

    Args:
        q_BTNH: Queries.
        k_BTKH: Keys.
        v_BTKH: Values.
        valid_BT: Which tokens are real, from the left; the others' outputs mean nothing.
        rule: Scale and window, which the kernel takes, and what it does not know.
    """
    if jax.default_backend() != "gpu" or q_BTNH.dtype not in _DTYPES:
        return None
    if not rule.causal or rule.soft_cap is not None or k_BTKH.shape != v_BTKH.shape:
        return None
    width, kv_heads = k_BTKH.shape[-1], k_BTKH.shape[2]
    groups = q_BTNH.shape[2] // kv_heads
    if not _is_there(width, groups, q_BTNH.dtype, rule.window is not None):
        return None
    count_B = jnp.sum(valid_BT, axis=1, dtype=jnp.int32)
    return _attend(q_BTNH, k_BTKH, v_BTKH, count_B, rule=rule)


def _attend(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, count_B: Array, *, rule: ops.Rule):
    return jax.nn.dot_product_attention(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        scale=rule.scale,
        is_causal=True,
        query_seq_lengths=count_B,
        key_value_seq_lengths=count_B,
        local_window_size=None if rule.window is None else (rule.window - 1, 0),
        implementation=IMPLEMENTATION,
    )


@cache
def _is_there(width: int, groups: int, dtype: jnp.dtype, windowed: bool) -> bool:
    """Return whether this device compiles the kernel for such heads: the one way to know."""
    rule = ops.Rule(scale=1.0, window=8 if windowed else None)
    kv = jax.ShapeDtypeStruct((1, 64, 1, width), dtype)
    q = jax.ShapeDtypeStruct((1, 64, groups, width), dtype)
    count = jax.ShapeDtypeStruct((1,), jnp.int32)
    try:
        jax.jit(lambda *given: _attend(*given, rule=rule)).lower(q, kv, kv, count).compile()
    except Exception:
        # Of many kinds, by version: no cuDNN, too old a one or a device, a head width it lacks.
        return False
    return True
