"""The paged layout: a pool of pages a layer, and one table for all layers that says whose they are.

Token number p of a row stands in slot p mod P of the page in column p // P of the row's table line.
The bookkeeping stands in `pages`; here is what a layer does with it. Keys are kept as (A*K, H, P),
values as (A*K, P, H): a line is one page and head. An attention to latents has no values of its
own: they are the first `rank` channels of the keys.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, P page size, A pages
of the pool, Y = A*K lines, C columns of the table, S = C*P slots.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import page_reads, slots
from jaxkv.caches.pages import PagePlan, Pages, filled_slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree, static
from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError


@pytree
class PagedSite:
    """One attention's pool; slots without a token and the trash page, number 0, are never read."""

    k_YHP: Float[Array, "Y H P"]
    v_YPH: Float[Array, "Y P H"] | None
    num_kv_heads: int = static()
    rank: int | None = static()


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: Any = None,
) -> PagedSite:
    """Return an empty pool for the pages of `shared`; every length can be rolled back to.

    Cost: allocates 2 * pages * K * page_size * H elements, the trash page among them; half of them
    for a latent's keys alone.
    """
    kv_heads, width, size = attention.num_kv_heads, attention.head_dim, shared.page_size
    lines = shared.count_A.shape[0] * kv_heads
    keys = jnp.zeros((lines, width, size), dtype)
    if attention.latent is not None:
        return PagedSite(keys, None, kv_heads, attention.latent.rank)
    return PagedSite(keys, jnp.zeros((lines, size, width), dtype), kv_heads, None)


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
    given, have = new_k_BTKH.shape[2], site.num_kv_heads
    if given != have:
        raise ShapeError(
            f"attend: k_BTKH has K={given}, the cache has K={have}. Was the cache made for another "
            "model?"
        )
    slots.check_form(site.k_YHP, new_k_BTKH)


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
    """Return the attention output of T new tokens, and the pool with their keys and values written.

    Shared pages that the step writes to are copied first, as `begin` planned. Then the pages are
    read, in their place or tile after tile (`page_reads`); no whole row is ever gathered.

    Args:
        site: One attention's pool.
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
        ShapeError: K, H or dtype differ from the site (at trace time under jit); see
            `caches.attend`.

    Not checked here: that the rows have their pages; `begin` refuses those that do not.
    Cost: writes 2*B*T*K*H elements and the copied pages; reads what `page_reads.attend_pages` says,
    or nothing but the new tokens when the step is fresh.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    plan: PagePlan = step.shared
    if not step.fresh:
        site = _copy_pages(site, plan)
    site = _write(site, step, plan.pages, k_BTKH, v_BTKH)
    if step.fresh:
        k_BTKH, v_BTKH = slots.new_values(k_BTKH, v_BTKH, expand, rank=site.rank)
        out = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        return out, site
    return page_reads.attend_pages(site, step, q_BTNH, rule=rule, bias=bias, expand=expand), site


def fault(site: PagedSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: pages, and values beside keys."""
    keys, values, pages = site.k_YHP, site.v_YPH, cache.shared
    lines, width, size = keys.shape
    columns = pages.table_BC.shape[1]
    if columns * size < cache.capacity:
        return f"has {columns} pages of {size} a row, the cache has capacity {cache.capacity}"
    if lines != pages.count_A.shape[0] * site.num_kv_heads or size != pages.page_size:
        return (
            f"has {lines} lines of {size}, the table is for {pages.count_A.shape[0]} pages of "
            f"{pages.page_size} and {site.num_kv_heads} heads"
        )
    if values is None:
        return None if site.rank is not None else "has no values beside its keys"
    if values.shape != (lines, size, width) or values.dtype != keys.dtype:
        return f"has values {values.dtype}{values.shape} beside keys {keys.dtype}{keys.shape}"
    return None


def read(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold a token.

    In the order of the text, all columns of the table: a probe for tests and crosscheck.
    """
    rows, columns = shared.table_BC.shape
    k_XHS, v_XSH = page_reads.tile(site, shared.table_BC)
    k_BSKH, v_BSKH = slots.by_row(k_XHS, v_XSH, rows=rows)
    key_S = jnp.arange(columns * shared.page_size, dtype=jnp.int32)
    key_BS = jnp.broadcast_to(key_S, (rows, key_S.shape[0]))
    return k_BSKH, v_BSKH, key_BS, key_BS < length_B[:, None]


def floor(site: PagedSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to: always 0."""
    return jnp.zeros_like(cache.length_B)


def gather_site(site: PagedSite, rows_B: Int[Array, " C"], *, batch: int) -> PagedSite:
    """Return the site: rows are lines of the table, no page is moved or copied."""
    return site


def narrow_site(site: PagedSite, *, slots: int) -> PagedSite:
    """Return the site: the table is what gets narrower."""
    return site


def widen_site(site: PagedSite, old: PagedSite) -> PagedSite:
    """Return the site, see `narrow_site`."""
    return site


@jax.jit
def scrub_site(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PagedSite:
    """Return the site with values of 0 in every slot of the pool that holds no token."""
    filled_YP = jnp.repeat(filled_slots(shared, length_B), site.num_kv_heads, axis=0)
    if site.v_YPH is None:
        keys = jnp.where(filled_YP[:, None, :], site.k_YHP, 0)
        return PagedSite(keys, None, site.num_kv_heads, site.rank)
    values = jnp.where(filled_YP[:, :, None], site.v_YPH, 0)
    return PagedSite(site.k_YHP, values, site.num_kv_heads, None)


@jax.jit
def poison_site(
    site: PagedSite, shared: Pages, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PagedSite:
    """Return the site with NaN in every slot of the pool that holds no token, trash page too."""
    filled_YP = jnp.repeat(filled_slots(shared, length_B), site.num_kv_heads, axis=0)
    values = site.v_YPH
    return PagedSite(
        jnp.where(filled_YP[:, None, :], site.k_YHP, jnp.nan),
        None if values is None else jnp.where(filled_YP[:, :, None], values, jnp.nan),
        site.num_kv_heads,
        site.rank,
    )


def _copy_pages(site: PagedSite, plan: PagePlan) -> PagedSite:
    # A loop of as many trips as there are rows up to the last that copies, most often none: a
    # `cond` would copy the pool. Rows that copy nothing copy the trash page onto itself.
    kv_heads, rows = site.num_kv_heads, plan.source_B.shape[0]
    trips = jnp.max(jnp.where(plan.target_B > 0, jnp.arange(1, rows + 1, dtype=jnp.int32), 0))

    def copy(row: Array, site: PagedSite) -> PagedSite:
        source, target = plan.source_B[row] * kv_heads, plan.target_B[row] * kv_heads
        return jax.tree.map(
            lambda x: jax.lax.dynamic_update_slice_in_dim(
                x, jax.lax.dynamic_slice_in_dim(x, source, kv_heads), target, axis=0
            ),
            site,
        )

    return jax.lax.fori_loop(jnp.int32(0), trips, copy, site)


def _write(
    site: PagedSite, step: Step, pages: Pages, k_BTKH: Array, v_BTKH: Array | None
) -> PagedSite:
    size, columns = pages.page_size, pages.table_BC.shape[1]
    lines, kv_heads = site.k_YHP.shape[0], site.num_kv_heads
    column_BT = jnp.minimum(step.position_BT // size, columns - 1)
    page_BT = jnp.take_along_axis(pages.table_BC, column_BT, axis=1)
    head_K = jnp.arange(kv_heads, dtype=jnp.int32)
    line_BTK = page_BT[:, :, None] * kv_heads + head_K
    line_BTK = jnp.where(step.valid_BT[:, :, None], line_BTK, lines)
    slot_BT1 = (step.position_BT % size)[:, :, None]
    dtype, values = site.k_YHP.dtype, site.v_YPH
    if values is not None and v_BTKH is not None:
        values = values.at[line_BTK, slot_BT1].set(v_BTKH.astype(dtype), mode="drop")
    keys = site.k_YHP.at[line_BTK, :, slot_BT1].set(k_BTKH.astype(dtype), mode="drop")
    return PagedSite(keys, values, kv_heads, site.rank)
