"""The decoder's formulas, one function each, on tensors alone.

Letters: B rows, T new tokens, S slots, D width, N query heads, K key/value heads, G = N/K, M = G*T,
H head width, R rotary pairs, F feed-forward width, V vocabulary. Sources: layer norm (Ba et al.
2016), RMSNorm (Zhang and Sennrich 2019), RoPE (Su et al. 2021, half-split pairs), GLU variants
(Shazeer 2020), grouped queries (Ainslie et al. 2023), exact GELU (Hendrycks and Gimpel 2016), soft
caps (Gemma 2 report 2024, section 2).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Rope
from torchkv.rope_scaling import amplitude, scale_frequencies

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


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums and angles: at least float32, float64 for float64."""
    return dtype if dtype == torch.float64 else torch.float32


def rms_norm(
    x_BTD: Float[Array, "*B D"], weight_D: Float[Array, " D"], *, eps: float, plus_one: bool = False
) -> Float[Array, "*B D"]:
    """Return x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight) with plus_one.

    The mean, and 1 + weight, in at least float32, the result in x's dtype.
    """
    up = wide(x_BTD.dtype)
    if plus_one:
        weight_D = weight_D.to(up) + 1
    if x_BTD.dtype == weight_D.dtype == up:
        return F.rms_norm(x_BTD, weight_D.shape, weight_D, eps)
    return F.rms_norm(x_BTD.to(up), weight_D.shape, weight_D.to(up), eps).to(x_BTD.dtype)


def layer_norm(
    x_BTD: Float[Array, "*B D"],
    weight_D: Float[Array, " D"],
    bias_D: Float[Array, " D"],
    *,
    eps: float,
) -> Float[Array, "*B D"]:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias; moments in at least float32."""
    up = wide(x_BTD.dtype)
    normed = F.layer_norm(x_BTD.to(up), weight_D.shape, weight_D.to(up), bias_D.to(up), eps)
    return normed.to(x_BTD.dtype)


def rope_table(
    position_BT: Int[Array, "B T"],
    length_B: Int[Array, " B"],
    *,
    rope: Rope,
    dtype: torch.dtype,
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Return cos and sin of position * theta^(-i/R) for the R = rotary_dim/2 pairs.

    Kept in at least float32; with a scaling, of its frequencies and times its amplitude. length_B
    counts each row's tokens, which some scalings follow.

    Angles are computed in float64 for every dtype: the table is small and made once a step.
    """
    channels, device = rope.rotary_dim, position_BT.device
    down_R = torch.arange(0, -channels, -2, dtype=torch.float64, device=device) / channels
    frequency_BR = scale_frequencies(torch.pow(rope.theta, down_R), length_B, rope=rope)
    angle_BTR = position_BT.double().unsqueeze(-1) * frequency_BR.unsqueeze(-2)
    circle_BTR = torch.polar(torch.full_like(angle_BTR, amplitude(rope)), angle_BTR)
    return circle_BTR.real.to(wide(dtype)), circle_BTR.imag.to(wide(dtype))


def apply_rope(
    x_BTNH: Float[Array, "B T N H"],
    cos_BTR: Float[Array, "B T R"],
    sin_BTR: Float[Array, "B T R"],
    *,
    interleaved: bool = False,
) -> Float[Array, "B T N H"]:
    """Return x with channel pairs (i, i + R), or interleaved (2i, 2i + 1), turned by the table.

    Channels from 2R on pass unchanged.

    A pair is a complex number, turning it a product with e^(i angle).
    """
    pairs, width = cos_BTR.shape[-1], x_BTNH.shape[-1]
    turn_BT1R = torch.complex(cos_BTR, sin_BTR).unsqueeze(2)
    if interleaved:
        turning, rest = x_BTNH.to(cos_BTR.dtype).split_with_sizes(
            (2 * pairs, width - 2 * pairs), -1
        )
        turned = torch.view_as_complex(turning.unflatten(-1, (pairs, 2)).contiguous()) * turn_BT1R
        return torch.cat((torch.view_as_real(turned).flatten(-2), rest), -1).to(x_BTNH.dtype)
    sizes = (pairs, pairs, width - 2 * pairs)
    real, imaginary, rest = x_BTNH.to(cos_BTR.dtype).split_with_sizes(sizes, -1)
    turned = torch.complex(real, imaginary) * turn_BT1R
    halves_BTNH = torch.view_as_real(turned).mT.flatten(-2)
    whole_BTNH = torch.cat((halves_BTNH, rest), -1) if width > 2 * pairs else halves_BTNH
    return whole_BTNH.to(x_BTNH.dtype)


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
    age_BTS = query_BT.unsqueeze(2) - key_BS.unsqueeze(1)
    seen_BTS = valid_BS.unsqueeze(1).expand_as(age_BTS)
    if rule.causal:
        seen_BTS = seen_BTS & (age_BTS >= 0)
    if rule.window is not None:
        seen_BTS = seen_BTS & (age_BTS < rule.window)
    return seen_BTS


def score(
    q_BKMH: Float[Array, "B K M H"], k_BKSH: Float[Array, "B K S H"], *, rule: Rule
) -> Float[Array, "B K M S"]:
    """Return scaled, soft-capped scores in at least float32."""
    up = wide(q_BKMH.dtype)
    score_BKMS = torch.matmul(q_BKMH.to(up), k_BKSH.to(up).mT) * rule.scale
    return score_BKMS if rule.soft_cap is None else soft_cap(score_BKMS, cap=rule.soft_cap)


def soft_cap(x: Float[Array, "..."], *, cap: float) -> Float[Array, "..."]:
    """Return cap * tanh(x / cap), which stays within the cap; computed in at least float32."""
    return ((x.to(wide(x.dtype)) / cap).tanh() * cap).to(x.dtype)


def softmax(
    score_BKMS: Float[Array, "B K M S"], visible_B1MS: Bool[Array, "B 1 M S"]
) -> Float[Array, "B K M S"]:
    """Return weights over the visible keys; a query that sees none gets zeros, never NaN."""
    hidden_B1MS = ~visible_B1MS
    weight_BKMS = score_BKMS.masked_fill(hidden_B1MS, float("-inf")).softmax(-1)
    return weight_BKMS.masked_fill(hidden_B1MS, 0.0)


def group_queries(q_BTNH: Float[Array, "B T N H"], num_kv_heads: int) -> Float[Array, "B K M H"]:
    """Return queries as (B, K, G*T, H).

    Token t of query head n = k * G + g stands in line g * T + t of head k.
    """
    if q_BTNH.shape[1] == 1:
        return q_BTNH.reshape(q_BTNH.shape[0], num_kv_heads, -1, q_BTNH.shape[3])
    q_BTKGH = q_BTNH.unflatten(2, (num_kv_heads, -1))
    return q_BTKGH.permute(0, 2, 3, 1, 4).flatten(2, 3)


def ungroup(o_BKMH: Float[Array, "B K M H"], *, tokens: int) -> Float[Array, "B T N H"]:
    """Return the inverse of `group_queries`."""
    if tokens == 1:
        return o_BKMH.reshape(o_BKMH.shape[0], 1, -1, o_BKMH.shape[3])
    o_BKGTH = o_BKMH.unflatten(2, (-1, tokens))
    return o_BKGTH.flatten(1, 2).transpose(1, 2)


def spread(visible_BTS: Bool[Array, "B T S"], *, groups: int) -> Bool[Array, "B 1 M S"]:
    """Return the mask of each row and token for all its heads, in the order of `group_queries`."""
    return visible_BTS.repeat(1, groups, 1).unsqueeze(1)


def group_bias(bias_BNTS: Float[Array, "B N T S"], *, num_kv_heads: int) -> Float[Array, "B K M S"]:
    """Return a per-head addend of the scores in the order of `group_queries`."""
    return bias_BNTS.unflatten(1, (num_kv_heads, -1)).flatten(2, 3)


def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x * sigmoid(x)."""
    return F.silu(x)


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x * Phi(x) with the exact normal distribution, not the tanh approximation."""
    return F.gelu(x, approximate="none")


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the approximation x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    return F.gelu(x, approximate="tanh")


def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x where it is above 0, else 0."""
    return F.relu(x)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
