"""Attention to one latent a token, from which the keys and values of all heads are made.

Two forms of one function. Expanded: keys and values of every head are made of the latents that are
read. Absorbed: the query takes the product up into itself, scores are taken with the latents, and
the product up of the values comes after the sum: nothing is made a head and key, which pays where
few queries read many keys.

Letters: B rows, T new tokens, S slots, D width, N query heads, H channels of a head, C channels of
a latent.
Sources: DeepSeek-V2 (2024), section 2.1; DeepSeek-V3 (2024), section 2.1.1.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import caches, ops
from jaxkv.caches import Expand, Rotate, Rule, Step
from jaxkv.linear import linear
from jaxkv.spec import config as spec

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
        a: What the parameters mean; static.
        rotate: Of the rotary channels alone.
        tap: Called with the name and value of intermediate results; what it returns goes on in
            their place.
        absorbed: Which form; None for the cheaper one. Static.
    """
    (b, t, _), n, latent, rope = x_BTD.shape, a.num_heads, _latent(a), _rope(a)
    if absorbed is None:
        absorbed = is_absorbed(latent, tokens=t, fresh=step.fresh)
    q_BTNH = project_queries(p, x_BTD, latent).reshape(b, t, n, a.query_width)
    down_BTC = linear(p["kv_down"], x_BTD)
    c_BTC = ops.rms_norm(down_BTC[..., : latent.rank], p["kv_norm"]["weight"], eps=latent.norm_eps)
    c_BTC = tap("v", c_BTC[:, :, None])[:, :, 0]
    key_BT1C = jnp.concatenate([c_BTC, down_BTC[..., latent.rank :]], axis=-1)[:, :, None]
    if absorbed:
        nope = latent.nope_width
        taken_BTNC = jnp.einsum("BTNH,NHC->BTNC", q_BTNH[..., :nope], p["k_up"]["weight"])
        q_BTNH = jnp.concatenate([taken_BTNC, q_BTNH[..., nope:]], axis=-1)
    out, site = caches.attend(
        site,
        step,
        q_BTNH,
        key_BT1C,
        None,
        rule=Rule(scale=scale(a), window=a.window, soft_cap=a.soft_cap),
        rotate=turn_last(rotate, rope.rotary_dim),
        expand=None if absorbed else expansion(p, latent),
    )
    return (jnp.einsum("BTNC,NHC->BTNH", out, p["v_up"]["weight"]) if absorbed else out), site


def is_absorbed(latent: spec.Latent, *, tokens: int, fresh: bool) -> bool:
    """Return whether the absorbed form multiplies less.

    A pair of query and key costs 2C products a head in the one form (rotary channels cost the same
    in both) and nope + value in the other, which pays C * (nope + value) more for each key that it
    expands. Where only new tokens are read, absorbing costs as much as expanding them.
    """
    each = latent.nope_width + latent.value_width
    return not fresh and tokens * (2 * latent.rank - each) < latent.rank * each


def scale(a: spec.Attention) -> float:
    """Return the factor on the scores, with yarn's squared for all channels where it is asked for.

    (nope + rotary)^(-1/2) * m^2, m = 0.1 * mscale * ln(factor) + 1.
    """
    plain = (a.score_width or a.query_width) ** -0.5
    mscale, scaling = _latent(a).mscale, _rope(a).scaling
    if mscale is None or not isinstance(scaling, spec.YarnScaling):
        return plain
    return plain * (0.1 * mscale * math.log(scaling.factor) + 1) ** 2


def project_queries(
    p: Params, x_BTD: Float[Array, "B T D"], latent: spec.Latent
) -> Float[Array, "B T _"]:
    """Return all heads' queries side by side, from the stream or through a latent of their own."""
    if latent.query_rank is None:
        return linear(p["q"], x_BTD)
    c_BTC = ops.rms_norm(linear(p["q_down"], x_BTD), p["q_norm"]["weight"], eps=latent.norm_eps)
    return linear(p["q_up"], c_BTC)


def expansion(p: Params, latent: spec.Latent) -> Expand:
    """Return the function from latents and rotary keys, turned, to keys and values of all heads."""

    def expand(
        key_BS1C: Float[Array, "B S 1 _"],
    ) -> tuple[Float[Array, "B S N _"], Float[Array, "B S N _"]]:
        c_BSC, turned_BS1H = key_BS1C[:, :, 0, : latent.rank], key_BS1C[..., latent.rank :]
        k_BSNH = jnp.einsum("BSC,NHC->BSNH", c_BSC, p["k_up"]["weight"])
        v_BSNH = jnp.einsum("BSC,NHC->BSNH", c_BSC, p["v_up"]["weight"])
        shared = (*k_BSNH.shape[:3], turned_BS1H.shape[-1])
        return jnp.concatenate([k_BSNH, jnp.broadcast_to(turned_BS1H, shared)], axis=-1), v_BSNH

    return expand


def turn_last(rotate: Rotate, channels: int) -> Rotate:
    """Return the function that turns the last channels of each head alone."""

    def turn(x_BTNH: Float[Array, "B T N H"], at_BT: Int[Array, "B T"]) -> Float[Array, "B T N H"]:
        turned = rotate(x_BTNH[..., -channels:], at_BT)
        return jnp.concatenate([x_BTNH[..., :-channels], turned], axis=-1)

    return turn


def _latent(a: spec.Attention) -> spec.Latent:
    assert a.latent is not None  # the caller asked
    return a.latent


def _rope(a: spec.Attention) -> spec.Rope:
    assert a.rope is not None  # `Attention` refuses a latent without one
    return a.rope
