"""Other layouts of the same store: heads before slots, and pages shared until they are written.

Letters: B rows, T tokens of one row, S slots, K key/value heads, H head width, P slots of a page.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import Refused
from crosscheck.subjects.protocol import KV
from tests.toys.stores import Contiguous, Store, View


@dataclass(frozen=True)
class HeadsFirst(Contiguous):
    """The contiguous store with its buffers as [B, K, S, H]; the fields' names say otherwise."""

    def write(self, row: int, start: int, k_TKH: NDArray, v_TKH: NDArray) -> tuple[View, Store]:
        view, plain = self._plain().write(row, start, k_TKH, v_TKH)
        return view, from_plain(plain)

    def view(self, row: int) -> View:
        return self._plain().view(row)

    def grow(self, capacity: int) -> Contiguous:
        return from_plain(self._plain().grow(capacity))

    def kv(self) -> KV:
        return self._plain().kv()

    def with_kv(self, kv: KV) -> Store:
        return from_plain(self._plain().with_kv(kv))

    def _plain(self) -> Contiguous:
        k, v = self.k_BSKH.swapaxes(1, 2), self.v_BSKH.swapaxes(1, 2)
        return Contiguous(k, v, self.index_BS, self.fixed)


def from_plain(plain: Contiguous) -> HeadsFirst:
    """Return a contiguous store with its heads first."""
    k, v = plain.k_BSKH.swapaxes(1, 2), plain.v_BSKH.swapaxes(1, 2)
    return HeadsFirst(np.ascontiguousarray(k), np.ascontiguousarray(v), plain.index_BS, plain.fixed)


Tables = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Paged:
    """A pool of pages, a table of them for each row, and how many tokens each row holds.

    A page in several tables is copied before it is written.
    """

    pool_k: NDArray
    pool_v: NDArray
    tables: Tables
    held: tuple[int, ...]
    capacity: int | None

    @property
    def page(self) -> int:
        return self.pool_k.shape[1]

    def write(self, row: int, start: int, k_TKH: NDArray, v_TKH: NDArray) -> "tuple[View, Paged]":
        end = start + len(k_TKH)
        if self.capacity is not None and end > self.capacity:
            raise Refused(
                f"step: row {row} would hold {end} tokens, the capacity is {self.capacity}. "
                f"Raise it by {end - self.capacity}."
            )
        store = self
        for number in range(start // self.page, -(-end // self.page)):
            store = store.own(row, number)
        k, v = store.pool_k.copy(), store.pool_v.copy()
        for t in range(len(k_TKH)):
            page, slot = store.tables[row][(start + t) // self.page], (start + t) % self.page
            k[page, slot], v[page, slot] = k_TKH[t], v_TKH[t]
        held = tuple(end if b == row else n for b, n in enumerate(store.held))
        new = replace(store, pool_k=k, pool_v=v, held=held)
        return new.view(row), new

    def own(self, row: int, number: int) -> "Paged":
        """Return the store whose row has a page of its own as its page `number`."""
        table = self.tables[row]
        uses = Counter(page for each in self.tables for page in each)
        if number < len(table) and uses[table[number]] == 1:
            return self
        store, new = self.fresh(uses)
        if number < len(table):
            store = store.copied(table[number], new)
        table = (*table[:number], new, *table[number + 1 :])
        return replace(store, tables=(*self.tables[:row], table, *self.tables[row + 1 :]))

    def fresh(self, uses: Counter[int]) -> "tuple[Paged, int]":
        """Return the store and a page that no table holds."""
        free = [page for page in range(len(self.pool_k)) if not uses[page]]
        if free:
            return self, free[0]
        more = [(0, 2), (0, 0), (0, 0), (0, 0)]
        pool_k, pool_v = np.pad(self.pool_k, more), np.pad(self.pool_v, more)
        return replace(self, pool_k=pool_k, pool_v=pool_v), len(self.pool_k)

    def copied(self, old: int, new: int) -> "Paged":
        """Return the store with one page's contents in another."""
        k, v = self.pool_k.copy(), self.pool_v.copy()
        k[new], v[new] = k[old], v[old]
        return replace(self, pool_k=k, pool_v=v)

    def view(self, row: int) -> View:
        pages, held = list(self.tables[row]), self.held[row]
        shape = (-1, *self.pool_k.shape[2:])
        k = self.pool_k[pages].reshape(shape)[:held]
        v = self.pool_v[pages].reshape((-1, *self.pool_v.shape[2:]))[:held]
        return View(k, v, np.arange(held))

    def permuted(self, seed: int) -> "Paged":
        """Return the store with its pages in another order."""
        order = np.random.default_rng(seed).permutation(len(self.pool_k))
        place = np.argsort(order)
        tables = tuple(tuple(int(place[page]) for page in each) for each in self.tables)
        return replace(self, pool_k=self.pool_k[order], pool_v=self.pool_v[order], tables=tables)

    def grow(self, capacity: int) -> "Paged":
        return self if self.capacity is None else replace(self, capacity=capacity)

    def cut(self, length_B: NDArray) -> "Paged":
        pages = [-(-int(n) // self.page) for n in length_B]
        tables = tuple(each[:n] for each, n in zip(self.tables, pages, strict=True))
        return replace(self, tables=tables, held=tuple(int(n) for n in length_B))

    def take(self, rows: Sequence[int]) -> "Paged":
        return replace(
            self,
            tables=tuple(self.tables[r] for r in rows),
            held=tuple(self.held[r] for r in rows),
        )

    def kv(self) -> KV:
        slots = max(self.held, default=0)
        k = np.zeros((len(self.held), slots, *self.pool_k.shape[2:]), self.pool_k.dtype)
        v = np.zeros((len(self.held), slots, *self.pool_v.shape[2:]), self.pool_v.dtype)
        index = np.full((len(self.held), slots), -1)
        for row, n in enumerate(self.held):
            k[row, :n], v[row, :n], index[row, :n] = self.view(row)
        return KV(k, v, index, index >= 0)

    def with_kv(self, kv: KV) -> "Paged":
        store = replace(self, tables=((),) * len(self.held), held=(0,) * len(self.held))
        for row in range(len(self.held)):
            n = int(kv.valid_BS[row].sum())
            _, store = store.write(row, 0, kv.keys_BSKH[row, :n], kv.values_BSKH[row, :n])
        return store


def empty_pages(
    batch: int, capacity: int | None, shape: tuple[int, int, int], dtype: np.dtype, page: int
) -> Paged:
    """Return an empty paged store."""
    kv_heads, head, value = shape
    pool_k = np.zeros((2, page, kv_heads, head), dtype)
    pool_v = np.zeros((2, page, kv_heads, value), dtype)
    return Paged(pool_k, pool_v, ((),) * batch, (0,) * batch, capacity)
