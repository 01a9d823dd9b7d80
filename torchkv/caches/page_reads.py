"""Attention over pages that lie anywhere in a pool, with a carried softmax (maximum and sum).

Two ways, chosen by sizes alone. A step of few queries over a pool that is not much larger than what
its rows see leaves keys and values where they are: each page gets the queries of the row that
reads it, which are far smaller than the page. What is left (pages that several rows share), and
every other step, is read row by row in tiles of `TILE` tokens, copied together from their pages.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, P page size, A pages
of the pool, J pages of a tile, S = J*P slots of a tile, M = G*T grouped queries.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.pages import PagePlan
from torchkv.caches.state import Bias, Expand, Step

# Tokens that are read at once: enough for a product that pays, few enough to stay in a CPU's cache.
TILE = 256

# How much more than its rows can see a step may read to be spared the copies.
SPARE = 2


class Carried(NamedTuple):
    """A softmax over the keys seen so far: the weighted values, the highest score, the weights."""

    out_BKMH: Array
    peak_BKM1: Array
    total_BKM1: Array


class Places(NamedTuple):
    """Where queries and keys of some rows, or of some pages, stand in their texts."""

    position_BT: Array
    key_BS: Array
    valid_BS: Array


def attend_pages(
    site: Any,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    *,
    rule: ops.Rule,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> Float[Array, "B T N _"]:
    """Return attention of T queries to the tokens that their rows hold, the new ones among them.

    Args:
        site: A `PagedSite`.
        step: From `begin`; its `shared` is a `PagePlan`.
        q_BTNH: Queries, rotated.
        rule: Scale, soft cap, window; static.
        bias: Addend of the scores from query and key positions.
        expand: From latents to the keys and values of all heads, tile by tile; None for no latents,
            or to attend to the latents themselves.

    Cost: reads the pool once, or the used tiles and a copy of them.
    Source: paged attention (Kwon et al. 2023), online softmax (Milakov and Gimelshein 2018).
    """
    tokens = q_BTNH.shape[1]
    plan: PagePlan = step.shared
    if expand is None and _leaves_in_place(site, step, q_BTNH, rule=rule):
        seen = _read_pool(site, step, q_BTNH, rule=rule, bias=bias)
        listed = plan.left
    else:
        kv_heads, width = _read_form(site, expand)
        seen = _nothing(q_BTNH, heads=kv_heads, width=width)
        listed = _used_pages(step, rule)
    seen = _read_tiles(site, step, q_BTNH, seen, listed, rule=rule, bias=bias, expand=expand)
    out_BKMH = seen.out_BKMH / seen.total_BKM1.masked_fill(seen.total_BKM1 == 0, 1.0)
    return ops.ungroup(out_BKMH.to(site.k_AKPH.dtype), tokens=tokens)


def tile(
    site: Any, page_BJ: Int[Array, "B J"]
) -> tuple[Float[Array, "B K S H"], Float[Array, "B K S _"]]:
    """Return copies of the keys and values of some pages of each row, side by side."""
    pools = (site.k_AKPH,) if site.v_AKPH is None else (site.k_AKPH, site.v_AKPH)
    k_BKSH, *values = (pool[page_BJ].transpose(1, 2).flatten(2, 3) for pool in pools)
    return k_BKSH, slots.values_of(k_BKSH, values[0] if values else None, rank=site.rank)


def _read_form(site: Any, expand: Expand | None) -> tuple[int, int]:
    """Return how many heads of keys and values are read, and how wide the values are."""
    if expand is not None:
        _, _, heads, width = expand(site.k_AKPH[:1, :, :1].transpose(1, 2))[1].shape
        return heads, width
    return site.k_AKPH.shape[1], site.k_AKPH.shape[3] if site.rank is None else site.rank


def _nothing(q_BTNH: Array, *, heads: int, width: int) -> Carried:
    rows, tokens, query_heads, _ = q_BTNH.shape
    shape, dtype = (rows, heads, tokens * query_heads // heads), ops.wide(q_BTNH.dtype)
    out_BKMH = q_BTNH.new_zeros((*shape, width), dtype=dtype)
    total_BKM1 = out_BKMH.new_zeros((*shape, 1))
    return Carried(out_BKMH, torch.full_like(total_BKM1, -torch.inf), total_BKM1)


def _leaves_in_place(site: Any, step: Step, q_BTNH: Array, *, rule: ops.Rule) -> bool:
    pages = step.shared.pages
    rows, size, columns = q_BTNH.shape[0], pages.page_size, -(-step.used // pages.page_size)
    tokens, groups = q_BTNH.shape[1], q_BTNH.shape[2] // site.k_AKPH.shape[1]
    if rule.window is not None:
        columns = min(columns, (rule.window + tokens + size - 2) // size + 1)
    return tokens * groups <= size and len(pages.count_A) <= SPARE * rows * columns + 1


def _read_pool(
    site: Any, step: Step, q_BTNH: Array, *, rule: ops.Rule, bias: Bias | None
) -> Carried:
    """Return what each row finds in the pages that it reads alone or first, in one pass."""
    rows, (kv_heads, _) = q_BTNH.shape[0], _read_form(site, None)
    owner_A, column_A = step.shared.owners
    size = step.shared.pages.page_size
    row_A = owner_A.clamp(max=rows - 1)
    place_P = torch.arange(size, dtype=torch.int32, device=owner_A.device)
    key_AP = column_A.unsqueeze(1) * size + place_P
    end_A1 = (step.length_B + step.count_B)[row_A].unsqueeze(1)
    valid_AP = (owner_A < rows).unsqueeze(1) & (key_AP < end_A1)
    v_AKPH = slots.values_of(site.k_AKPH, site.v_AKPH, rank=site.rank)
    q_BKMH = ops.group_queries(q_BTNH, kv_heads)
    score_AKMP = ops.score(q_BKMH[row_A], site.k_AKPH, rule=rule)
    places = Places(step.position_BT[row_A], key_AP, valid_AP)
    score_AKMP, v_AKPH = _look(score_AKMP, v_AKPH, places, rule=rule, bias=bias, clean=step.clean)
    high_AKM1 = score_AKMP.amax(-1, keepdim=True)
    reads_BA = owner_A == torch.arange(rows, device=owner_A.device).unsqueeze(1)
    others_BA111 = ~reads_BA[:, :, None, None, None]
    peak_BKM1 = high_AKM1.unsqueeze(0).masked_fill(others_BA111, -torch.inf).amax(1)
    around_AKM1 = _around(peak_BKM1)[row_A]
    weight_AKMP = torch.exp(score_AKMP - around_AKM1)
    part_AKMH = torch.matmul(weight_AKMP.to(v_AKPH.dtype), v_AKPH).to(weight_AKMP.dtype)
    weight_AKM1 = weight_AKMP.sum(-1, keepdim=True)
    out_BKMH, total_BKM1 = (
        x.new_zeros((rows + 1, *x.shape[1:])).index_add_(0, owner_A, x)[:rows]
        for x in (part_AKMH, weight_AKM1)
    )
    return Carried(out_BKMH, peak_BKM1, total_BKM1)


def _look(
    score_BKMS: Array,
    v_BKSH: Array,
    places: Places,
    *,
    rule: ops.Rule,
    bias: Bias | None,
    clean: bool,
) -> tuple[Array, Array]:
    """Return the scores, hidden ones at -inf, and the values, scrubbed."""
    (rows, tokens), columns = places.position_BT.shape, places.key_BS.shape[1]
    kv_heads, groups = score_BKMS.shape[1], score_BKMS.shape[2] // tokens
    if not clean:
        v_BKSH = v_BKSH.masked_fill(~places.valid_BS[:, None, :, None], 0.0)
    if bias is not None:
        bias_BNTS = bias(places.position_BT, places.key_BS)
        slots.check_bias(bias_BNTS, expected=(rows, kv_heads * groups, tokens, columns))
        score_BKMS = score_BKMS + ops.group_bias(bias_BNTS, num_kv_heads=kv_heads)
    hidden_B1MS = ~ops.spread(ops.is_visible(*places, rule=rule), groups=groups)
    return score_BKMS.masked_fill(hidden_B1MS, -torch.inf), v_BKSH


def _read_tiles(
    site: Any,
    step: Step,
    q_BTNH: Array,
    seen: Carried,
    listed: tuple[Array, Array],
    *,
    rule: ops.Rule,
    bias: Bias | None,
    expand: Expand | None,
) -> Carried:
    """Return the softmax carried on over pages that are listed by row, with their columns."""
    size, (kv_heads, _) = step.shared.pages.page_size, _read_form(site, expand)
    q_BKMH = ops.group_queries(q_BTNH, kv_heads)
    end_B1 = (step.length_B + step.count_B).unsqueeze(1)
    place_P = torch.arange(size, dtype=torch.int32, device=end_B1.device)
    each = max(1, TILE // size)
    if listed[0].shape[1] == 0:
        return seen
    for page_BJ, column_BJ in zip(*(x.split(each, dim=1) for x in listed), strict=True):
        k_BKSH, v_BKSH = tile(site, page_BJ)
        if expand is not None:
            k_BKSH, v_BKSH = slots.expanded(k_BKSH, expand)
        key_BS = (column_BJ.unsqueeze(2) * size + place_P).flatten(1)
        valid_BS = (key_BS < end_B1) & (page_BJ > 0).repeat_interleave(size, dim=1)
        score_BKMS = ops.score(q_BKMH, k_BKSH, rule=rule)
        places = Places(step.position_BT, key_BS, valid_BS)
        looked = _look(score_BKMS, v_BKSH, places, rule=rule, bias=bias, clean=step.clean)
        seen = _carry(seen, *looked)
    return seen


def _carry(seen: Carried, score_BKMS: Array, v_BKSH: Array) -> Carried:
    peak_BKM1 = torch.maximum(seen.peak_BKM1, score_BKMS.amax(-1, keepdim=True))
    around_BKM1 = _around(peak_BKM1)
    weight_BKMS = torch.exp(score_BKMS - around_BKM1)
    shrink_BKM1 = torch.exp(seen.peak_BKM1 - around_BKM1)
    part_BKMH = torch.matmul(weight_BKMS.to(v_BKSH.dtype), v_BKSH)
    return Carried(
        seen.out_BKMH * shrink_BKM1 + part_BKMH,
        peak_BKM1,
        seen.total_BKM1 * shrink_BKM1 + weight_BKMS.sum(-1, keepdim=True),
    )


def _around(peak_BKM1: Array) -> Array:
    # A query that has seen no key yet has a peak of -inf; any finite one gives it weights of 0.
    return peak_BKM1.masked_fill(peak_BKM1 == -torch.inf, 0.0)


def _used_pages(step: Step, rule: ops.Rule) -> tuple[Array, Array]:
    table_BC, size = step.shared.pages.table_BC, step.shared.pages.page_size
    first = 0 if rule.window is None else max(0, step.oldest + 1 - rule.window) // size
    last = -(-step.used // size)
    column_C = torch.arange(first, last, dtype=torch.int32, device=table_BC.device)
    return table_BC[:, first:last], column_C.expand(table_BC.shape[0], -1)
