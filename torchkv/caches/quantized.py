"""The quantized layout: KIVI's codes of 2 or 4 bits, and the last tokens as they are.

Keys are quantized per channel in groups of g tokens, values per token in groups of g channels,
each with a scale and a zero point. After t tokens the keys below R * floor(t / R) and the values
below t - R are read from their codes, the rest from a ring of R + slack tokens. Of the two orders
"chunk_invariant" applies that rule to each query by its own t, so that no partition of a text
changes a result; "kivi" is the published one: a step reads what was stored before it, and its own
tokens as they are, so that what a prompt gives depends on how it was cut.

What is stored and how it is written stands in `coded`; with bits of 8 or "fp8" a site is one of
`per_token`. Letters: B rows, T new tokens, N query heads, K key/value heads, M
grouped queries, H head width, S slots read, R residual length, g group size. Source: KIVI (Liu et
al. 2024).
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.compression import QUANTIZED_OPTIONS, PerToken, quantization, refuse_latent
from jaxkv.spec.config import Attention
from torchkv import ops
from torchkv.caches import carried, coded, per_token, ring, slots
from torchkv.caches.carried import Carried
from torchkv.caches.coded import QuantizedSite
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step
from torchkv.caches.view import View

OPTIONS = QUANTIZED_OPTIONS
# Tokens of a tile, at most: one layer's keys or values of so many are dequantized at once. Calls
# cost most: with 2,048 used tokens of SmolLM2, in tiles of 256, they took most of a step.
TILE = 4096


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
    slack: int = 0,
    shared: None = None,
    **options: Any,
) -> QuantizedSite | per_token.PerTokenSite:
    """Return an empty site of the scheme that the options name, see `quantization`.

    Raises:
        RequestError: There is no such scheme, or its groups do not divide the head.
        Unsupported: The attention is to latents.

    Cost: allocates bits/8 bytes a number of `capacity` tokens in whole blocks of R, two numbers a
    group, and keys and values of R + slack tokens.
    """
    refuse_latent(attention, "quantized")
    width = attention.head_dim
    form = quantization(width=width, **options)
    sizes = {"batch": batch, "kv_heads": attention.num_kv_heads, "width": width}
    if isinstance(form, PerToken):
        return per_token.empty(form, **sizes, capacity=capacity, dtype=dtype)
    form.check_width(width)
    return coded.empty(form, **sizes, capacity=capacity, slack=slack, dtype=dtype)


def check(
    site: QuantizedSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or the attention has a window or sees the future.
        ShapeError: Batch, K, H or dtype differ.
    """
    slots.check_new(site.k_ring_BKHA.mT, k_BTKH, v_BTKH)
    slots.check_sees_all(rule)


def attend(
    site: QuantizedSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], QuantizedSite]:
    """Return the attention output of T new tokens, and the site, written in place.

    A block of queries reads what lies two blocks of R or more behind it from the codes alone, in
    tiles with a carried softmax; and what lies nearer from the codes or as it is, as the order
    says.

    Args:
        site: One attention's codes and ring, written in place.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the ring.
        v_BTKH: Values.
        rule: Without a window.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention; not offered here.

    Raises:
        Unsupported: The rule has a window.
        ShapeError: Batch, K, H or dtype differ from the site; see
            `caches.attend`.

    Cost: reads the codes of the used tiles of 4,096 tokens, one of them dequantized at once, and
    2R + T tokens as they are; of a step of one token, all rows alike, R.
    """
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    tokens, each = q_BTNH.shape[1], ops.QUERY_BLOCK
    if step.start is not None and tokens == 1 and site.form.order != "kivi":
        coded.write(site, step, k_BTKH, v_BTKH)
        return _attend_last(site, step, q_BTNH, rule, bias), site
    whole = coded.beside(site, k_BTKH, v_BTKH)
    coded.write(site, step, k_BTKH, v_BTKH)
    if step.fresh and site.form.order == "kivi":
        out_BTNH = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        return out_BTNH, site
    spans = [slice(at, min(at + each, tokens)) for at in range(0, tokens, each)]
    parts = [_attend(site, whole, step, q_BTNH[:, span], span, rule, bias) for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), site


def fault(site: QuantizedSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and ring beside block."""
    least = site.form.residual_length + site.slack
    if site.slots < cache.capacity:
        return f"has {site.slots} slots, the cache has capacity {cache.capacity}"
    if site.ring < least:
        return f"has a ring of {site.ring} tokens, its residual length and slack need {least}"
    if site.v_ring_BKAH.shape != site.k_ring_BKHA.mT.shape:
        keys, values = tuple(site.k_ring_BKHA.shape), tuple(site.v_ring_BKAH.shape)
        return f"has a ring of values {values} beside keys {keys}"
    return None


def read(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys and values as a query sees them, the position of each slot, and which hold one.

    Dequantized below the edges, as they are from there on: a probe for tests and crosscheck, which
    dequantizes the cache whole.
    """
    block, first_B = site.form.residual_length, torch.zeros_like(length_B)
    key_S = torch.arange(site.slots, dtype=torch.int32, device=length_B.device)
    key_BS, length_B1 = key_S.expand(len(length_B), -1), length_B.unsqueeze(1)
    place_BS = key_BS % site.ring
    k_BKHS = torch.where(
        (key_BS < length_B1 // block * block)[:, None, None, :],
        coded.keys_from(site, first_B, site.slots).to(site.k_ring_BKHA.dtype),
        coded.take_keys(site.k_ring_BKHA, place_BS),
    )
    v_BKSH = torch.where(
        (key_BS < length_B1 - block)[:, None, :, None],
        coded.values_from(site, first_B, site.slots).to(site.v_ring_BKAH.dtype),
        coded.take_values(site.v_ring_BKAH, place_BS),
    )
    return *slots.by_row(k_BKHS.mT, v_BKSH), key_BS, key_BS < length_B1


def floor(site: QuantizedSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped: then every token that is no longer to be read
    from its code is still there as it was. Longer ago, only codes are left.
    """
    return ring.floor(cache.length_B, cache.peak_B, site.ring, site.slack)


def gather_site(site: QuantizedSite, rows_B: Int[Array, " C"], *, batch: int) -> QuantizedSite:
    """Return a copy of the named rows, in their order: codes, scales, zero points and ring."""
    return _mapped(site, lambda x: slots.gather_rows(x, rows_B))


def narrow_site(site: QuantizedSite, *, slots: int) -> QuantizedSite:
    """Return the site: a step reads its used tiles, however many there are."""
    return site


def widen_site(site: QuantizedSite, old: QuantizedSite) -> QuantizedSite:
    """Return the site in the old one's memory, unless it is there already."""
    for name, x in vars(site).items():
        if isinstance(x, Array) and x.data_ptr() != getattr(old, name).data_ptr():
            getattr(old, name).copy_(x)
    return old


def scrub_site(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> QuantizedSite:
    """Return the site with 0 in every scale, zero point and slot no query reads, in place."""
    _blot(site, length_B, peak_B, 0.0)
    return site


def poison_site(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> QuantizedSite:
    """Return a copy of the site with NaN in every scale, zero point and slot no query reads."""
    site = _mapped(site, torch.clone)
    _blot(site, length_B, peak_B, torch.nan)
    return site


def _attend_last(
    site: QuantizedSite, step: Step, q_BTNH: Array, rule: ops.Rule, bias: Bias | None
) -> Array:
    """Return the outputs of one query a row, all rows of one length: each edge is one number."""
    used, block, up = step.used, site.form.residual_length, ops.wide(q_BTNH.dtype)
    key_edge, value_edge = used // block * block, max(used - block, 0)
    q_BKMH = ops.group_queries(q_BTNH, site.k_ring_BKHA.shape[1]).to(up)
    products = [
        coded.score_tile(site, step, q_BKMH, *tile)
        for tile in coded.tiles(q_BKMH, key_edge, most=TILE, block=block)
    ]
    k_BKHS = ring.latest(site.k_ring_BKHA, key_edge, used, axis=3).to(up)
    products.append(torch.matmul(q_BKMH, k_BKHS))
    view = View(step, q_BKMH, slice(0, 1), q_BTNH.shape[2], rule, bias)
    weight_BKMS = view.scored(torch.cat(products, -1), slots.first(step, bias)).softmax(-1)
    v_BKSH = ring.latest(site.v_ring_BKAH, value_edge, used, axis=2).to(up)
    out_BKMH = torch.matmul(weight_BKMS[..., value_edge:], v_BKSH)
    for start, size in coded.tiles(q_BKMH, value_edge, most=TILE):
        part_BKMS = weight_BKMS[..., start : start + size]
        out_BKMH += coded.weigh_tile(site, step, part_BKMS, start, size, all_seen=True)
    return ops.ungroup(out_BKMH.to(site.v_ring_BKAH.dtype), tokens=1)


def _attend(
    site: QuantizedSite,
    whole: tuple[Array, Array],
    step: Step,
    q_BTNH: Array,
    span: slice,
    rule: ops.Rule,
    bias: Bias | None,
) -> Array:
    """Return the outputs of one block of queries."""
    _, tokens, heads, _ = q_BTNH.shape
    block, is_kivi = site.form.residual_length, site.form.order == "kivi"
    q_BKMH = ops.group_queries(q_BTNH, whole[0].shape[1]).to(ops.wide(q_BTNH.dtype))
    view = View(step, q_BKMH, span, heads, rule, bias)
    # Where the near part begins: a whole block before the one that the first query stands in.
    offset = 0 if is_kivi else span.start
    near_B = ((step.length_B + offset) // block - 1).clamp(min=0) * block
    far = max(max((before + offset) // block - 1, 0) for before, _ in step.spans) * block
    state = _far(carried.start(q_BKMH), site, view, near_B, far)
    reach = 2 * block - 1 + (span.stop if is_kivi else tokens)
    state = _near(state, site, view, whole, near_B, -(-reach // block) * block)
    return ops.ungroup(carried.finish(state).to(whole[1].dtype), tokens=tokens)


def _far(state: Carried, site: QuantizedSite, view: View, near_B: Array, far: int) -> Carried:
    """Return the state with all keys before the near part, tile by tile."""
    rows, tokens = view.query_BT.shape
    block = site.form.residual_length
    for start, size in coded.tiles(view.q_BKMH, far, most=TILE, block=block):
        key_S = torch.arange(start, start + size, dtype=torch.int32, device=near_B.device)
        key_BS = key_S.expand(rows, -1)
        seen_B1S = (key_BS < near_B.unsqueeze(1)).unsqueeze(1)
        product_BKMS = coded.score_tile(site, view.step, view.q_BKMH, start, size)
        state = carried.add(
            state,
            view.scored(product_BKMS, key_BS),
            view.spread(seen_B1S.expand(-1, tokens, -1)),
            lambda w, at=start, size=size: coded.weigh_tile(site, view.step, w, at, size),
        )
    return state


def _near(
    state: Carried,
    site: QuantizedSite,
    view: View,
    whole: tuple[Array, Array],
    near_B: Array,
    count: int,
) -> Carried:
    """Return the state with the keys of the near part, dequantized or as they are."""
    step, up = view.step, view.q_BKMH.dtype
    coded_count = 2 * site.form.residual_length if site.form.order == "kivi" else count
    near_N = torch.arange(count, dtype=torch.int32, device=near_B.device)
    key_BS = near_B.unsqueeze(1) + near_N
    end_B1 = (step.length_B + step.count_B).unsqueeze(1)
    key_edge_BT, value_edge_BT = _edges(site, view)
    key_coded, value_coded = (
        view.spread(key_BS.unsqueeze(1) < edge_BT.unsqueeze(2))
        for edge_BT in (key_edge_BT, value_edge_BT)
    )
    tokens = whole[1].shape[2] - site.ring
    place_BS = coded.places_beside(key_BS, step.length_B, site.ring, tokens)
    product_BKMS = torch.matmul(view.q_BKMH, coded.take_keys(whole[0], place_BS).to(up))
    coded_k_BKHS = coded.keys_from(site, near_B, coded_count)
    product_BKMS[..., :coded_count] = torch.where(
        key_coded[..., :coded_count],
        torch.matmul(view.q_BKMH, coded_k_BKHS),
        product_BKMS[..., :coded_count],
    )
    # Of what no query reads as it is, the ring may hold another token, or nothing.
    is_plain_BS = (key_BS >= value_edge_BT[:, :1]) & (key_BS < end_B1)
    v_BKSH = coded.take_values(whole[1], place_BS).to(up)
    v_BKSH = v_BKSH.masked_fill(~is_plain_BS[:, None, :, None], 0.0)
    coded_v_BKSH = coded.values_from(site, near_B, coded_count)
    is_empty_BS = (key_BS >= end_B1)[:, :coded_count]
    coded_v_BKSH = coded_v_BKSH.masked_fill(is_empty_BS[:, None, :, None], 0.0)

    def weigh(weight_BKMS: Array) -> Array:
        coded_BKMS = (weight_BKMS * value_coded)[..., :coded_count]
        return torch.matmul(weight_BKMS * ~value_coded, v_BKSH) + torch.matmul(
            coded_BKMS, coded_v_BKSH
        )

    visible_BTS = ops.is_visible(view.query_BT, key_BS, key_BS < end_B1, rule=view.rule)
    score_BKMS = view.scored(product_BKMS, key_BS)
    return carried.add(state, score_BKMS, view.spread(visible_BTS), weigh)


def _edges(site: QuantizedSite, view: View) -> tuple[Array, Array]:
    """Return below which position each query reads keys, and values, from their codes."""
    block, held_BT = site.form.residual_length, view.query_BT + 1
    if site.form.order == "kivi":
        held_BT = view.step.length_B.unsqueeze(1).expand_as(held_BT)
    return held_BT // block * block, held_BT - block


def _mapped(site: QuantizedSite, change: Any) -> QuantizedSite:
    arrays = {name: change(x) for name, x in vars(site).items() if isinstance(x, Array)}
    return dataclasses.replace(site, **arrays)


def _blot(site: QuantizedSite, length_B: Array, peak_B: Array, blot: float) -> None:
    block, size, length_B1 = site.form.residual_length, site.form.group_size, length_B.unsqueeze(1)
    slot_C = torch.arange(site.slots, device=length_B.device)
    no_value_B1C1 = (slot_C >= length_B1)[:, None, :, None]
    no_key_B11U = (slot_C[::size] >= length_B1 // block * block)[:, None, None, :]
    _, intact_BA = ring.intact(length_B, peak_B, site.ring)
    site.k_scale_BKHU.masked_fill_(no_key_B11U, blot)
    site.k_zero_BKHU.masked_fill_(no_key_B11U, blot)
    site.v_scale_BKCZ.masked_fill_(no_value_B1C1, blot)
    site.v_zero_BKCZ.masked_fill_(no_value_B1C1, blot)
    site.k_ring_BKHA.masked_fill_(~intact_BA[:, None, None, :], blot)
    site.v_ring_BKAH.masked_fill_(~intact_BA[:, None, :, None], blot)
