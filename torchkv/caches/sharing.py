"""The verbs of a pool that many requests share: rows come and go, and pages outlive their rows.

A page is in use as long as its reference count is above 0. A count has two parts: how often the
page stands in the table, and how many holders it has outside (a prefix store); what gather,
rollback and reset change is the first part only. Numbers of pages come as whole numbers, in which 0
means none. All of these share the buffers with the cache passed in, and the next step of either
consumes the other.

Letters: B rows, M pages of a call, A pages of the pool.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor as Array

from jaxkv.spec.errors import RequestError, Unsupported
from torchkv.caches.history import gather
from torchkv.caches.pages import Pages, occurrences
from torchkv.caches.state import Cache

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
        RequestError: A row is out of range, or the cache was consumed.
        Unsupported: The layout stores nothing.

    Cost: of the paged layout the table, whatever the length; of others a copy of the buffers.
    """
    rows = list(range(len(cache.length_B)))
    for name, row in (("source", source), ("target", target)):
        _check_row("fork_row", name, int(row), rows=len(rows))
    rows[int(target)] = int(source)
    return gather(cache, torch.tensor(rows, dtype=torch.int32))


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
            the length, out of range, free, or twice the same; the length is beyond the capacity;
            or the cache was consumed.

    Not checked here: that the tokens are those that the caller means.
    Cost: the table.
    """
    pages, row, length = _pages_of("adopt", cache), int(row), int(length)
    _check_row("adopt", "row", row, rows=len(cache.length_B))
    numbers = _numbers(page_M)
    _check_adopted(cache, row, numbers, length)
    table_BC, wanted_B = pages.table_BC.clone(), pages.wanted_B.clone()
    table_BC[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    wanted_B[row] = 0
    count_A = _counted(pages, numbers, 1)
    length_B, peak_B, overflow_B = (
        mark_B.clone() for mark_B in (cache.length_B, cache.peak_B, cache.overflow_B)
    )
    length_B[row], peak_B[row], overflow_B[row] = length, length, 0
    adopted = dataclasses.replace(pages, table_BC=table_BC, count_A=count_A, wanted_B=wanted_B)
    return dataclasses.replace(
        cache, length_B=length_B, peak_B=peak_B, overflow_B=overflow_B, shared=adopted
    )


def hold(cache: Cache, page_M: Numbers) -> Cache:
    """Return the cache with one more holder outside the table for each of the pages.

    A held page is not free when its rows are gone, and a row that writes to it copies it first.
    `scrub` and `poison` take it for full.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: A page is out of range or free: what it held may be overwritten already; or
            the cache was consumed.

    Cost: the counts.
    """
    pages, numbers = _pages_of("hold", cache), _numbers(page_M)
    _check_used("hold", numbers, pages)
    held = dataclasses.replace(pages, count_A=_counted(pages, numbers, 1))
    return dataclasses.replace(cache, shared=held)


def release(cache: Cache, page_M: Numbers) -> Cache:
    """Return the cache with one holder outside the table fewer for each of the pages.

    A page is free once no row and no holder has it.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: A page is out of range, or has not that many holders outside the table; or
            the cache was consumed.

    Cost: the counts, and a pass over the table.
    """
    pages, numbers = _pages_of("release", cache), _numbers(page_M)
    _check_range("release", numbers, total=len(pages.count_A))
    outside = holders(cache).tolist()
    for page, times in Counter(numbers).items():
        if page and times > outside[page]:
            raise RequestError(
                f"release: page {page} is released {times} times, it has {outside[page]} holders "
                "outside the table. Hold it first."
            )
    left = dataclasses.replace(pages, count_A=_counted(pages, numbers, -1))
    return dataclasses.replace(cache, shared=left)


def holders(cache: Cache) -> Int[Array, " A"]:
    """Return how many holders outside the table each page has.

    Raises:
        Unsupported: The cache has no pages.
        RequestError: The cache was consumed.
    """
    pages = _pages_of("holders", cache)
    return pages.count_A - occurrences(pages.table_BC, len(pages.count_A))


def _numbers(page_M: Numbers) -> list[int]:
    return [int(page) for page in page_M]


def _counted(pages: Pages, numbers: list[int], by: int) -> Array:
    page_M = torch.tensor(numbers, dtype=torch.int64, device=pages.count_A.device)
    return pages.count_A + by * occurrences(page_M, len(pages.count_A))


def _pages_of(function: str, cache: Cache) -> Pages:
    cache.epoch.check(function, "cache")
    if not isinstance(cache.shared, Pages):
        raise Unsupported(
            f"{function}: the cache has no pages, each row has slots of its own. Make it with "
            "layout='paged'."
        )
    return cache.shared


def _check_row(function: str, name: str, row: int, *, rows: int) -> None:
    if not 0 <= row < rows:
        raise RequestError(
            f"{function}: {name} is {row}, expected 0 to {rows - 1} (the cache has {rows} rows). "
            "Name one of them."
        )


def _check_adopted(cache: Cache, row: int, numbers: list[int], length: int) -> None:
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
    if not len(numbers) == len(set(numbers)) == needed:
        raise RequestError(
            f"adopt: page_M names {len(set(numbers))} pages in {len(numbers)} entries, expected "
            f"{needed} different ones: {length} tokens take so many of {pages.page_size}. Name "
            "each of them once."
        )
    if 0 in numbers:
        raise RequestError(
            "adopt: page_M has 0, the trash page, expected pages with tokens. Name those of the "
            "row that the tokens were written in."
        )
    _check_used("adopt", numbers, pages)


def _check_used(function: str, numbers: list[int], pages: Pages) -> None:
    _check_range(function, numbers, total=len(pages.count_A))
    counts = pages.count_A.tolist()
    for page in numbers:
        if page and counts[page] == 0:
            raise RequestError(
                f"{function}: page {page} is free, expected one that a row or a holder has. Hold "
                "it before its row is reset."
            )


def _check_range(function: str, numbers: list[int], *, total: int) -> None:
    for page in numbers:
        if not 0 <= page < total:
            raise RequestError(
                f"{function}: page_M has {page}, expected 0 to {total - 1} (the pool has "
                f"{total - 1} pages beside the trash page). Name pages of this cache's table."
            )
