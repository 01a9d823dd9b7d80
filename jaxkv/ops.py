"""The decoder's formulas, one function each, on arrays alone.

Letters: B rows, T new tokens, S slots, D width, N query heads, K key/value heads, G = N/K, H head
width, R rotary pairs, F feed-forward width, V vocabulary; X = B*K, the rank-3 caches' first axis.
Sources: layer norm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), RoPE (Su et al. 2021,
half-split pairs), GLU variants (Shazeer 2020), grouped queries (Ainslie et al. 2023), exact GELU
(Hendrycks and Gimpel 2016), soft caps (Gemma 2 report 2024, section 2).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv.rope_scaling import amplitude, scale_frequencies
from jaxkv.spec.config import Rope

QUERY_BLOCK = 128


@dataclass(frozen=True)
class Rule:
    """How scores become weights: static, hashable, the same for every step of an attention.

    Attributes:
        scale: Factor on the scores before the soft cap.
        window: A query sees itself and the window - 1 tokens before it; None sees all before it.
        soft_cap: c * tanh(score / c) before the mask; None is off.
        causal: False for cross-attention, where every valid key is seen.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    causal: bool = True


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype for sums and angles: at least float32, float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


def rms_norm(
    x_BTD: Float[Array, "*B D"], weight_D: Float[Array, " D"], *, eps: float, plus_one: bool = False
) -> Float[Array, "*B D"]:
    """Return x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight) with plus_one.

    The mean, and 1 + weight, in at least float32, the result in x's dtype.
    """
    x = x_BTD.astype(wide(x_BTD.dtype))
    scaled = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    gain_D = 1 + weight_D.astype(x.dtype) if plus_one else weight_D
    return (scaled * gain_D).astype(x_BTD.dtype)


def layer_norm(
    x_BTD: Float[Array, "*B D"],
    weight_D: Float[Array, " D"],
    bias_D: Float[Array, " D"],
    *,
    eps: float,
) -> Float[Array, "*B D"]:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias; moments in at least float32."""
    x = x_BTD.astype(wide(x_BTD.dtype))
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    scaled = centered * jax.lax.rsqrt(jnp.mean(centered * centered, axis=-1, keepdims=True) + eps)
    return (scaled * weight_D + bias_D).astype(x_BTD.dtype)


def rope_table(
    position_BT: Int[Array, "B T"],
    length_B: Int[Array, " B"],
    *,
    rope: Rope,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Return cos and sin of position * theta^(-i/R) for the R = rotary_dim/2 pairs.

    Computed and kept in at least float32; with a scaling, of its frequencies and times its
    amplitude. length_B counts each row's tokens, which some scalings follow.
    """
    pairs = rope.rotary_dim // 2
    frequency_R = rope.theta ** (-jnp.arange(pairs, dtype=wide(dtype)) / pairs)
    frequency_BR = scale_frequencies(frequency_R, length_B, rope=rope)
    angle_BTR = position_BT.astype(wide(dtype))[..., None] * frequency_BR[..., None, :]
    cos_BTR, sin_BTR, size = jnp.cos(angle_BTR), jnp.sin(angle_BTR), amplitude(rope)
    return (cos_BTR, sin_BTR) if size == 1.0 else (cos_BTR * size, sin_BTR * size)


def apply_rope(
    x_BTNH: Float[Array, "B T N H"],
    cos_BTR: Float[Array, "B T R"],
    sin_BTR: Float[Array, "B T R"],
    *,
    interleaved: bool = False,
) -> Float[Array, "B T N H"]:
    """Return x with channel pairs (i, i + R), or interleaved (2i, 2i + 1), turned by the table.

    Channels from 2R on pass unchanged.
    """
    pairs = cos_BTR.shape[-1]
    cos, sin = cos_BTR[:, :, None, :], sin_BTR[:, :, None, :]
    if interleaved:
        first, second = x_BTNH[..., 0 : 2 * pairs : 2], x_BTNH[..., 1 : 2 * pairs : 2]
    else:
        first, second = x_BTNH[..., :pairs], x_BTNH[..., pairs : 2 * pairs]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        turned = jnp.stack(parts, axis=-1).reshape(*first.shape[:-1], 2 * pairs)
    else:
        turned = jnp.concatenate(parts, axis=-1)
    return jnp.concatenate([turned.astype(x_BTNH.dtype), x_BTNH[..., 2 * pairs :]], axis=-1)


def is_visible(
    query_BT: Int[Array, "B T"],
    key_BS: Int[Array, "B S"],
    valid_BS: Bool[Array, "B S"],
    *,
    rule: Rule,
) -> Bool[Array, "B T S"]:
    """Return which keys each query sees, from their positions alone.

    Earlier or equal, and inside the window.
    """
    query, key = query_BT[:, :, None], key_BS[:, None, :]
    seen = jnp.broadcast_to(valid_BS[:, None, :], (*query_BT.shape, key_BS.shape[1]))
    if rule.causal:
        seen = seen & (key <= query)
    if rule.window is not None:
        seen = seen & (key > query - rule.window)
    return seen


def score(
    q_XMH: Float[Array, "X M H"], k_XHS: Float[Array, "X H S"], *, rule: Rule
) -> Float[Array, "X M S"]:
    """Return scaled, soft-capped scores in at least float32."""
    scores = jnp.einsum("XMH,XHS->XMS", q_XMH, k_XHS, preferred_element_type=wide(q_XMH.dtype))
    scores = scores * rule.scale
    return scores if rule.soft_cap is None else soft_cap(scores, cap=rule.soft_cap)


def soft_cap(x: Float[Array, "..."], *, cap: float) -> Float[Array, "..."]:
    """Return cap * tanh(x / cap), which stays within the cap; computed in at least float32."""
    return (cap * jnp.tanh(x.astype(wide(x.dtype)) / cap)).astype(x.dtype)


def softmax(
    score_XMS: Float[Array, "X M S"], visible_XMS: Bool[Array, "X M S"]
) -> Float[Array, "X M S"]:
    """Return weights over the visible keys; a query that sees none gets zeros, never NaN."""
    weight_XMS, total_XM1 = weigh(score_XMS, visible_XMS)
    return weight_XMS / total_XM1


def weigh(
    score_XMS: Float[Array, "X M S"], visible_XMS: Bool[Array, "X M S"]
) -> tuple[Float[Array, "X M S"], Float[Array, "X M 1"]]:
    """Return softmax's weights over the visible keys, the largest 1, and what divides them.

    A query that sees none gets zeros, and 1. Who multiplies values by weights divides afterwards: a
    pass over M*H numbers, not M*S.
    """
    floor = jnp.finfo(score_XMS.dtype).min
    masked_XMS = jnp.where(visible_XMS, score_XMS, floor)
    peak_XM1 = jnp.max(masked_XMS, axis=-1, keepdims=True)
    # 0 where nothing is seen: exp(floor) is 0, so that no second mask is needed.
    weight_XMS = jnp.exp(masked_XMS - jnp.where(peak_XM1 == floor, 0, peak_XM1))
    total_XM1 = jnp.sum(weight_XMS, axis=-1, keepdims=True)
    return weight_XMS, jnp.where(total_XM1 > 0, total_XM1, 1)


def group_queries(q_BTNH: Float[Array, "B T N H"], num_kv_heads: int) -> Float[Array, "X M H"]:
    """Return queries as (B*K, T*G, H): query head n reads key/value head n // G."""
    b, t, n, h = q_BTNH.shape
    q_BTKGH = q_BTNH.reshape(b, t, num_kv_heads, n // num_kv_heads, h)
    return q_BTKGH.swapaxes(1, 2).reshape(b * num_kv_heads, t * (n // num_kv_heads), h)


def ungroup(o_XMH: Float[Array, "X M H"], *, rows: int, tokens: int) -> Float[Array, "B T N H"]:
    """Return the inverse of `group_queries`."""
    x, m, h = o_XMH.shape
    kv_heads, groups = x // rows, m // tokens
    o_BKTGH = o_XMH.reshape(rows, kv_heads, tokens, groups, h)
    return o_BKTGH.swapaxes(1, 2).reshape(rows, tokens, kv_heads * groups, h)


def spread(
    visible_BTS: Bool[Array, "B T S"], *, num_kv_heads: int, groups: int
) -> Bool[Array, "X M S"]:
    """Return the mask of each row and token for all its heads, in the order of `group_queries`."""
    b, t, s = visible_BTS.shape
    wide_BKTGS = jnp.broadcast_to(visible_BTS[:, None, :, None, :], (b, num_kv_heads, t, groups, s))
    return wide_BKTGS.reshape(b * num_kv_heads, t * groups, s)


def group_bias(bias_BNTS: Float[Array, "B N T S"], *, num_kv_heads: int) -> Float[Array, "X M S"]:
    """Return a per-head addend of the scores in the order of `group_queries`."""
    b, n, t, s = bias_BNTS.shape
    bias_BKGTS = bias_BNTS.reshape(b, num_kv_heads, n // num_kv_heads, t, s)
    return bias_BKGTS.swapaxes(2, 3).reshape(b * num_kv_heads, t * (n // num_kv_heads), s)


def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x * sigmoid(x)."""
    return x * jax.nn.sigmoid(x)


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x * Phi(x) with the exact normal distribution, not the tanh approximation."""
    return x * 0.5 * (1 + jax.lax.erf(x * 2**-0.5))


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the approximation x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    inner = (2 / jnp.pi) ** 0.5 * (x + 0.044715 * x * x * x)
    return x * 0.5 * (1 + jnp.tanh(inner))


def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x where it is above 0, else 0."""
    return jnp.maximum(x, 0)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
