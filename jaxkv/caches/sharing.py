"""The verbs of a pool that many requests share: rows come and go, and pages outlive their rows.

A page is in use as long as its reference count is above 0. A count has two parts: how often the
page stands in the table, and how many holders it has outside (a prefix store); what gather,
rollback and reset change is the first part only. Numbers of pages come as int32 arrays of any
length, in which 0 means none.

Letters: B rows, C columns of the table, M pages of a call, A pages of the pool.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from jaxkv.caches.history import gather
from jaxkv.caches.pages import Pages, occurrences
from jaxkv.caches.state import Cache
from jaxkv.spec.errors import RequestError, Unsupported

Numbers = Sequence[int] | np.ndarray | Array


def fork_row(cache: Cache, source: int | Array, target: int | Array) -> Cache:
    """Return the cache whose row `target` is a second row `source`; what it held is released.

    As `gather` with one row repeated: a paged cache shares the pages, and whoever writes to a
    shared one first gets a copy of it (`shared.copied` counts them); others copy the row.

    Args:
        cache: Any cache.
        source: Row that is continued twice.
        target: Row that becomes the second.

    Raises:
        RequestError: A row is out of range.
        Unsupported: The layout stores nothing.

    Cost: of the paged layout the table, whatever the length; of others a copy of the buffers.
    """
    rows_B = jnp.arange(cache.length_B.shape[0], dtype=jnp.int32)
    for name, row in (("source", source), ("target", target)):
        _check_row("fork_row", name, row, rows=rows_B.shape[0])
    return gather(cache, _replaced(rows_B, target, source))


def adopt(cache: Cache, row: int | Array, page_M: Numbers, length: int | Array) -> Cache:
    """Return the cache whose empty row `row` begins with `length` tokens that pages hold already.

    Nothing is copied and no token is computed: the pages are shared with whoever else has them. A
    last page that is partly filled is copied by the first write to it.

    Args:
        cache: Of pages.
        row: An empty row.
        page_M: int32, the pages of its tokens in the order of the text.
        length: Tokens in them.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: The row is out of range or not empty; the pages are too few or too many for
            the length, out of range, free, or twice the same; the length is beyond the capacity.

    Not checked here: under jit, any of this; and that the tokens are those that the caller means.
    Cost: the table.
    """
    pages = _pages_of("adopt", cache)
    _check_row("adopt", "row", row, rows=cache.length_B.shape[0])
    if not _is_traced(cache.length_B, row, page_M, length):
        _check_adopted(cache, int(row), np.asarray(page_M), int(length))
    page_C = _padded(page_M, width=pages.table_BC.shape[1])
    pages, length_B, peak_B, overflow_B = _adopt(
        pages, cache.length_B, cache.peak_B, cache.overflow_B, row, page_C, length
    )
    return Cache(length_B, peak_B, overflow_B, pages, cache.sites, cache.capacity)


def hold(cache: Cache, page_M: Numbers) -> Cache:
    """Return the cache with one more holder outside the table for each of the pages.

    A held page is not free when its rows are gone, and a row that writes to it copies it first.
    `scrub` and `poison` take it for full.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: A page is out of range or free: what it held may be overwritten already.

    Not checked here: under jit, any of this.
    Cost: the counts.
    """
    pages = _pages_of("hold", cache)
    if not _is_traced(pages.count_A, page_M):
        _check_used("hold", np.asarray(page_M), np.asarray(pages.count_A))
    return dataclasses.replace(cache, shared=_count(pages, page_M, 1))


def release(cache: Cache, page_M: Numbers) -> Cache:
    """Return the cache with one holder outside the table fewer for each of the pages.

    A page is free once no row and no holder has it.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: A page is out of range, or has not that many holders outside the table.

    Not checked here: under jit, any of this.
    Cost: the counts, and a pass over the table.
    """
    pages = _pages_of("release", cache)
    if not _is_traced(pages.count_A, page_M):
        _check_held(pages, np.asarray(page_M))
    return dataclasses.replace(cache, shared=_count(pages, page_M, -1))


def holders(cache: Cache) -> Int[Array, " A"]:
    """Return how many holders outside the table each page has.

    Raises:
        Unsupported: The cache has no pages.
    """
    pages = _pages_of("holders", cache)
    return pages.count_A - occurrences(pages.table_BC, pages.count_A.shape[0])


@jax.jit
def _replaced(rows_B: Array, target: Any, source: Any) -> Array:
    return rows_B.at[target].set(source)


@jax.jit
def _adopt(
    pages: Pages,
    length_B: Array,
    peak_B: Array,
    overflow_B: Array,
    row: Any,
    page_C: Array,
    length: Any,
) -> tuple[Pages, Array, Array, Array]:
    total = pages.count_A.shape[0]
    lost_A, won_A = occurrences(pages.table_BC[row], total), occurrences(page_C, total)
    adopted = dataclasses.replace(
        pages,
        table_BC=pages.table_BC.at[row].set(page_C),
        count_A=pages.count_A - lost_A + won_A,
        wanted_B=pages.wanted_B.at[row].set(0),
    )
    return (
        adopted,
        length_B.at[row].set(length),
        peak_B.at[row].set(length),
        overflow_B.at[row].set(0),
    )


def _count(pages: Pages, page_M: Numbers, by: int) -> Pages:
    total = pages.count_A.shape[0]
    # Counted by numpy where it can be: under jit every other number of pages is another program.
    if isinstance(page_M, Tracer):
        times_A = occurrences(page_M, total)
    else:
        times_A = np.bincount(np.asarray(page_M, np.int32).reshape(-1), minlength=total)
        times_A[0] = 0
    count_A = pages.count_A + by * jnp.asarray(times_A, jnp.int32)
    return dataclasses.replace(pages, count_A=count_A)


def _padded(page_M: Numbers, *, width: int) -> Array:
    if isinstance(page_M, Tracer):
        return jnp.pad(page_M.astype(jnp.int32), (0, width - page_M.shape[0]))
    return jnp.asarray(np.pad(np.asarray(page_M, np.int32), (0, width - len(page_M))))


def _pages_of(function: str, cache: Cache) -> Pages:
    if not isinstance(cache.shared, Pages):
        raise Unsupported(
            f"{function}: the cache has no pages, each row has slots of its own. Make it with "
            "layout='paged'."
        )
    return cache.shared


def _check_row(function: str, name: str, row: Any, *, rows: int) -> None:
    if not isinstance(row, Tracer) and not 0 <= int(row) < rows:
        raise RequestError(
            f"{function}: {name} is {int(row)}, expected 0 to {rows - 1} (the cache has {rows} "
            "rows). Name one of them."
        )


def _check_adopted(cache: Cache, row: int, page_M: np.ndarray, length: int) -> None:
    pages, held = cache.shared, int(cache.length_B[row])
    if held:
        raise RequestError(
            f"adopt: row {row} holds {held} tokens, expected an empty one. Reset it first."
        )
    if not 0 <= length <= cache.capacity:
        raise RequestError(
            f"adopt: length is {length}, expected 0 to {cache.capacity}, the cache's capacity. "
            "Adopt fewer tokens, or make the cache larger."
        )
    needed = -(-length // pages.page_size)
    if len(page_M) != needed or len(set(page_M.tolist())) != needed:
        raise RequestError(
            f"adopt: page_M names {len(set(page_M.tolist()))} pages in {len(page_M)} entries, "
            f"expected {needed} different ones: {length} tokens take so many of "
            f"{pages.page_size}. Name each of them once."
        )
    if (page_M == 0).any():
        raise RequestError(
            "adopt: page_M has 0, the trash page, expected pages with tokens. Name those of the "
            "row that the tokens were written in."
        )
    _check_used("adopt", page_M, np.asarray(pages.count_A))


def _check_used(function: str, page_M: np.ndarray, count_A: np.ndarray) -> None:
    _check_range(function, page_M, total=len(count_A))
    for page in page_M.tolist():
        if page and count_A[page] == 0:
            raise RequestError(
                f"{function}: page {page} is free, expected one that a row or a holder has. Hold "
                "it before its row is reset."
            )


def _check_held(pages: Pages, page_M: np.ndarray) -> None:
    total = pages.count_A.shape[0]
    _check_range("release", page_M, total=total)
    outside_A = np.asarray(pages.count_A - occurrences(pages.table_BC, total))
    released_A = np.bincount(page_M, minlength=total)
    released_A[0] = 0
    for page in np.flatnonzero(released_A > outside_A).tolist():
        raise RequestError(
            f"release: page {page} is released {released_A[page]} times, it has {outside_A[page]} "
            "holders outside the table. Hold it first."
        )


def _check_range(function: str, page_M: np.ndarray, *, total: int) -> None:
    for page in page_M.tolist():
        if not 0 <= page < total:
            raise RequestError(
                f"{function}: page_M has {page}, expected 0 to {total - 1} (the pool has "
                f"{total - 1} pages beside the trash page). Name pages of this cache's table."
            )


def _is_traced(*values: Any) -> bool:
    return any(isinstance(value, Tracer) for value in values)
