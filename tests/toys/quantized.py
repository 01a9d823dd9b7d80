"""A quantized store: codes with a scale and a zero point a token and head, the last tokens exact.

Letters: B rows, T tokens of one row, S slots, K key/value heads, H head width.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import KV
from tests.toys.stores import Contiguous, Store, View

BITS, RESIDUAL = 14, 4


def quantize(x_SKH: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return codes, scale and zero point: x is about code * scale + zero."""
    zero = x_SKH.min(axis=-1, keepdims=True)
    scale = (x_SKH.max(axis=-1, keepdims=True) - zero) / (2**BITS - 1)
    scale = np.where(scale == 0, 1, scale)
    return np.round((x_SKH - zero) / scale).astype(np.uint16), scale, zero


def dequantize(code: NDArray, scale: NDArray, zero: NDArray) -> NDArray:
    """Return what the codes stand for."""
    return code.astype(scale.dtype) * scale + zero


@dataclass(frozen=True)
class Quantized(Contiguous):
    """Contiguous slots whose tokens, once `RESIDUAL` newer ones stand behind them, become codes."""

    done_BS: NDArray
    coded: tuple[tuple[NDArray, ...], ...]

    def write(self, row: int, start: int, k_TKH: NDArray, v_TKH: NDArray) -> tuple[View, Store]:
        _, plain = super().write(row, start, k_TKH, v_TKH)
        assert isinstance(plain, Quantized)
        new = plain.flushed(row, start + len(k_TKH) - RESIDUAL)
        return new.view(row), new

    def flushed(self, row: int, end: int) -> "Quantized":
        """Return the store with this row's tokens before `end` as codes."""
        todo_S = (self.index_BS[row] >= 0) & (self.index_BS[row] < end) & ~self.done_BS[row]
        coded = tuple(
            tuple(
                _put(old, row, todo_S, new)
                for old, new in zip(side, quantize(x[row, todo_S]), strict=True)
            )
            for side, x in zip(self.coded, (self.k_BSKH, self.v_BSKH), strict=True)
        )
        done = self.done_BS.copy()
        done[row] |= todo_S
        exact = [np.where(done[..., None, None], 0, x) for x in (self.k_BSKH, self.v_BSKH)]
        return replace(self, k_BSKH=exact[0], v_BSKH=exact[1], done_BS=done, coded=coded)

    def read(self) -> tuple[NDArray, NDArray]:
        """Return all keys and values, decoded where they are codes."""
        done = self.done_BS[..., None, None]
        k, v = (dequantize(*side) for side in self.coded)
        return np.where(done, k, self.k_BSKH), np.where(done, v, self.v_BSKH)

    def view(self, row: int) -> View:
        held = self.index_BS[row] >= 0
        k, v = self.read()
        return View(k[row, held], v[row, held], self.index_BS[row, held])

    def grow(self, capacity: int) -> "Quantized":
        more = capacity - self.index_BS.shape[1]
        grown = super().grow(capacity)
        if more <= 0:
            return self
        wider = [(0, 0), (0, more), (0, 0), (0, 0)]
        coded = tuple(tuple(np.pad(x, wider) for x in side) for side in self.coded)
        return replace(grown, done_BS=np.pad(self.done_BS, wider[:2]), coded=coded)

    def cut(self, length_B: NDArray) -> Store:
        new = super().cut(length_B)
        return replace(new, done_BS=self.done_BS & (new.index_BS >= 0))

    def take(self, rows) -> Store:
        rows = list(rows)
        coded = tuple(tuple(x[rows] for x in side) for side in self.coded)
        return replace(super().take(rows), done_BS=self.done_BS[rows], coded=coded)

    def kv(self) -> KV:
        return KV(*self.read(), self.index_BS.copy(), self.index_BS >= 0)

    def with_kv(self, kv: KV) -> Store:
        new = super().with_kv(kv)
        return replace(new, done_BS=np.zeros_like(self.done_BS))


def _put(old: NDArray, row: int, at_S: NDArray, new: NDArray) -> NDArray:
    out = old.copy()
    out[row, at_S] = new
    return out


def empty_quantized(
    batch: int, capacity: int | None, shape: tuple[int, int, int], dtype: np.dtype
) -> Quantized:
    """Return an empty quantized store."""
    kv_heads, head, value = shape
    slots = capacity or 0

    def coded(width: int) -> tuple[NDArray, ...]:
        one = (batch, slots, kv_heads, 1)
        codes = np.zeros((*one[:3], width), np.uint16)
        return codes, np.zeros(one, dtype), np.zeros(one, dtype)

    return Quantized(
        np.zeros((batch, slots, kv_heads, head), dtype),
        np.zeros((batch, slots, kv_heads, value), dtype),
        np.full((batch, slots), -1),
        capacity is not None,
        np.zeros((batch, slots), bool),
        (coded(head), coded(value)),
    )
