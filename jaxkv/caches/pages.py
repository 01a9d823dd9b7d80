"""The bookkeeping of the paged layout: which page of the pool holds which tokens of which row.

Kept once for all layers. Column c of a row's table line names the page with its tokens [c * P, (c +
1) * P); 0 is the trash page, which stands for "none", is never handed out and never read as valid.
A page is free when its reference count is 0, so the counts are the free list too; the lowest free
page is handed out first, to the rows in their order. The verbs between steps are jitted here, since
they are mostly called by themselves.

Letters: B rows, C columns of the table, A pages of the pool with the trash page, P page size, J
pages that one step can add to a row, M pages handed out in a step at most.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxkv.pytree import pytree, static
from jaxkv.spec.errors import CapacityError
from jaxkv.spec.whole import check_whole

OPTIONS = ("page_size", "pool_pages")
PAGE_SIZE = 16


@pytree
class Pages:
    """The page table, and how often each page stands in it.

    Attributes:
        table_BC: int32, the page of each row and column, 0 for none.
        count_A: int32, references to each page; 0 is free. The trash page's count stays 0.
        wanted_B: int32, pages that a row found wanting when it was refused, 0 if it was not.
        copied: int32, pages copied so far because a row wrote to one that it shared.
        page_size: Tokens of a page.
    """

    table_BC: Int[Array, "B C"]
    count_A: Int[Array, " A"]
    wanted_B: Int[Array, " B"]
    copied: Int[Array, ""]
    page_size: int = static()


@pytree
class PagePlan:
    """The pages after one step's allocation, and the copies that every site makes before it writes.

    Attributes:
        pages: What the cache holds after the step.
        source_B: int32, the shared page that row b would write to, 0 for none.
        target_B: int32, the page that takes its place, 0 for none.
        owner_A: int32, the first row that has each page, B for none.
        column_A: int32, the page's column in that row.
        left_BC: int32, the pages of each row that another row owns, from the left; then 0.
        left_column_BC: int32, their columns.
        left: int32, the most such pages of a row.
    """

    pages: Pages
    source_B: Int[Array, " B"]
    target_B: Int[Array, " B"]
    owner_A: Int[Array, " A"]
    column_A: Int[Array, " A"]
    left_BC: Int[Array, "B C"]
    left_column_BC: Int[Array, "B C"]
    left: Int[Array, ""]


def init_shared(
    *, batch: int, capacity: int, page_size: int = PAGE_SIZE, pool_pages: int | None = None
) -> Pages:
    """Return an empty table over a pool of free pages.

    Args:
        batch: Rows.
        capacity: Tokens that a row can hold.
        page_size: Tokens of a page.
        pool_pages: Pages that all rows together can hold, the trash page not among them; None
            takes what they need when none is shared.

    Raises:
        RequestError: page_size or pool_pages is no such number.
        CapacityError: The pool has no room for one row.
    """
    check_whole("init", "page_size", page_size, least=1)
    if pool_pages is not None:
        check_whole("init", "pool_pages", pool_pages, least=0)
    columns = -(-capacity // page_size)
    usable = batch * columns if pool_pages is None else pool_pages
    if usable < columns:
        raise CapacityError(
            f"init: pool_pages is {usable}, expected at least {columns}: a row of capacity "
            f"{capacity} takes {columns} pages of {page_size}. Raise pool_pages by "
            f"{columns - usable} or lower capacity to {max(usable, 0) * page_size}."
        )
    return Pages(
        table_BC=jnp.zeros((batch, columns), jnp.int32),
        count_A=jnp.zeros((usable + 1,), jnp.int32),
        wanted_B=jnp.zeros((batch,), jnp.int32),
        copied=jnp.zeros((), jnp.int32),
        page_size=page_size,
    )


def begin_shared(
    shared: Pages, length_B: Int[Array, " B"], count_B: Int[Array, " B"], *, T: int
) -> tuple[PagePlan, Int[Array, " B"]]:
    """Return the pages for count_B more tokens a row, and the tokens refused for want of pages.

    A row takes a new page for each one that its tokens begin, and one more in place of a partly
    filled page that others hold too; the last of its holders to write keeps it. Rows are served in
    their order: once one does not find its pages, no later row gets any, nor writes to a page that
    was shared before the step.

    Args:
        shared: Before the step.
        length_B: int32, tokens that each row holds.
        count_B: int32, tokens that each row is to take, within its capacity.
        T: The largest possible count.

    Cost: passes over the counts once; over the table never.
    """
    size, total_A = shared.page_size, shared.count_A.shape[0]
    held_B = _pages_for(length_B, size)
    new_B = _pages_for(length_B + count_B, size) - held_B
    last_B = jnp.take_along_axis(shared.table_BC, jnp.maximum(held_B - 1, 0)[:, None], axis=1)[:, 0]
    holders_B = shared.count_A[last_B]
    is_shared_B = (count_B > 0) & (length_B % size > 0) & (holders_B > 1)
    same_BB = (last_B[:, None] == last_B) & is_shared_B
    before_B = jnp.sum(jnp.tril(same_BB, -1), axis=1, dtype=jnp.int32)
    copies_B = is_shared_B & (holders_B - before_B > 1)
    need_B = new_B + copies_B
    end_B = jnp.cumsum(need_B, dtype=jnp.int32)
    is_free_A = (shared.count_A == 0) & (jnp.arange(total_A) > 0)
    fits_B = end_B <= jnp.sum(is_free_A, dtype=jnp.int32)
    fits_B = fits_B | ((need_B == 0) & ~is_shared_B)
    each = min(-(-T // size), shared.table_BC.shape[1])
    (order_M,) = jnp.nonzero(is_free_A, size=length_B.shape[0] * (each + 1), fill_value=0)
    order_M, start_B = order_M.astype(jnp.int32), end_B - need_B
    copies_B = copies_B & fits_B
    target_B = jnp.where(copies_B, order_M[start_B], 0)
    source_B = jnp.where(copies_B, last_B, 0)
    place_J = jnp.arange(each, dtype=jnp.int32)
    is_new_BJ = fits_B[:, None] & (place_J < new_B[:, None])
    new_BJ = jnp.where(is_new_BJ, order_M[(start_B + copies_B)[:, None] + place_J], 0)
    column_BJ = jnp.where(is_new_BJ, held_B[:, None] + place_J, -1)
    short_B = jnp.where(fits_B, 0, count_B)
    pages = Pages(
        table_BC=_enter(
            shared.table_BC,
            jnp.concatenate([jnp.where(copies_B, held_B - 1, -1)[:, None], column_BJ], axis=1),
            jnp.concatenate([target_B[:, None], new_BJ], axis=1),
        ),
        count_A=shared.count_A
        + occurrences(jnp.concatenate([target_B[:, None], new_BJ], axis=1), total_A)
        - occurrences(source_B, total_A),
        wanted_B=jnp.where(short_B > 0, jnp.maximum(need_B, 1), shared.wanted_B),
        copied=shared.copied + jnp.sum(copies_B, dtype=jnp.int32),
        page_size=size,
    )
    return PagePlan(pages, source_B, target_B, *_readers(pages)), short_B


def settle(shared: PagePlan) -> Pages:
    """Return what the cache keeps of a step's plan."""
    return shared.pages


@jax.jit
def rollback_shared(shared: Pages, length_B: Int[Array, " B"]) -> Pages:
    """Return the pages without those that hold no token of their row any more."""
    column_C = jnp.arange(shared.table_BC.shape[1], dtype=jnp.int32)
    keep_BC = column_C < _pages_for(length_B, shared.page_size)[:, None]
    return _replace_table(
        shared, jnp.where(keep_BC, shared.table_BC, 0), jnp.zeros_like(shared.wanted_B)
    )


@jax.jit
def gather_shared(shared: Pages, rows_B: Int[Array, " C"]) -> Pages:
    """Return the pages of the named rows: shared where a row repeats, released where it is left."""
    table_BC, wanted_B = (
        jnp.take(x, rows_B, axis=0, mode="clip") for x in (shared.table_BC, shared.wanted_B)
    )
    return _replace_table(shared, table_BC, wanted_B)


@jax.jit
def reset_shared(shared: Pages) -> Pages:
    """Return the pages with no row holding any, and the copies counted from 0 again."""
    empty = rollback_shared(shared, jnp.zeros_like(shared.wanted_B))
    return dataclasses.replace(empty, copied=jnp.zeros_like(shared.copied))


@jax.jit
def clear_shared(shared: Pages, only_B: Bool[Array, " B"]) -> Pages:
    """Return the pages with none in the rows named."""
    table_BC = jnp.where(only_B[:, None], 0, shared.table_BC)
    return _replace_table(shared, table_BC, jnp.where(only_B, 0, shared.wanted_B))


def narrow_shared(shared: Pages, *, slots: int) -> Pages:
    """Return the pages with only the first columns, as many as `slots` tokens need."""
    columns = -(-slots // shared.page_size)
    return dataclasses.replace(shared, table_BC=shared.table_BC[:, :columns])


def widen_shared(shared: Pages, old: Pages) -> Pages:
    """Return the pages with the columns of the old table; those that were cut off are empty."""
    missing = old.table_BC.shape[1] - shared.table_BC.shape[1]
    table_BC = jnp.pad(shared.table_BC, ((0, 0), (0, missing)))
    return dataclasses.replace(shared, table_BC=table_BC)


def with_table(shared: Pages, table_BC: Int[Array, "B C"], held_A: Int[Array, " A"]) -> Pages:
    """Return another table over the same pool, for any rows.

    Args:
        shared: Of the pool.
        table_BC: int32, the pages of each row and column, 0 for none.
        held_A: int32, references to each page from outside the table.
    """
    return Pages(
        table_BC=table_BC,
        count_A=held_A + occurrences(table_BC, shared.count_A.shape[0]),
        wanted_B=jnp.zeros((table_BC.shape[0],), jnp.int32),
        copied=jnp.zeros((), jnp.int32),
        page_size=shared.page_size,
    )


def explain(shared: Pages, row: int) -> str | None:
    """Return why a row was refused and what helps, if it was for want of pages; for the host."""
    wanted = int(shared.wanted_B[row])
    if not wanted:
        return None
    usable = shared.count_A.shape[0] - 1
    free = usable - int((shared.count_A > 0).sum())
    return (
        f"they need {wanted} pages of {shared.page_size}, of the pool's {usable} there are {free} "
        f"free. Make the cache with pool_pages {usable + max(wanted - free, 1)}, or roll back, "
        "reset or leave out rows that are done."
    )


@jax.jit
def filled_slots(shared: Pages, length_B: Int[Array, " B"]) -> Bool[Array, "A P"]:
    """Return which slots of the pool hold a token of any row, or belong to a holder outside."""
    size, columns = shared.page_size, shared.table_BC.shape[1]
    tokens_BC = length_B[:, None] - jnp.arange(columns, dtype=jnp.int32) * size
    tokens_A = jnp.zeros_like(shared.count_A).at[shared.table_BC].max(tokens_BC).at[0].set(0)
    held_A = shared.count_A > occurrences(shared.table_BC, shared.count_A.shape[0])
    return (jnp.arange(size) < tokens_A[:, None]) | held_A[:, None]


def occurrences(page_: Int[Array, "..."], total: int) -> Int[Array, " A"]:
    """Return how often each page of a pool of `total` is named; the trash page counts as never."""
    return jnp.zeros((total,), jnp.int32).at[page_.reshape(-1)].add(1).at[0].set(0)


def _pages_for(tokens_B: Array, size: int) -> Array:
    return (tokens_B + (size - 1)) // size


def _readers(pages: Pages) -> tuple[Array, Array, Array, Array, Array]:
    table_BC, (rows, columns) = pages.table_BC, pages.table_BC.shape
    row_B1 = jnp.arange(rows, dtype=jnp.int32)[:, None]
    column_C = jnp.arange(columns, dtype=jnp.int32)
    owner_A = jnp.full_like(pages.count_A, rows).at[table_BC].min(row_B1).at[0].set(rows)
    owns_BC = owner_A[table_BC] == row_B1
    at_BC = jnp.where(owns_BC, table_BC, owner_A.shape[0])
    column_A = jnp.zeros_like(owner_A).at[at_BC].set(column_C, mode="drop")
    is_left_BC = (table_BC > 0) & ~owns_BC
    left_B = jnp.sum(is_left_BC, axis=1, dtype=jnp.int32)
    to_BC = jnp.where(is_left_BC, jnp.cumsum(is_left_BC, axis=1, dtype=jnp.int32) - 1, columns)
    none_BC = jnp.zeros_like(table_BC)
    left_BC = none_BC.at[row_B1, to_BC].set(table_BC, mode="drop")
    left_column_BC = none_BC.at[row_B1, to_BC].set(column_C, mode="drop")
    return owner_A, column_A, left_BC, left_column_BC, jnp.max(left_B)


def _enter(table_BC: Array, column_BJ: Array, page_BJ: Array) -> Array:
    # A column of -1 means: do not write. Taken as it is, it would count from the table's end.
    rows, columns = table_BC.shape
    row_B1 = jnp.arange(rows, dtype=jnp.int32)[:, None]
    at_BJ = jnp.where(column_BJ < 0, columns, column_BJ)
    return table_BC.at[row_B1, at_BJ].set(page_BJ, mode="drop")


def _replace_table(shared: Pages, table_BC: Array, wanted_B: Array) -> Pages:
    total = shared.count_A.shape[0]
    lost_A, won_A = (occurrences(table, total) for table in (shared.table_BC, table_BC))
    return Pages(
        table_BC, shared.count_A - lost_A + won_A, wanted_B, shared.copied, shared.page_size
    )
