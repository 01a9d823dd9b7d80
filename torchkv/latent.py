"""Attention to one latent a token, from which the keys and values of all heads are made.

Two forms of one function. Expanded: keys and values of every head are made of the latents that are
read. Absorbed: the query takes the product up into itself, scores are taken with the latents, and
the product up of the values comes after the sum: nothing is made a head and key, which pays where
few queries read many keys.

Letters: B rows, T new tokens, S slots, D width, N query heads, H channels of a head, C channels of
a latent, M = B*T.
Sources: DeepSeek-V2 (2024), section 2.1; DeepSeek-V3 (2024), section 2.1.1.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec import config as spec
from torchkv import caches, ops
from torchkv.caches import Expand, Rotate, Rule, Step
from torchkv.linear import linear

Params = Mapping[str, Any]
Tap = Callable[[str, Array], Array]


def attend_latent(
    p: Params,
    x_BTD: Float[Array, "B T D"],
    site: Any,
    step: Step,
    a: spec.Attention,
    rotate: Rotate,
    tap: Tap,
    *,
    absorbed: bool | None = None,
) -> tuple[Float[Array, "B T N H"], Any]:
    """Return what each head sees, and the site with the new latents and rotary keys.

    Args:
        p: Of `model.LatentAttention`.
        x_BTD: The stream, normed.
        site: The layer's part of the cache: one key/value head, whose values are its first C
            channels.
        step: From `caches.begin`.
        a: What the parameters mean.
        rotate: Of the rotary channels alone.
        tap: Called with the name and value of intermediate results; what it returns goes on in
            their place.
        absorbed: Which form; None for the cheaper one.
    """
    latent, rope = a.latent, a.rope
    assert latent is not None  # the caller asked
    assert rope is not None  # `Attention` refuses a latent without one
    if absorbed is None:
        absorbed = is_absorbed(latent, tokens=x_BTD.shape[1], fresh=step.fresh)
    q_BTNH = project_queries(p, x_BTD, latent).unflatten(2, (a.num_heads, -1))
    c_BTC, turning_BTH = linear(p["kv_down"], x_BTD).split((latent.rank, rope.rotary_dim), -1)
    c_BTC = ops.rms_norm(c_BTC, p["kv_norm"]["weight"], eps=latent.norm_eps)
    c_BTC = tap("v", c_BTC.unsqueeze(2)).squeeze(2)
    if absorbed:
        own_BTNH, turned_BTNH = q_BTNH.split((latent.nope_width, rope.rotary_dim), -1)
        q_BTNH = torch.cat((_each_head(own_BTNH, p["k_up"]["weight"]), turned_BTNH), -1)
    out, site = caches.attend(
        site,
        step,
        q_BTNH,
        torch.cat((c_BTC, turning_BTH), -1).unsqueeze(2),
        None,
        rule=Rule(scale=scale(a), window=a.window, soft_cap=a.soft_cap),
        rotate=turn_last(rotate, rope.rotary_dim),
        expand=None if absorbed else expansion(p, latent),
    )
    return (_each_head(out, p["v_up"]["weight"].mT) if absorbed else out), site


def is_absorbed(latent: spec.Latent, *, tokens: int, fresh: bool) -> bool:
    """Return whether the absorbed form multiplies less.

    A pair of query and key costs 2C products a head in the one form (rotary channels cost the same
    in both) and nope + value in the other, which pays C * (nope + value) more for each key that it
    expands. Where only new tokens are read, absorbing costs as much as expanding them.
    """
    if fresh:
        return False
    expanded = latent.nope_width + latent.value_width
    more_a_pair = 2 * latent.rank - expanded
    return more_a_pair <= 0 or tokens < latent.rank * expanded / more_a_pair


def scale(a: spec.Attention) -> float:
    """Return the factor on the scores, with yarn's squared for all channels where it is asked for.

    (nope + rotary)^(-1/2) * m^2, m = 0.1 * mscale * ln(factor) + 1.
    """
    width = a.query_width if a.score_width is None else a.score_width
    scaling = a.rope.scaling if a.rope else None
    if not a.latent or not a.latent.mscale or not isinstance(scaling, spec.YarnScaling):
        return 1 / math.sqrt(width)
    m = 1 + a.latent.mscale * math.log(scaling.factor) / 10
    return m * m / math.sqrt(width)


def project_queries(
    p: Params, x_BTD: Float[Array, "B T D"], latent: spec.Latent
) -> Float[Array, "B T _"]:
    """Return all heads' queries side by side, from the stream or through a latent of their own."""
    if "q" in p:
        return linear(p["q"], x_BTD)
    c_BTC = linear(p["q_down"], x_BTD)
    return linear(p["q_up"], ops.rms_norm(c_BTC, p["q_norm"]["weight"], eps=latent.norm_eps))


def expansion(p: Params, latent: spec.Latent) -> Expand:
    """Return the function from latents and rotary keys, turned, to keys and values of all heads."""

    def expand(
        key_BS1C: Float[Array, "B S 1 _"],
    ) -> tuple[Float[Array, "B S N _"], Float[Array, "B S N _"]]:
        rotary = key_BS1C.shape[-1] - latent.rank
        c_BS1C, turned_BS1H = key_BS1C.split((latent.rank, rotary), -1)
        k_BSNH, v_BSNH = (
            F.linear(c_BS1C.squeeze(2), p[part]["weight"].flatten(0, 1)).unflatten(2, (-1, width))
            for part, width in (("k_up", latent.nope_width), ("v_up", latent.value_width))
        )
        return torch.cat((k_BSNH, turned_BS1H.expand(-1, -1, k_BSNH.shape[2], -1)), -1), v_BSNH

    return expand


def turn_last(rotate: Rotate, channels: int) -> Rotate:
    """Return the function that turns the last channels of each head alone."""

    def turn(x_BTNH: Float[Array, "B T N H"], at_BT: Int[Array, "B T"]) -> Float[Array, "B T N H"]:
        still, turning = x_BTNH.split((x_BTNH.shape[-1] - channels, channels), -1)
        return torch.cat((still, rotate(turning, at_BT)), -1)

    return turn


def _each_head(x_BTNH: Array, weight_NHC: Array) -> Array:
    x_NMH = x_BTNH.flatten(0, 1).transpose(0, 1)
    return torch.matmul(x_NMH, weight_NHC).transpose(0, 1).unflatten(0, x_BTNH.shape[:2])
