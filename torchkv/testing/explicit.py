"""A layout for testers: positions and visibility are given, not derived.

With it a tester plants faults of position and mask, and replays them, in a model that is right.
It is no layout of the product: `caches.init` does not know it. A step takes its B * T tokens as as
many rows of one token, whose lengths are the positions wanted: so the positions of the model's own
step are the given ones, rotary or learned. Who shares a text is said by the site. Nothing is
written in place.

Letters: B rows, T new tokens, M = B*T, N query heads, K key/value heads, H head width, S slots.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.errors import ShapeError
from torchkv import ops
from torchkv.caches import Bias, Cache, Expand, Rotate, Step
from torchkv.testing import explicit_codes
from torchkv.testing.explicit_codes import Form


@dataclass(frozen=True)
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
    form: Form | None


def fault(site: ExplicitSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: a row for each of its tokens."""
    tokens, rows = site.slot_BT.numel(), cache.length_B.shape[0]
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
    b, t = site.slot_BT.shape
    if v_BTKH is None:
        v_BTKH = k_BTKH[..., : site.v_BSKH.shape[-1]]
    k_BSKH, v_BSKH = (
        _written(held, new.unflatten(0, (b, t)).squeeze(2), site.slot_BT)
        for held, new in ((site.k_BSKH, k_BTKH), (site.v_BSKH, v_BTKH))
    )
    read = k_BSKH, v_BSKH
    if expand is not None:
        turned_BSKH = k_BSKH[..., v_BSKH.shape[-1] :]
        read = expand(k_BSKH)[0], expand(torch.cat((v_BSKH, turned_BSKH), -1))[1]
    # A weight of 0 does not silence what nobody may see: 0 * NaN is NaN.
    unseen_BS11 = ~site.visible_BTS.any(1)[:, :, None, None]
    read_k_BSKH, read_v_BSKH = (x.masked_fill(unseen_BS11, 0.0) for x in read)
    kv_heads, groups = read_k_BSKH.shape[2], q_BTNH.shape[2] // read_k_BSKH.shape[2]
    q_BKMH = ops.group_queries(q_BTNH.unflatten(0, (b, t)).squeeze(2), kv_heads)
    visible_B1MS = ops.spread(site.visible_BTS, groups=groups)
    score_BKMS = _scores(site, q_BKMH, read_k_BSKH, read[0], rule)
    if bias is not None:
        added_BNTS = bias(step.position_BT.reshape(b, t), site.position_BS)
        score_BKMS = score_BKMS + ops.group_bias(added_BNTS, num_kv_heads=kv_heads)
    weight_BKMS = ops.softmax(score_BKMS, visible_B1MS).to(read_v_BSKH.dtype)
    o_BKMH = _weighted(site, weight_BKMS, read_v_BSKH)
    o_BTNH = ops.ungroup(o_BKMH, tokens=t)
    return (
        o_BTNH.flatten(0, 1).unsqueeze(1),
        dataclasses.replace(site, k_BSKH=k_BSKH, v_BSKH=v_BSKH),
    )


def _scores(
    site: ExplicitSite, q_BKMH: Array, k_BSKH: Array, held_BSKH: Array, rule: ops.Rule
) -> Array:
    """Return all scores, with keys from codes where a token reads them so.

    A code belongs to its group, whether or not all of the group is visible.
    """
    score_BKMS = ops.score(q_BKMH, k_BSKH.transpose(1, 2), rule=rule)
    if site.form is None:
        return score_BKMS
    edge_BT, _ = explicit_codes.edges(site.form, site.slot_BT)
    coded_BKSH = explicit_codes.keys_from_codes(held_BSKH, site.form).transpose(1, 2)
    coded_BKMS = ops.score(q_BKMH, coded_BKSH, rule=rule)
    return torch.where(_below(edge_BT, coded_BKMS), coded_BKMS, score_BKMS)


def _weighted(site: ExplicitSite, weight_BKMS: Array, v_BSKH: Array) -> Array:
    """Return the weighted sums, of values from codes where a token reads them so."""
    if site.form is None:
        return torch.matmul(weight_BKMS, v_BSKH.transpose(1, 2))
    _, edge_BT = explicit_codes.edges(site.form, site.slot_BT)
    is_coded_B1MS = _below(edge_BT, weight_BKMS)
    coded_BKSH = explicit_codes.values_from_codes(v_BSKH, site.form).transpose(1, 2)
    from_codes = torch.matmul(weight_BKMS * is_coded_B1MS, coded_BKSH)
    return from_codes + torch.matmul(weight_BKMS * ~is_coded_B1MS, v_BSKH.transpose(1, 2))


def _below(edge_BT: Array, like_BKMS: Array) -> Array:
    """Return which slots lie below each grouped query's edge."""
    slot_S = torch.arange(like_BKMS.shape[-1], device=edge_BT.device)
    groups = like_BKMS.shape[2] // edge_BT.shape[1]
    return ops.spread(slot_S < edge_BT[..., None], groups=groups)


def _written(held_BSKH: Array, new_BTKH: Array, slot_BT: Array) -> Array:
    written = held_BSKH.clone()
    row_P, token_P = (slot_BT < held_BSKH.shape[1]).nonzero(as_tuple=True)
    written[row_P, slot_BT[row_P, token_P].long()] = new_BTKH[row_P, token_P]
    return written
