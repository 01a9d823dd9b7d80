"""Attention over pages that lie anywhere in a pool, with a carried softmax (maximum and sum).

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, P page size, A pages
of the pool, J pages of a tile, S = J*P slots of a tile, M = G*T grouped queries.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.state import Bias, Expand, Step

# Tokens that are read at once: enough for a product that pays, few enough to stay in a CPU's cache.
TILE = 256


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

    Cost: reads the used tiles, from the oldest that a query sees to the longest row's last, and a
    copy of them.
    Source: paged attention (Kwon et al. 2023), online softmax (Milakov and Gimelshein 2018).
    """
    rows, tokens, heads, _ = q_BTNH.shape
    pages = step.shared.pages
    size, (kv_heads, width) = pages.page_size, _read_form(site, expand)
    q_BKMH = ops.group_queries(q_BTNH, kv_heads)
    up = ops.wide(q_BTNH.dtype)
    out_BKMH = q_BKMH.new_zeros((*q_BKMH.shape[:3], width), dtype=up)
    total_BKM1 = out_BKMH.new_zeros((*q_BKMH.shape[:3], 1))
    peak_BKM1 = torch.full_like(total_BKM1, -torch.inf)
    end_B1 = (step.length_B + step.count_B).unsqueeze(1)
    for first in range(_oldest_page(step, rule, size), -(-step.used // size), max(1, TILE // size)):
        page_BJ = pages.table_BC[
            :, first : min(first + max(1, TILE // size), -(-step.used // size))
        ]
        k_BKSH, v_BKSH = tile(site, page_BJ)
        if expand is not None:
            k_BKSH, v_BKSH = slots.expanded(k_BKSH, expand)
        key_S = torch.arange(k_BKSH.shape[2], dtype=torch.int32, device=end_B1.device)
        key_BS = (key_S + first * size).expand(end_B1.shape[0], -1)
        valid_BS = key_BS < end_B1
        if not step.clean:
            v_BKSH = v_BKSH.masked_fill(~valid_BS[:, None, :, None], 0.0)
        score_BKMS = ops.score(q_BKMH, k_BKSH, rule=rule)
        if bias is not None:
            bias_BNTS = bias(step.position_BT, key_BS)
            slots.check_bias(bias_BNTS, expected=(rows, heads, tokens, key_BS.shape[1]))
            score_BKMS = score_BKMS + ops.group_bias(bias_BNTS, num_kv_heads=kv_heads)
        visible_BTS = ops.is_visible(step.position_BT, key_BS, valid_BS, rule=rule)
        hidden_B1MS = ~ops.spread(visible_BTS, groups=heads // kv_heads)
        score_BKMS = score_BKMS.masked_fill(hidden_B1MS, -torch.inf)
        higher_BKM1 = torch.maximum(peak_BKM1, score_BKMS.amax(-1, keepdim=True))
        # A query that has seen no key yet has a peak of -inf; any finite one gives it weights of 0.
        around_BKM1 = higher_BKM1.masked_fill(higher_BKM1 == -torch.inf, 0.0)
        weight_BKMS = torch.exp(score_BKMS - around_BKM1)
        shrink_BKM1 = torch.exp(peak_BKM1 - around_BKM1)
        part_BKMH = torch.matmul(weight_BKMS.to(v_BKSH.dtype), v_BKSH)
        out_BKMH = out_BKMH * shrink_BKM1 + part_BKMH
        total_BKM1 = total_BKM1 * shrink_BKM1 + weight_BKMS.sum(-1, keepdim=True)
        peak_BKM1 = higher_BKM1
    out_BKMH = out_BKMH / total_BKM1.masked_fill(total_BKM1 == 0, 1.0)
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


def _oldest_page(step: Step, rule: ops.Rule, size: int) -> int:
    return 0 if rule.window is None else max(0, step.oldest + 1 - rule.window) // size
