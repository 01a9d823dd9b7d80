"""One block of the decoder: attention and feed-forward, each behind a norm, added to the stream.

The parameters are the nested dict of `model.Layer`, the config's `Layer` says what they mean; both
are fixed when a program is made, so that a switch costs nothing where it is off. Letters: B rows, T
new tokens, D width, N query heads, K key/value heads, H head width, F feed-forward width, E packed
outputs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import caches, ops
from jaxkv.caches import Bias, Rotate, Rule, Step
from jaxkv.experts import mix
from jaxkv.latent import attend_latent
from jaxkv.linear import linear, norm, turned
from jaxkv.spec import config as spec

Params = Mapping[str, Any]
Tap = Callable[[str, Array], Array]


def block(
    p: Params,
    x_BTD: Float[Array, "B T D"],
    sites: tuple[Any, ...],
    step: Step,
    layer: spec.Layer,
    config: spec.ModelConfig,
    rotate: Rotate | None,
    bias: Bias | None,
    drop: "Dropout",
    tap: Tap,
    *,
    absorbed: bool | None = None,
) -> tuple[Float[Array, "B T D"], tuple[Any, ...]]:
    """Return the stream after one block, and the sites with the new keys and values.

    Args:
        p: Of this layer.
        x_BTD: The stream before it.
        sites: The layer's part of the cache: its attention's, and its cross attention's.
        step: From `caches.begin`.
        layer: What the parameters mean; static.
        config: Of the model; static.
        rotate: Of this layer's rotary positions: made once for all layers that share them.
        bias: Of this layer's scores, made once for all layers.
        drop: Applied to what attention and feed-forward give.
        tap: Called with the name and value of intermediate results; what it returns goes on in
            their place.
        absorbed: The form of an attention to latents, see `latent.attend_latent`; static.
    """
    h_BTD = _before(p, "attn", x_BTD, layer, config)
    h_BTD = tap("attn_norm", h_BTD)
    a_BTD, own = _attention(
        p["attn"], h_BTD, sites[0], step, layer.attention, rotate, bias, tap, absorbed=absorbed
    )
    a_BTD = tap("attn", a_BTD)
    if layer.post_norms:
        a_BTD = norm(p["attn_post_norm"], a_BTD, config.norm)
    seen_BTD, x_BTD = x_BTD, _after(p, "attn", x_BTD + drop(a_BTD), layer, config)
    after = (own,)
    if layer.cross is not None:
        h_BTD = _before(p, "cross", x_BTD, layer, config)
        c_BTD, read = _cross(p["cross"], h_BTD, sites[1], step, layer.cross)
        c_BTD = tap("cross", c_BTD)
        x_BTD, after = _after(p, "cross", x_BTD + drop(c_BTD), layer, config), (own, read)
    h_BTD = _before(p, "mlp", seen_BTD if layer.parallel else x_BTD, layer, config)
    h_BTD = tap("mlp_norm", h_BTD)
    m_BTD = tap("mlp", _feed_forward(p["mlp"], h_BTD, layer.mlp))
    if layer.post_norms:
        m_BTD = norm(p["mlp_post_norm"], m_BTD, config.norm)
    x_BTD = _after(p, "mlp", x_BTD + drop(m_BTD), layer, config)
    return tap("resid", x_BTD), after


def rotation(
    rope: spec.Rope,
    position_BT: Int[Array, "B T"],
    length_B: Int[Array, " B"],
    *,
    dtype: jnp.dtype,
) -> Rotate:
    """Return the function that turns queries or keys by their positions.

    The step's own positions are tabled once. length_B counts each row's tokens after the step,
    which the speeds of some scalings follow.
    """
    table = partial(ops.rope_table, length_B=length_B, rope=rope, dtype=dtype)
    own = _kept(*table(position_BT))

    def rotate(x_BTNH: Array, at_BT: Array) -> Array:
        cos_BTR, sin_BTR = own if at_BT is position_BT else table(at_BT)
        return ops.apply_rope(x_BTNH, cos_BTR, sin_BTR, interleaved=rope.interleaved)

    return rotate


def _kept(
    cos_BTR: Float[Array, "B T R"], sin_BTR: Float[Array, "B T R"]
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Return the same, as halves of one array that a program computes once.

    XLA on CPUs computes them anew for every head of every layer if it can, and sees through a
    barrier alone.
    """
    both_BTR = jax.lax.optimization_barrier(jnp.concatenate([cos_BTR, sin_BTR], axis=-1))
    cos_BTR, sin_BTR = jnp.split(both_BTR, 2, axis=-1)
    return cos_BTR, sin_BTR


class Dropout:
    """Zeroes a share of a sub-layer's outputs and scales the rest; a new key for each call.

    Rate 0 does nothing.
    """

    def __init__(self, rate: float, key: Array | None):
        self.rate, self.key = rate, key

    def __call__(self, x_BTD: Array) -> Array:
        """Return x with a share of it zeroed."""
        if self.rate == 0.0 or self.key is None:
            return x_BTD
        self.key, use = jax.random.split(self.key)
        kept = jax.random.bernoulli(use, 1 - self.rate, x_BTD.shape)
        return jnp.where(kept, x_BTD / (1 - self.rate), 0)


def _before(
    p: Params, part: str, x_BTD: Array, layer: spec.Layer, config: spec.ModelConfig
) -> Array:
    """Return what a sub-layer reads of the stream."""
    return x_BTD if layer.norm_after else norm(p[f"{part}_norm"], x_BTD, config.norm)


def _after(
    p: Params, part: str, x_BTD: Array, layer: spec.Layer, config: spec.ModelConfig
) -> Array:
    """Return the stream once a sub-layer's result has been added."""
    return norm(p[f"{part}_norm"], x_BTD, config.norm) if layer.norm_after else x_BTD


def _attention(
    p: Params,
    x_BTD: Array,
    site: Any,
    step: Step,
    a: spec.Attention,
    rotate: Rotate | None,
    bias: Bias | None,
    tap: Tap,
    *,
    absorbed: bool | None,
) -> tuple[Array, Any]:
    b, t, _ = x_BTD.shape
    if a.latent is not None:
        assert rotate is not None  # `Attention` refuses a latent without rotary positions
        o_BTNH, site = attend_latent(p, x_BTD, site, step, a, rotate, tap, absorbed=absorbed)
        return linear(p["o"], o_BTNH.reshape(b, t, -1)), site
    n, k, h = a.num_heads, a.num_kv_heads, a.head_dim
    qkv_BTE = turned(p["qkv"], x_BTD)
    q_BTNH = qkv_BTE[..., : n * h].reshape(b, t, n, h)
    k_BTKH = qkv_BTE[..., n * h : (n + k) * h].reshape(b, t, k, h)
    v_BTKH = qkv_BTE[..., (n + k) * h :].reshape(b, t, k, h)
    if a.qk_norm is not None:
        q_BTNH = norm(p["q_norm"], q_BTNH, a.qk_norm)
        k_BTKH = norm(p["k_norm"], k_BTKH, a.qk_norm)
    scale = (a.score_width or h) ** -0.5
    rule = Rule(scale=scale, window=a.window, soft_cap=a.soft_cap, causal=a.causal)
    bias = None if a.relative is None else bias
    v_BTKH = tap("v", v_BTKH)
    o_BTNH, site = caches.attend(
        site, step, q_BTNH, k_BTKH, v_BTKH, rule=rule, rotate=rotate, bias=bias
    )
    return linear(p["o"], o_BTNH.reshape(b, t, n * h)), site


def _cross(p: Params, x_BTD: Array, site: Any, step: Step, a: spec.Attention) -> tuple[Array, Any]:
    b, t, _ = x_BTD.shape
    q_BTNH = linear(p["q"], x_BTD).reshape(b, t, a.num_heads, a.head_dim)
    scale = (a.score_width or a.head_dim) ** -0.5
    rule = Rule(scale=scale, soft_cap=a.soft_cap, causal=False)
    o_BTNH, site = caches.attend(site, step, q_BTNH, None, None, rule=rule)
    return linear(p["o"], o_BTNH.reshape(b, t, a.num_heads * a.head_dim)), site


def _feed_forward(p: Params, x_BTD: Array, m: spec.Mlp | spec.Experts) -> Array:
    if isinstance(m, spec.Experts):
        y_BTD = mix(p, x_BTD, m)
        return y_BTD if m.shared is None else y_BTD + _feed_forward(p["shared"], x_BTD, m.shared)
    up_BTF = linear(p["up"], x_BTD)
    act = ops.ACTIVATIONS[m.activation]
    if not m.gated:
        return turned(p["down"], act(up_BTF))
    return turned(p["down"], act(up_BTF[..., : m.width]) * up_BTF[..., m.width :])
