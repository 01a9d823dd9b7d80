"""The bookkeeping of the paged layout: which page of the pool holds which tokens of which row.

Kept once for all layers. Column c of a row's table line names the page with its tokens [c * P, (c +
1) * P); 0 is the trash page, which stands for "none", is never handed out and never read as valid.
A page is free when its reference count is 0, so the counts are the free list too; the lowest free
page is handed out first, to the rows in their order. Nothing here is changed in place: every cache
keeps its own table, whoever shares its pool.

Letters: B rows, C columns of the table, A pages of the pool with the trash page, P page size.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor as Array

from jaxkv.spec.errors import CapacityError
from jaxkv.spec.whole import check_whole

OPTIONS = ("page_size", "pool_pages")
PAGE_SIZE = 16


@dataclass(frozen=True)
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
    page_size: int


@dataclass(frozen=True)
class PagePlan:
    """The pages after one step's allocation, and the copies that every site makes before it writes.

    Attributes:
        pages: What the cache holds after the step.
        source_B: int32, the shared page that row b would write to, 0 for none.
        target_B: int32, the page that takes its place, 0 for none.
    """

    pages: Pages
    source_B: Int[Array, " B"]
    target_B: Int[Array, " B"]

    @cached_property
    def owners(self) -> tuple[Int[Array, " A"], Int[Array, " A"]]:
        """The first row that has each page, B for none, and the page's column in that row."""
        table_BC, (rows, columns) = self.pages.table_BC.long(), self.pages.table_BC.shape
        owner_A = torch.full_like(self.pages.count_A, rows, dtype=torch.int64)
        column_A = torch.zeros_like(self.pages.count_A)
        column_C = torch.arange(columns, dtype=torch.int32, device=table_BC.device)
        for row in reversed(range(rows)):
            owner_A[table_BC[row]], column_A[table_BC[row]] = row, column_C
        owner_A[0] = rows
        return owner_A, column_A

    @cached_property
    def left(self) -> tuple[Int[Array, "B _"], Int[Array, "B _"]]:
        """The pages of each row that another row owns, from the left, and their columns."""
        table_BC, rows = self.pages.table_BC, len(self.pages.table_BC)
        row_B1 = torch.arange(rows, device=table_BC.device).unsqueeze(1)
        is_left_BC = (table_BC > 0) & (self.owners[0][table_BC.long()] != row_B1)
        most = int(is_left_BC.sum(1).max())
        order_BC = (~is_left_BC).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        page_BC = table_BC.masked_fill(~is_left_BC, 0).gather(1, order_BC)
        return page_BC, order_BC.to(torch.int32)

    @cached_property
    def copies(self) -> list[tuple[int, int]]:
        """Source and target of each copy, read from the device once a step."""
        pairs = torch.stack((self.source_B, self.target_B), 1).tolist()
        return [(source, target) for source, target in pairs if target]


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
    columns = _pages_of(capacity, page_size)
    usable = batch * columns if pool_pages is None else pool_pages
    if usable < columns:
        raise CapacityError(
            f"init: pool_pages is {usable}, expected at least {columns}: a row of capacity "
            f"{capacity} takes {columns} pages of {page_size}. Raise pool_pages by "
            f"{columns - usable} or lower capacity to {max(usable, 0) * page_size}."
        )
    none = torch.zeros(batch, columns, dtype=torch.int32)
    count_A = torch.zeros(usable + 1, dtype=torch.int32)
    return Pages(none, count_A, none.new_zeros(batch), none.new_zeros(()), page_size)


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
        T: The largest possible count. Not needed here, where lists grow.

    Cost: reads B lengths and counts of pages on the host; the free pages only if one is wanted.
    """
    book = _Book(shared, length_B, count_B)
    needs = [book.need(row) for row in range(len(book.spans))]
    none_B = torch.zeros_like(count_B)
    if not any(needs) and not any(book.is_shared(row) for row in range(len(needs))):
        pages = dataclasses.replace(shared)
        return PagePlan(pages, none_B, none_B.clone()), none_B.clone()
    is_free_A = shared.count_A == 0
    is_free_A[0] = False
    free = is_free_A.nonzero().flatten().tolist()
    for row, need in enumerate(needs):
        free = book.serve(row, need, free)
    return book.close(needs)


def settle(shared: PagePlan) -> Pages:
    """Return what the cache keeps of a step's plan."""
    return shared.pages


def rollback_shared(shared: Pages, length_B: Int[Array, " B"]) -> Pages:
    """Return the pages without those that hold no token of their row any more."""
    columns = shared.table_BC.shape[1]
    first_C = torch.arange(columns, device=length_B.device) * shared.page_size
    table_BC = shared.table_BC.masked_fill(first_C >= length_B.unsqueeze(1), 0)
    return _replace_table(shared, table_BC, torch.zeros_like(shared.wanted_B))


def gather_shared(shared: Pages, rows_B: Int[Array, " C"]) -> Pages:
    """Return the pages of the named rows: shared where a row repeats, released where it is left."""
    table_BC, wanted_B = (x.index_select(0, rows_B) for x in (shared.table_BC, shared.wanted_B))
    return _replace_table(shared, table_BC, wanted_B)


def reset_shared(shared: Pages) -> Pages:
    """Return the pages with no row holding any, and the copies counted from 0 again."""
    none_BC, none_B = torch.zeros_like(shared.table_BC), torch.zeros_like(shared.wanted_B)
    empty = _replace_table(shared, none_BC, none_B)
    return dataclasses.replace(empty, copied=torch.zeros_like(shared.copied))


def clear_shared(shared: Pages, only_B: Bool[Array, " B"]) -> Pages:
    """Return the pages with none in the rows named."""
    table_BC = shared.table_BC.masked_fill(only_B.unsqueeze(1), 0)
    return _replace_table(shared, table_BC, shared.wanted_B.masked_fill(only_B, 0))


def narrow_shared(shared: Pages, *, slots: int) -> Pages:
    """Return the pages with only the first columns, as many as `slots` tokens need."""
    table_BC = shared.table_BC[:, : _pages_of(slots, shared.page_size)]
    return dataclasses.replace(shared, table_BC=table_BC)


def widen_shared(shared: Pages, old: Pages) -> Pages:
    """Return the pages with the columns of the old table; those that were cut off are empty."""
    table_BC = torch.zeros_like(old.table_BC)
    table_BC[:, : shared.table_BC.shape[1]] = shared.table_BC
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
        count_A=held_A + occurrences(table_BC, len(shared.count_A)),
        wanted_B=table_BC.new_zeros(len(table_BC)),
        copied=table_BC.new_zeros(()),
        page_size=shared.page_size,
    )


def explain(shared: Pages, row: int) -> str | None:
    """Return why a row was refused and what helps, if it was for want of pages; for the host."""
    wanted = int(shared.wanted_B[row])
    if wanted == 0:
        return None
    usable, free = len(shared.count_A) - 1, int((shared.count_A[1:] == 0).sum())
    return (
        f"they need {wanted} pages of {shared.page_size}, of the pool's {usable} there are {free} "
        f"free. Make the cache with pool_pages {usable + max(wanted - free, 1)}, or roll back, "
        "reset or leave out rows that are done."
    )


def filled_slots(shared: Pages, length_B: Int[Array, " B"]) -> Bool[Array, "A P"]:
    """Return which slots of the pool hold a token of any row, or belong to a holder outside."""
    size = shared.page_size
    filled_AP = torch.zeros(len(shared.count_A), size, dtype=torch.bool, device=length_B.device)
    for pages, length in zip(shared.table_BC, length_B.tolist(), strict=True):
        whole, rest = divmod(length, size)
        filled_AP[pages[:whole].long()] = True
        if rest:
            filled_AP[pages[whole].long(), :rest] = True
    filled_AP[shared.count_A > occurrences(shared.table_BC, len(shared.count_A))] = True
    return filled_AP


def occurrences(page_: Int[Array, "..."], total: int) -> Int[Array, " A"]:
    """Return how often each page of a pool of `total` is named; the trash page counts as never."""
    times_A = torch.bincount(page_.flatten(), minlength=total).to(torch.int32)
    times_A[0] = 0
    return times_A


class _Book:
    """One step's allocation, row by row on the host."""

    def __init__(self, shared: Pages, length_B: Array, count_B: Array):
        self.shared = shared
        lengths, counts = torch.stack((length_B, count_B)).tolist()
        self.spans = list(zip(lengths, counts, strict=True))
        self.length_B, self.count_B = length_B, count_B
        size = shared.page_size
        column_B = torch.div(length_B, size, rounding_mode="floor").long()
        column_B = column_B.clamp(max=shared.table_BC.shape[1] - 1).unsqueeze(1)
        page_B = shared.table_BC.gather(1, column_B).squeeze(1)
        self.pages, self.holders = torch.stack((page_B, shared.count_A[page_B])).tolist()
        self.writers: dict[int, int] = {}
        self.entries: list[tuple[int, int, int]] = []
        self.copies: dict[int, tuple[int, int]] = {}
        self.refused: set[int] = set()

    def is_shared(self, row: int) -> bool:
        """Return whether the row writes to a page that others held before the step."""
        length, count = self.spans[row]
        return count > 0 and length % self.shared.page_size > 0 and self.holders[row] > 1

    def need(self, row: int) -> int:
        """Return the pages that the row needs if all rows before it are served; asked in order."""
        length, count = self.spans[row]
        size = self.shared.page_size
        new = _pages_of(length + count, size) - _pages_of(length, size)
        if not self.is_shared(row):
            return new
        earlier = self.writers.get(self.pages[row], 0)
        self.writers[self.pages[row]] = earlier + 1
        return new + (self.holders[row] - earlier > 1)

    def serve(self, row: int, need: int, free: list[int]) -> list[int]:
        """Hand the row its pages, or refuse it; return the pages that are left."""
        if need == 0 and not self.is_shared(row):
            return free
        if self.refused or need > len(free):
            self.refused.add(row)
            return free
        length, count = self.spans[row]
        size, given = self.shared.page_size, free[:need]
        first = _pages_of(length, size)
        new = _pages_of(length + count, size) - first
        if need > new:
            self.copies[row] = (self.pages[row], given[0])
            self.entries.append((row, first - 1, given[0]))
        for column, page in enumerate(given[need - new :], first):
            self.entries.append((row, column, page))
        return free[need:]

    def close(self, needs: list[int]) -> tuple[PagePlan, Array]:
        """Return the plan, and the tokens of the rows that were refused."""
        shared = self.shared
        table_BC, count_A, wanted_B = (
            x.clone() for x in (shared.table_BC, shared.count_A, shared.wanted_B)
        )
        source_B, target_B, short_B = (torch.zeros_like(self.count_B) for _ in range(3))
        for row, column, page in self.entries:
            table_BC[row, column] = page
            count_A[page] = 1
        for row, (source, target) in self.copies.items():
            count_A[source] -= 1
            source_B[row], target_B[row] = source, target
        for row in self.refused:
            short_B[row], wanted_B[row] = self.spans[row][1], max(needs[row], 1)
        copied = shared.copied + len(self.copies)
        pages = Pages(table_BC, count_A, wanted_B, copied, shared.page_size)
        return PagePlan(pages, source_B, target_B), short_B


def _pages_of(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _replace_table(shared: Pages, table_BC: Array, wanted_B: Array) -> Pages:
    total = len(shared.count_A)
    change_A = occurrences(table_BC, total) - occurrences(shared.table_BC, total)
    return dataclasses.replace(
        shared, table_BC=table_BC, count_A=shared.count_A + change_A, wanted_B=wanted_B
    )
