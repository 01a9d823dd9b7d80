"""A right cached subject made of a forward without a cache: each step computes all anew.

It is where faults are planted when nobody gave a second model: the candidate's own uncached forward
is right, and `positions=` and `visible=` reach into it.
Letters: B rows, T tokens of a call, S tokens held, N all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.reach import reach
from crosscheck.diagnosis.recorder import real_tokens
from crosscheck.errors import Refused
from crosscheck.subjects.protocol import SubjectInfo, describe
from crosscheck.subjects.remembered import Remembered

GIVEN = frozenset(
    {"cache", "chunk", "capacity", "rollback", "gather", "fork", "grow", "persistent"}
)
KEPT = frozenset({"rope", "f64", "cross"})


@dataclass(frozen=True)
class Row:
    """One row's real tokens: ids, where they stand, and which earlier ones each may read.

    sees[i] is None where token i follows the model's own rule.
    """

    ids: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    sees: tuple[NDArray | None, ...] = ()
    own: bool = True

    def cut(self, length: int) -> "Row":
        """Return the row with its first tokens only."""
        ids, positions = self.ids[:length], self.positions[:length]
        own = positions == tuple(range(len(positions)))
        return Row(ids, positions, self.sees[:length], own)


@dataclass(frozen=True)
class History:
    """The rows, the room, and what `init` was given besides."""

    rows: tuple[Row, ...]
    capacity: int | None
    options: dict[str, Any]


class Rebuilt:
    """The subject whose cache is its tokens."""

    def __init__(self, subject: Any) -> None:
        self.inner = Remembered(subject)
        facts = describe(subject)
        # Padding is left out before it gets to full, so that no mask is needed for it.
        kept = (facts.capabilities & KEPT) | reach(subject) | {"left_pad", "right_pad", "count"}
        self.info: SubjectInfo = replace(
            facts, name=f"{facts.name} rebuilt", capabilities=frozenset(kept | GIVEN), variants=()
        )

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return the subject's own logits of whole texts."""
        return self.inner.full(ids, **options)

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> History:
        """Return an empty state."""
        return History((Row(),) * batch, capacity, options)

    def step(self, state: History, ids: NDArray, **options: Any) -> tuple[NDArray, History]:
        """Return the logits of the next tokens, out of one forward over all of them."""
        ids_BT = np.asarray(ids)
        real_BT = real_tokens(ids_BT, options)
        rows = tuple(
            _fed(row, b, ids_BT[b], real_BT[b], options) for b, row in enumerate(state.rows)
        )
        longest = max(len(row.ids) for row in rows)
        if state.capacity is not None and longest > state.capacity:
            raise Refused(f"step: {longest} tokens exceed the capacity {state.capacity}.")
        logits_BNV = self._forward(rows, state.options)
        logits_BTV = np.zeros((*ids_BT.shape, logits_BNV.shape[-1]), logits_BNV.dtype)
        for b, (old, new) in enumerate(zip(state.rows, rows, strict=True)):
            logits_BTV[b, real_BT[b]] = logits_BNV[b, len(old.ids) : len(new.ids)]
        return logits_BTV, replace(state, rows=rows)

    def _forward(self, rows: tuple[Row, ...], given: dict[str, Any]) -> NDArray:
        n = max(1, *(len(row.ids) for row in rows))
        ids_BN = np.full((len(rows), n), self.info.first_id, dtype=np.int32)
        position_BN = np.tile(np.arange(n), (len(rows), 1))
        for b, row in enumerate(rows):
            ids_BN[b, : len(row.ids)] = row.ids
            position_BN[b, : len(row.ids)] = row.positions
        options = dict(given)
        if not all(row.own for row in rows):
            options["positions"] = position_BN
        if any(sees is not None for row in rows for sees in row.sees):
            options["visible"] = np.stack([_visible(row, n, self.info) for row in rows])
        # Padding on the right is not read by what stands before it: no mask is needed.
        return np.asarray(self.inner.full(ids_BN, **options))

    def length(self, state: History) -> NDArray:
        """Return how many tokens each row holds."""
        return np.array([len(row.ids) for row in state.rows])

    def rollback(self, state: History, length: NDArray) -> History:
        """Return the state with the first tokens of each row."""
        length_B = np.broadcast_to(np.asarray(length), (len(state.rows),)).tolist()
        rows = tuple(row.cut(n) for row, n in zip(state.rows, length_B, strict=True))
        return replace(state, rows=rows)

    def gather(self, state: History, rows: Sequence[int] | NDArray) -> History:
        """Return the state with the rows in this order."""
        return replace(state, rows=tuple(state.rows[int(row)] for row in rows))

    def fork(self, state: History) -> History:
        """Return the state: it is never changed."""
        return state

    def grow(self, state: History, capacity: int) -> History:
        """Return the state with another room."""
        return replace(state, capacity=capacity)

    def __getattr__(self, name: str) -> Any:
        if name == "encoder_inputs":
            return self.inner.encoder_inputs
        raise AttributeError(name)


def _fed(row: Row, b: int, ids_T: NDArray, real_T: NDArray, options: dict[str, Any]) -> Row:
    start, new = len(row.ids), [int(i) for i in ids_T[real_T]]
    positions = tuple(range(start, start + len(new)))
    if options.get("positions") is not None:
        positions = tuple(int(p) for p in np.asarray(options["positions"])[b][real_T])
    sees: list[NDArray | None] = [None] * len(new)
    if options.get("visible") is not None:
        sees = list(np.asarray(options["visible"], dtype=np.bool_)[b][real_T])
    own = row.own and positions == tuple(range(start, start + len(new)))
    return Row((*row.ids, *new), (*row.positions, *positions), (*row.sees, *sees), own)


def _visible(row: Row, n: int, info: SubjectInfo) -> NDArray:
    """Return bool [N, N]: what each token reads, the causal rule and a common window by default."""
    windows = set(info.windows)
    window = windows.pop() if len(windows) == 1 else None
    age_NN = np.arange(n)[:, None] - np.arange(n)
    visible_NN = (age_NN >= 0) & (age_NN < (window or n))
    for i, sees in enumerate(row.sees):
        if sees is not None:
            visible_NN[i] = False
            visible_NN[i, : len(sees)] = sees[:n]
    return visible_NN
