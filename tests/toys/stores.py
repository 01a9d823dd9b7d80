"""How one layer keeps its keys and values: a buffer with one slot a token, or a ring.

A store is frozen: every verb returns a new one, and old ones answer as before. `index` is where a
slot's token stands in its row's text, -1 for an empty slot.
Letters: B rows, T tokens of one row, S slots, K key/value heads, H head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import Refused
from crosscheck.subjects.protocol import KV


class View(NamedTuple):
    """What one row's queries may read: earlier tokens and those of this call."""

    k_SKH: NDArray
    v_SKH: NDArray
    index_S: NDArray


@dataclass(frozen=True)
class Contiguous:
    """Slot s of row b holds token s; fixed room, or room that grows."""

    k_BSKH: NDArray
    v_BSKH: NDArray
    index_BS: NDArray
    fixed: bool

    def write(self, row: int, start: int, k_TKH: NDArray, v_TKH: NDArray) -> "tuple[View, Store]":
        """Return what the row's queries read, and the store with T tokens more."""
        end = start + len(k_TKH)
        store = self if self.fixed else self.grow(end)
        if end > store.index_BS.shape[1]:
            raise Refused(
                f"step: row {row} would hold {end} tokens, the capacity is "
                f"{store.index_BS.shape[1]}. Raise it by {end - store.index_BS.shape[1]}."
            )
        k, v, index = store.k_BSKH.copy(), store.v_BSKH.copy(), store.index_BS.copy()
        k[row, start:end], v[row, start:end] = k_TKH, v_TKH
        index[row, start:end] = np.arange(start, end)
        new = replace(store, k_BSKH=k, v_BSKH=v, index_BS=index)
        return new.view(row), new

    def view(self, row: int) -> View:
        """Return what a row holds."""
        held = self.index_BS[row] >= 0
        return View(self.k_BSKH[row, held], self.v_BSKH[row, held], self.index_BS[row, held])

    def grow(self, capacity: int) -> "Contiguous":
        """Return the store with at least this room."""
        more = capacity - self.index_BS.shape[1]
        if more <= 0:
            return self
        wider = [(0, 0), (0, more), (0, 0), (0, 0)]
        return replace(
            self,
            k_BSKH=np.pad(self.k_BSKH, wider),
            v_BSKH=np.pad(self.v_BSKH, wider),
            index_BS=np.pad(self.index_BS, wider[:2], constant_values=-1),
        )

    def cut(self, length_B: NDArray) -> "Store":
        """Return the store without the tokens at and after length[b]."""
        keep = self.index_BS < length_B[:, None]
        return replace(self, index_BS=np.where(keep, self.index_BS, -1))

    def take(self, rows: Sequence[int]) -> "Store":
        """Return the store whose row i is the old rows[i]."""
        rows = list(rows)
        return replace(
            self, k_BSKH=self.k_BSKH[rows], v_BSKH=self.v_BSKH[rows], index_BS=self.index_BS[rows]
        )

    def kv(self) -> KV:
        """Return everything that is stored, empty slots too."""
        return KV(self.k_BSKH.copy(), self.v_BSKH.copy(), self.index_BS.copy(), self.index_BS >= 0)

    def with_kv(self, kv: KV) -> "Store":
        """Return the store with these contents."""
        index = np.where(kv.valid_BS, kv.position_BS, -1)
        return replace(self, k_BSKH=kv.keys_BSKH, v_BSKH=kv.values_BSKH, index_BS=index)


@dataclass(frozen=True)
class Ring(Contiguous):
    """Token s in slot s mod S, S = window + slack: the oldest token makes room for the newest."""

    window: int = 0

    def write(self, row: int, start: int, k_TKH: NDArray, v_TKH: NDArray) -> "tuple[View, Store]":
        """Return what the row's queries read, and the store with T tokens more."""
        old, end = self.view(row), start + len(k_TKH)
        # A chunk's first queries still need what its last tokens displace.
        view = View(
            np.concatenate([old.k_SKH, k_TKH]),
            np.concatenate([old.v_SKH, v_TKH]),
            np.concatenate([old.index_S, np.arange(start, end)]),
        )
        k, v, index = self.k_BSKH.copy(), self.v_BSKH.copy(), self.index_BS.copy()
        for t in range(max(0, len(k_TKH) - index.shape[1]), len(k_TKH)):
            slot = (start + t) % index.shape[1]
            k[row, slot], v[row, slot], index[row, slot] = k_TKH[t], v_TKH[t], start + t
        return view, replace(self, k_BSKH=k, v_BSKH=v, index_BS=index)

    def grow(self, capacity: int) -> "Contiguous":
        """Return the store itself: a ring needs no more room."""
        return self

    def cut(self, length_B: NDArray) -> "Store":
        """Return the store without the last tokens, where what the window needs is still held."""
        for row, length in enumerate(length_B):
            needed = set(range(max(0, length - self.window + 1), length))
            if gone := needed - set(self.index_BS[row].tolist()):
                raise Refused(
                    f"rollback: row {row} to {length} needs token {min(gone)}, which the ring of "
                    f"{self.index_BS.shape[1]} slots has evicted. Ask for more slack."
                )
        return super().cut(length_B)


Store = Contiguous


def empty(
    batch: int,
    capacity: int | None,
    shape: tuple[int, int, int],
    dtype: np.dtype,
    *,
    window: int | None,
    slack: int,
) -> Store:
    """Return an empty store of K heads with key width H and value width Hv, a ring for a window."""
    kv_heads, head, value = shape
    slots = (capacity or 0) if window is None else window + slack
    k = np.zeros((batch, slots, kv_heads, head), dtype)
    v = np.zeros((batch, slots, kv_heads, value), dtype)
    index = np.full((batch, slots), -1)
    if window is None:
        return Contiguous(k, v, index, capacity is not None)
    return Ring(k, v, index, capacity is not None, window)
