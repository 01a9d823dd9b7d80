"""A layout for testers: positions and visibility are given, not derived.

With it a tester plants faults of position and mask, and replays them, in a model that is right.
It is no layout of the product: `caches.init` does not know it. A step takes its B * T tokens as as
many rows of one token, whose lengths are the positions wanted: so the positions of the model's own
step are the given ones, rotary or learned. Who shares a text is said by the site.

Letters: B rows, T new tokens, M = B*T, N query heads, K key/value heads, H head width, S slots.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree, static
from jaxkv.spec.errors import ShapeError
from jaxkv.testing import explicit_codes
from jaxkv.testing.explicit_codes import Form


@pytree
class ExplicitSite:
    """One attention's buffers, and what one step does with them.

    Attributes:
        k_BSKH: Keys, rotated.
        v_BSKH: Values; of latents too, so that a tester may change one side alone.
        slot_BT: int32, where each new token is written; S or more for nowhere.
        visible_BTS: Which slots each new token may read, after the write.
        position_BS: int32, where the token in each slot stands, after the write.
        form: What of it is read from codes; None for nothing.
    """

    k_BSKH: Float[Array, "B S K H"]
    v_BSKH: Float[Array, "B S K _"]
    slot_BT: Int[Array, "B T"]
    visible_BTS: Bool[Array, "B T S"]
    position_BS: Int[Array, "B S"]
    form: Form | None = static()


def fault(site: ExplicitSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: a row for each of its tokens."""
    tokens, rows = site.slot_BT.size, cache.length_B.shape[0]
    return None if tokens == rows else f"is for {tokens} tokens, the cache has {rows} rows"


def check(
    site: ExplicitSite,
    k_BTKH: Float[Array, "M 1 K H"],
    v_BTKH: Float[Array, "M 1 K H"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        ShapeError: K or H differ.
    """
    have, given = tuple(site.k_BSKH.shape[2:]), tuple(k_BTKH.shape[2:])
    if have != given:
        raise ShapeError(
            f"attend: k_BTKH has (K, H) {given}, the site {have}. Was it made for this model?"
        )


def attend(
    site: ExplicitSite,
    step: Step,
    q_BTNH: Float[Array, "M 1 N _"],
    k_BTKH: Float[Array, "M 1 K H"],
    v_BTKH: Float[Array, "M 1 K H"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "M 1 N _"], ExplicitSite]:
    """Return attention over what the site says is visible, and the site with the tokens written."""
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    (b, t), (m, _, n, h) = site.slot_BT.shape, q_BTNH.shape
    if v_BTKH is None:
        v_BTKH = k_BTKH[..., : site.v_BSKH.shape[-1]]
    row_B1 = jnp.arange(b, dtype=jnp.int32)[:, None]
    k_BSKH, v_BSKH = (
        held.at[row_B1, site.slot_BT].set(new.reshape(b, t, *new.shape[2:]), mode="drop")
        for held, new in ((site.k_BSKH, k_BTKH), (site.v_BSKH, v_BTKH))
    )
    keys_BSKH, read_BSKH = k_BSKH, v_BSKH
    if expand is not None:
        latent = v_BSKH.shape[-1]
        keys_BSKH, _ = expand(k_BSKH)
        _, read_BSKH = expand(jnp.concatenate([v_BSKH, k_BSKH[..., latent:]], axis=-1))
    # A weight of 0 does not silence what nobody may see: 0 * NaN is NaN.
    seen_BS = jnp.any(site.visible_BTS, axis=1)
    read_BSKH = jnp.where(seen_BS[:, :, None, None], read_BSKH, 0)
    kv_heads = keys_BSKH.shape[2]
    q_XMH = ops.group_queries(q_BTNH.reshape(b, t, n, h), kv_heads)
    visible_XMS = ops.spread(site.visible_BTS, num_kv_heads=kv_heads, groups=n // kv_heads)
    score_XMS = _scores(site, q_XMH, keys_BSKH, rule)
    if bias is not None:
        added_BNTS = bias(step.position_BT.reshape(b, t), site.position_BS)
        score_XMS = score_XMS + ops.group_bias(added_BNTS, num_kv_heads=kv_heads)
    weight_XMS = ops.softmax(score_XMS, visible_XMS).astype(read_BSKH.dtype)
    o_XMH = _weighted(site, weight_XMS, read_BSKH)
    o_BTNH = ops.ungroup(o_XMH, rows=b, tokens=t)
    return o_BTNH.reshape(m, 1, n, -1), dataclasses.replace(site, k_BSKH=k_BSKH, v_BSKH=v_BSKH)


def _scores(site: ExplicitSite, q_XMH: Array, k_BSKH: Array, rule: ops.Rule) -> Array:
    """Return all scores, with keys from codes where a token reads them so."""
    score_XMS = ops.score(q_XMH, _lines(k_BSKH).swapaxes(1, 2), rule=rule)
    if site.form is None:
        return score_XMS
    edge_BT, _ = explicit_codes.edges(site.form, site.slot_BT)
    coded_BSKH = explicit_codes.keys_from_codes(k_BSKH, site.form)
    coded_XMS = ops.score(q_XMH, _lines(coded_BSKH).swapaxes(1, 2), rule=rule)
    return jnp.where(_below(edge_BT, k_BSKH, coded_XMS), coded_XMS, score_XMS)


def _weighted(site: ExplicitSite, weight_XMS: Array, v_BSKH: Array) -> Array:
    """Return the weighted sums, of values from codes where a token reads them so."""
    if site.form is None:
        return jnp.einsum("XMS,XSH->XMH", weight_XMS, _lines(v_BSKH))
    _, edge_BT = explicit_codes.edges(site.form, site.slot_BT)
    coded_BSKH = explicit_codes.values_from_codes(v_BSKH, site.form)
    below_XMS = _below(edge_BT, v_BSKH, weight_XMS)
    parts = [
        jnp.einsum("XMS,XSH->XMH", jnp.where(below_XMS == is_coded, weight_XMS, 0), _lines(values))
        for is_coded, values in ((True, coded_BSKH), (False, v_BSKH))
    ]
    return parts[0] + parts[1]


def _below(edge_BT: Array, held_BSKH: Array, like_XMS: Array) -> Array:
    """Return which slots lie below each grouped query's edge."""
    slots, kv_heads = held_BSKH.shape[1:3]
    groups = like_XMS.shape[1] // edge_BT.shape[1]
    below_BTS = jnp.arange(slots, dtype=jnp.int32) < edge_BT[..., None]
    return ops.spread(below_BTS, num_kv_heads=kv_heads, groups=groups)


def _lines(x_BSKH: Array) -> Array:
    b, s, kv_heads, width = x_BSKH.shape
    return x_BSKH.swapaxes(1, 2).reshape(b * kv_heads, s, width)
