"""Attention over pages that lie anywhere in a pool, with a carried softmax (maximum and sum).

Two ways, chosen by sizes alone. A step of few queries over a pool that is not much larger than what
its rows can see leaves keys and values where they are: each page gets the queries of the row that
reads it, which are far smaller than the page. What is left (pages that several rows share), and
every other step, is read row by row in tiles of `TILE` tokens, copied together from their pages.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, G query heads per K,
P page size, A pages of the pool, C columns of the table, J pages of a tile, S = J*P slots of a
tile, X = B*K, Y = A*K lines, M = T*G grouped queries, Q = K*M queries of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.pages import PagePlan
from jaxkv.caches.state import Bias, Expand, Step

# Tokens that are read at once: enough for a product that pays, few enough to stay in a CPU's cache.
TILE = 256
# How much more than its rows can see a step may read to be spared the copies: a copied token costs
# two to three times one that is read in its place.
SPARE = 2
# Up to so many queries a line its products are sums of their terms, fused with what stands around
# them: XLA on CPUs takes longer to call thousands of tiny matrix products than to compute them.
FEW = 8
# Up to so many rows their queries are brought to the pages by choosing, beyond them by gathering.
MOST_CHOICES = 16


class Carried(NamedTuple):
    """A softmax over the keys seen so far: the weighted values, the highest score, the weights."""

    out_XMH: Array
    peak_XM: Array
    total_XM: Array


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
    rows, tokens, _, _ = q_BTNH.shape
    plan: PagePlan = step.shared
    if expand is None and _leaves_in_place(site, plan, q_BTNH, rule=rule):
        seen = _read_pool(site, step, q_BTNH, rule=rule, bias=bias)
        page_BC, column_BC = plan.left_BC, plan.left_column_BC
        span = jnp.int32(0), plan.left
    else:
        seen = _nothing(site, q_BTNH, expand)
        page_BC, size = plan.pages.table_BC, plan.pages.page_size
        column_C = jnp.arange(page_BC.shape[1], dtype=jnp.int32)
        column_BC = jnp.broadcast_to(column_C, page_BC.shape)
        is_one = page_BC.shape[1] <= max(1, TILE // size)
        span = None if is_one else _used_columns(step, rule, size)
    listed = page_BC, column_BC, span
    seen = _read_tiles(site, step, q_BTNH, seen, listed, rule=rule, bias=bias, expand=expand)
    out_XMH = seen.out_XMH / jnp.where(seen.total_XM == 0, 1, seen.total_XM)[:, :, None]
    return ops.ungroup(out_XMH.astype(site.k_YHP.dtype), rows=rows, tokens=tokens)


def tile(
    site: Any, page_BJ: Int[Array, "B J"]
) -> tuple[Float[Array, "X H S"], Float[Array, "X S _"]]:
    """Return copies of the keys and values of some pages of each row, side by side."""
    (rows, count), (_, width, size) = page_BJ.shape, site.k_YHP.shape
    head_K1 = jnp.arange(site.num_kv_heads, dtype=jnp.int32)[:, None]
    line_BKJ = page_BJ[:, None, :] * site.num_kv_heads + head_K1
    lines = rows * site.num_kv_heads
    k_BKJHP = site.k_YHP.at[line_BKJ].get(mode="promise_in_bounds")
    k_XHJP = k_BKJHP.reshape(lines, count, width, size).swapaxes(1, 2)
    k_XHS, v_XSH = k_XHJP.reshape(lines, width, count * size), None
    if site.v_YPH is not None:
        v_BKJPH = site.v_YPH.at[line_BKJ].get(mode="promise_in_bounds")
        v_XSH = v_BKJPH.reshape(lines, count * size, -1)
    return k_XHS, slots.values_of(k_XHS, v_XSH, rank=site.rank)


def _nothing(site: Any, q_BTNH: Array, expand: Expand | None) -> Carried:
    rows, tokens, heads, _ = q_BTNH.shape
    kv_heads, width = _read_form(site, expand)
    shape, dtype = (rows * kv_heads, tokens * (heads // kv_heads)), ops.wide(q_BTNH.dtype)
    none_XMH, none_XM = jnp.zeros((*shape, width), dtype), jnp.zeros(shape, dtype)
    return Carried(none_XMH, jnp.full(shape, jnp.finfo(dtype).min, dtype), none_XM)


def _read_form(site: Any, expand: Expand | None) -> tuple[int, int]:
    """Return how many heads of keys and values are read, and how wide the values are."""
    width = site.k_YHP.shape[1]
    if expand is None:
        return site.num_kv_heads, width if site.rank is None else site.rank
    one = jax.ShapeDtypeStruct((1, 1, site.num_kv_heads, width), site.k_YHP.dtype)
    return jax.eval_shape(expand, one)[1].shape[2:]


def _leaves_in_place(site: Any, plan: PagePlan, q_BTNH: Array, *, rule: ops.Rule) -> bool:
    _, tokens, heads, _ = q_BTNH.shape
    size, (rows, columns) = plan.pages.page_size, plan.pages.table_BC.shape
    if rule.window is not None:
        columns = min(columns, (rule.window + tokens + size - 2) // size + 1)
    is_few = tokens * (heads // site.num_kv_heads) <= size
    return is_few and plan.pages.count_A.shape[0] <= SPARE * rows * columns + 1


def _read_pool(
    site: Any, step: Step, q_BTNH: Array, *, rule: ops.Rule, bias: Bias | None
) -> Carried:
    """Return what each row finds in the pages that it reads alone or first, in one pass."""
    rows = q_BTNH.shape[0]
    num_kv_heads, width = _read_form(site, None)
    v_YPH = slots.values_of(site.k_YHP, site.v_YPH, rank=site.rank)
    plan: PagePlan = step.shared
    owner_A, size, total = plan.owner_A, plan.pages.page_size, plan.owner_A.shape[0]
    row_A = jnp.minimum(owner_A, rows - 1)
    key_AP = plan.column_A[:, None] * size + jnp.arange(size, dtype=jnp.int32)
    end_B = step.length_B + step.count_B
    valid_AP = (owner_A < rows)[:, None] & (key_AP < end_B[row_A][:, None])
    q_XMH = ops.group_queries(q_BTNH, num_kv_heads)
    lines, queries = total * num_kv_heads, q_XMH.shape[1]
    q_YMH = _of_owners(q_XMH.reshape(rows, -1), row_A).reshape(lines, queries, -1)
    score_YMP = _score(q_YMH, site.k_YHP, rule=rule)
    places = Places(step.position_BT[row_A], key_AP, valid_AP)
    masked_YMP, visible_YMP, v_YPH = _look(
        score_YMP, v_YPH, places, rule=rule, bias=bias, clean=step.clean
    )
    floor = jnp.finfo(score_YMP.dtype).min
    reads_BA = owner_A == jnp.arange(rows, dtype=jnp.int32)[:, None]
    high_AQ = jnp.max(masked_YMP, axis=-1).reshape(total, -1)
    peak_BQ = jnp.max(jnp.where(reads_BA[:, :, None], high_AQ, floor), axis=1)
    peak_YM = peak_BQ[row_A].reshape(lines, queries)
    weight_YMP = jnp.where(visible_YMP, jnp.exp(masked_YMP - peak_YM[:, :, None]), 0)
    part_YMH = _weigh(weight_YMP.astype(v_YPH.dtype), v_YPH, dtype=score_YMP.dtype)
    weight_AQ = jnp.sum(weight_YMP, axis=-1).reshape(total, -1)
    out_BQH, total_BQ = _sum_by_row(part_YMH.reshape(*weight_AQ.shape, width), weight_AQ, reads_BA)
    shape = q_XMH.shape[:2]
    return Carried(out_BQH.reshape(*shape, width), peak_BQ.reshape(shape), total_BQ.reshape(shape))


def _of_owners(x_BR: Array, row_A: Array) -> Array:
    """Return each page's row of `x_BR`.

    By choices between whole rows: XLA gathers element by element on CPUs, which took as long as all
    products with pages of 16. The barrier keeps the choices from being made anew for each product.
    """
    if len(x_BR) > MOST_CHOICES:
        return x_BR[row_A]
    x_AR = jnp.broadcast_to(x_BR[0], (len(row_A), x_BR.shape[1]))
    for row in range(1, len(x_BR)):
        x_AR = jnp.where((row_A == row)[:, None], x_BR[row], x_AR)
    return jax.lax.optimization_barrier(x_AR)


def _look(
    score_XMS: Array,
    v_XSH: Array,
    places: Places,
    *,
    rule: ops.Rule,
    bias: Bias | None,
    clean: bool,
) -> tuple[Array, Array, Array]:
    """Return the scores, hidden ones at the floor; which are visible; and the values, scrubbed."""
    (rows, tokens), columns = places.position_BT.shape, places.key_BS.shape[1]
    num_kv_heads, groups = score_XMS.shape[0] // rows, score_XMS.shape[1] // tokens
    if not clean:
        v_XSH = slots.scrub_values(v_XSH, places.valid_BS)
    if bias is not None:
        bias_BNTS = bias(places.position_BT, places.key_BS)
        slots.check_bias(bias_BNTS, expected=(rows, num_kv_heads * groups, tokens, columns))
        score_XMS = score_XMS + ops.group_bias(bias_BNTS, num_kv_heads=num_kv_heads)
    visible_BTS = ops.is_visible(*places, rule=rule)
    visible_XMS = ops.spread(visible_BTS, num_kv_heads=num_kv_heads, groups=groups)
    return jnp.where(visible_XMS, score_XMS, jnp.finfo(score_XMS.dtype).min), visible_XMS, v_XSH


def _sum_by_row(part_AQH: Array, weight_AQ: Array, reads_BA: Array) -> tuple[Array, Array]:
    """Return the sums over the pages that each row reads, NaN where any of its own is."""
    # A product with ones and zeros sums over pages much faster than a scatter-add on CPUs. But
    # 0 * NaN is NaN: what is not finite stays out of it, or one row's would reach them all.
    sums_BA, (rows, _) = reads_BA.astype(part_AQH.dtype), reads_BA.shape
    is_sound_AQH = jnp.isfinite(part_AQH)
    is_sound_AQ = jnp.all(is_sound_AQH, axis=-1)
    out_BR = sums_BA @ jnp.where(is_sound_AQH, part_AQH, 0).reshape(len(part_AQH), -1)
    total_BQ = sums_BA @ jnp.where(is_sound_AQ, weight_AQ, 0)
    is_spoilt_BQ = jnp.any(reads_BA[:, :, None] & ~is_sound_AQ, axis=1)
    out_BQH = out_BR.reshape(rows, *part_AQH.shape[1:])
    return jnp.where(is_spoilt_BQ[:, :, None], jnp.nan, out_BQH), total_BQ


def _score(q_YMH: Array, k_YHP: Array, *, rule: ops.Rule) -> Array:
    if q_YMH.shape[1] > FEW:
        return ops.score(q_YMH, k_YHP, rule=rule)
    wide = ops.wide(q_YMH.dtype)
    terms_YMHP = q_YMH.astype(wide)[:, :, :, None] * k_YHP.astype(wide)[:, None]
    score_YMP = jnp.sum(terms_YMHP, axis=2) * rule.scale
    return score_YMP if rule.soft_cap is None else ops.soft_cap(score_YMP, cap=rule.soft_cap)


def _weigh(weight_YMP: Array, v_YPH: Array, *, dtype: jnp.dtype) -> Array:
    if weight_YMP.shape[1] > FEW:
        return jnp.einsum("YMP,YPH->YMH", weight_YMP, v_YPH, preferred_element_type=dtype)
    terms_YMPH = weight_YMP.astype(dtype)[:, :, :, None] * v_YPH.astype(dtype)[:, None]
    return jnp.sum(terms_YMPH, axis=2)


def _read_tiles(
    site: Any,
    step: Step,
    q_BTNH: Array,
    seen: Carried,
    listed: tuple[Array, Array, tuple[Array, Array] | None],
    *,
    rule: ops.Rule,
    bias: Bias | None,
    expand: Expand | None,
) -> Carried:
    """Return the softmax carried on over pages listed by row, the span of them; None: one tile."""
    rows, (num_kv_heads, _) = q_BTNH.shape[0], _read_form(site, expand)
    page_BC, column_BC, span = listed
    size, columns = step.shared.pages.page_size, page_BC.shape[1]
    each = min(max(1, TILE // size), columns)
    tiles = -(-columns // each)
    padding = ((0, 0), (0, tiles * each - columns))
    page_BC, column_BC = jnp.pad(page_BC, padding), jnp.pad(column_BC, padding)
    q_XMH = ops.group_queries(q_BTNH, num_kv_heads)
    end_B1 = (step.length_B + step.count_B)[:, None]
    place_P = jnp.arange(size, dtype=jnp.int32)

    def add(at: Any, seen: Carried) -> Carried:
        page_BJ, column_BJ = (
            jax.lax.dynamic_slice_in_dim(x, at * each, each, axis=1) for x in (page_BC, column_BC)
        )
        k_XHS, v_XSH = tile(site, page_BJ)
        if expand is not None:
            k_XHS, v_XSH = slots.expanded(k_XHS, expand, rows=rows)
        key_BS = (column_BJ[:, :, None] * size + place_P).reshape(rows, -1)
        valid_BS = (key_BS < end_B1) & jnp.repeat(page_BJ > 0, size, axis=1)
        score_XMS = ops.score(q_XMH, k_XHS, rule=rule)
        places = Places(step.position_BT, key_BS, valid_BS)
        looked = _look(score_XMS, v_XSH, places, rule=rule, bias=bias, clean=step.clean)
        return _carry(seen, *looked)

    if span is None:
        return add(jnp.int32(0), seen)
    return jax.lax.fori_loop(span[0] // each, (span[1] + (each - 1)) // each, add, seen)


def _carry(seen: Carried, masked_XMS: Array, visible_XMS: Array, v_XSH: Array) -> Carried:
    peak_XM = jnp.maximum(seen.peak_XM, jnp.max(masked_XMS, axis=-1))
    weight_XMS = jnp.where(visible_XMS, jnp.exp(masked_XMS - peak_XM[:, :, None]), 0)
    shrink_XM = jnp.exp(seen.peak_XM - peak_XM)
    part_XMH = jnp.einsum(
        "XMS,XSH->XMH",
        weight_XMS.astype(v_XSH.dtype),
        v_XSH,
        preferred_element_type=seen.out_XMH.dtype,
    )
    return Carried(
        seen.out_XMH * shrink_XM[:, :, None] + part_XMH,
        peak_XM,
        seen.total_XM * shrink_XM + jnp.sum(weight_XMS, axis=-1),
    )


def _used_columns(step: Step, rule: ops.Rule, size: int) -> tuple[Array, Array]:
    takes_B = step.count_B > 0
    end = jnp.max(jnp.where(takes_B, step.length_B + step.count_B, 0))
    first = jnp.zeros((), jnp.int32)
    if rule.window is not None:
        oldest = jnp.min(jnp.where(takes_B, step.length_B, jnp.iinfo(jnp.int32).max))
        first = jnp.maximum(oldest - (rule.window - 1), 0)
    return first // size, (end + (size - 1)) // size
