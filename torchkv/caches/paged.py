"""The paged layout: a pool of pages a layer, and one table for all layers that says whose they are.

Token number p of a row stands in slot p mod P of the page in column p // P of the row's table line.
The bookkeeping stands in `pages`; here is what a layer does with it. Writing is in place. An
attention to latents has no values of its own: they are the first `rank` channels of the keys.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, P page size, A pages
of the pool, C columns of the table, S = C*P slots, R real tokens of all rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError
from torchkv import ops
from torchkv.caches import page_reads, slots
from torchkv.caches.pages import PagePlan, Pages, filled_slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step


@dataclass(frozen=True)
class PagedSite:
    """One attention's pool; slots without a token and the trash page, number 0, are never read."""

    k_AKPH: Float[Array, "A K P H"]
    v_AKPH: Float[Array, "A K P H"] | None
    rank: int | None


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
    slack: int = 0,
    shared: Any = None,
) -> PagedSite:
    """Return an empty pool for the pages of `shared`; every length can be rolled back to.

    Cost: allocates 2 * pages * K * page_size * H elements, the trash page among them; half of them
    for a latent's keys alone.
    """
    pages, size = shared.count_A.shape[0], shared.page_size
    shape = (pages, attention.num_kv_heads, size, attention.head_dim)
    keys = torch.zeros(shape, dtype=dtype)
    if attention.latent is not None:
        return PagedSite(keys, None, attention.latent.rank)
    return PagedSite(keys, torch.zeros(shape, dtype=dtype), None)


def check(
    site: PagedSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or there are values beside latents.
        ShapeError: K, H or dtype differ.
    """
    new_k_BTKH, _ = slots.both(k_BTKH, v_BTKH, rank=site.rank)
    given, have = new_k_BTKH.shape[2], site.k_AKPH.shape[1]
    if given != have:
        raise ShapeError(
            f"attend: k_BTKH has K={given}, the cache has K={have}. Was the cache made for another "
            "model?"
        )
    slots.check_form(site.k_AKPH, new_k_BTKH)


def attend(
    site: PagedSite,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N _"], PagedSite]:
    """Return the attention output of T new tokens, and the pool, written in place.

    Shared pages that the step writes to are copied first, as `begin` planned. Then the pages are
    read, tile after tile (`page_reads`); no whole row is ever gathered.

    Args:
        site: One attention's pool, written in place.
        step: From `begin`; its `shared` is a `PagePlan`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values; None where they are the first channels of the keys.
        rule: Scale, soft cap, window; static.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: From latents, with their rotary keys turned, to the keys and values of all heads,
            tile by tile; None to attend to the latents themselves.

    Raises:
        ShapeError: K, H or dtype differ from the site; see `caches.attend`.

    Not checked here: that the rows have their pages; `begin` refuses those that do not.
    Cost: writes 2*B*T*K*H elements and the copied pages; reads what `page_reads.attend_pages` says,
    or nothing but the new tokens when the step is fresh.
    """
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    plan: PagePlan = step.shared
    _copy_pages(site, plan)
    _write(site, step, plan.pages, k_BTKH, v_BTKH)
    if step.fresh:
        k_BTKH, v_BTKH = slots.new_values(k_BTKH, v_BTKH, expand, rank=site.rank)
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
    out_BTNH = page_reads.attend_pages(site, step, q_BTNH, rule=rule, bias=bias, expand=expand)
    return out_BTNH, site


def fault(site: PagedSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: pages, and values beside keys."""
    keys, values, pages = site.k_AKPH, site.v_AKPH, cache.shared
    total, size, columns = keys.shape[0], keys.shape[2], pages.table_BC.shape[1]
    if columns * size < cache.capacity:
        return f"has {columns} pages of {size} a row, the cache has capacity {cache.capacity}"
    if (total, size) != (len(pages.count_A), pages.page_size):
        return (
            f"has {total} pages of {size}, the table is for {len(pages.count_A)} pages of "
            f"{pages.page_size}"
        )
    if values is None:
        return None if site.rank is not None else "has no values beside its keys"
    if values.shape != keys.shape or values.dtype != keys.dtype:
        beside = f"{values.dtype}{tuple(values.shape)} beside keys {keys.dtype}{tuple(keys.shape)}"
        return f"has values {beside}"
    return None


def read(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold a token.

    In the order of the text, all columns of the table: a probe for tests and crosscheck.
    """
    k_BKSH, v_BKSH = page_reads.tile(site, shared.table_BC)
    key_S = torch.arange(k_BKSH.shape[2], dtype=torch.int32, device=length_B.device)
    key_BS = key_S.expand(length_B.shape[0], -1)
    return *slots.by_row(k_BKSH, v_BKSH), key_BS, key_BS < length_B.unsqueeze(1)


def floor(site: PagedSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to: always 0."""
    return torch.zeros_like(cache.length_B)


def gather_site(site: PagedSite, rows_B: Int[Array, " C"], *, batch: int) -> PagedSite:
    """Return the site: rows are lines of the table, no page is moved or copied."""
    return site


def narrow_site(site: PagedSite, *, slots: int) -> PagedSite:
    """Return the site: the table is what gets narrower."""
    return site


def widen_site(site: PagedSite, old: PagedSite) -> PagedSite:
    """Return the site in the old one's memory, unless it is there already."""
    if site.k_AKPH.data_ptr() != old.k_AKPH.data_ptr():
        old.k_AKPH.copy_(site.k_AKPH)
        if site.v_AKPH is not None and old.v_AKPH is not None:
            old.v_AKPH.copy_(site.v_AKPH)
    return old


def scrub_site(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PagedSite:
    """Return the site with 0 in every slot of the pool that holds no token, in place."""
    empty_A1P1 = ~filled_slots(shared, length_B)[:, None, :, None]
    for pool in _pools(site):
        pool.masked_fill_(empty_A1P1, 0.0)
    return site


def poison_site(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PagedSite:
    """Return a copy of the site with NaN in every slot that holds no token, trash page too."""
    empty_A1P1 = ~filled_slots(shared, length_B)[:, None, :, None]
    keys, *values = (pool.masked_fill(empty_A1P1, torch.nan) for pool in _pools(site))
    return PagedSite(keys, values[0] if values else None, site.rank)


def _pools(site: PagedSite) -> tuple[Array, ...]:
    return (site.k_AKPH,) if site.v_AKPH is None else (site.k_AKPH, site.v_AKPH)


def _copy_pages(site: PagedSite, plan: PagePlan) -> None:
    # Sources are read before any is written: the last holder of a page writes to it in this step.
    if plan.copies:
        source, target = (list(pages) for pages in zip(*plan.copies, strict=True))
        for x in _pools(site):
            x[target] = x[source]


def _write(site: PagedSite, step: Step, pages: Pages, k_BTKH: Array, v_BTKH: Array | None) -> None:
    row_R, token_R = step.real
    position_R = step.position_BT[row_R, token_R].long()
    slot_R = position_R % pages.page_size
    page_R = pages.table_BC[row_R, position_R // pages.page_size].long()
    site.k_AKPH[page_R, :, slot_R] = k_BTKH[row_R, token_R]
    if site.v_AKPH is not None and v_BTKH is not None:
        site.v_AKPH[page_R, :, slot_R] = v_BTKH[row_R, token_R]
