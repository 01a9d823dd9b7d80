"""A subject that computes rightly and stores wrongly, one row of one layer at a time.

Letters: B rows, T new tokens, S slots, K key/value heads, H head width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.subjects.protocol import KV, SubjectInfo

NEEDS = {"cache", "kv", "kv_write"}


@dataclass(frozen=True)
class Written:
    """One row of one layer after a step; `keys_SKH` and `values_SKH` may be changed in place.

    Attributes:
        row: Of the batch.
        later: Whether the row held tokens before.
        keys_SKH: What is stored.
        values_SKH: What is stored.
        old: Slots that held tokens before, in the order of their positions.
        new: Slots of the step's tokens, in the order of their positions.
        before: The row's slots before the step, as far as there were so many.
    """

    row: int
    later: bool
    keys_SKH: NDArray
    values_SKH: NDArray
    old: NDArray
    new: NDArray
    before: tuple[NDArray, NDArray]

    @property
    def sides(self) -> tuple[NDArray, NDArray]:
        """Keys and values."""
        return self.keys_SKH, self.values_SKH


Write = Callable[[Written], None]


class Storing(Planted):
    """Changes what every step has stored, in all layers; `write(written)` edits one row."""

    def __init__(self, subject: Any, write: Write) -> None:
        super().__init__(subject)
        self.write = write

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step rightly, and store wrongly."""
        layers = range(self.facts.num_layers)
        before = [copied(self.inner.kv(held.state, layer)) for layer in layers]
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        state = held.state
        for layer in layers:
            after = copied(self.inner.kv(state, layer))
            for row in range(len(call.ids_BT)):
                self.write(written(row, before[layer], after))
            state = self.inner.with_kv(state, layer, after)
        return logits, held.advanced(state)


def copied(kv: KV) -> KV:
    """Return the same entries, of the subject's own class, in arrays that may be written to."""
    return replace(
        kv,
        keys_BSKH=np.array(kv.keys_BSKH),
        values_BSKH=np.array(kv.values_BSKH),
        position_BS=np.array(kv.position_BS),
        valid_BS=np.array(kv.valid_BS),
    )


def written(row: int, before: KV, after: KV) -> Written:
    """Return one row's slots, told apart by position: a ring may have moved them."""
    old, valid_S = before.position_BS[row][before.valid_BS[row]], after.valid_BS[row]
    last = old.max(initial=-1)
    slots = np.flatnonzero(valid_S)
    slots = slots[np.argsort(after.position_BS[row, slots], kind="stable")]
    is_new = after.position_BS[row, slots] > last
    blank = [np.zeros_like(x[row]) for x in (after.keys_BSKH, after.values_BSKH)]
    sides = zip(blank, (before.keys_BSKH, before.values_BSKH), strict=True)
    for side, was in sides:
        n = min(len(side), was.shape[1])
        side[:n] = np.where(before.valid_BS[row, :n, None, None], was[row, :n], 0)
    return Written(
        row,
        bool(old.size),
        after.keys_BSKH[row],
        after.values_BSKH[row],
        slots[~is_new],
        slots[is_new],
        (blank[0], blank[1]),
    )


def has_heads(info: SubjectInfo) -> str:
    """Return why heads cannot be confused; "" where there are several."""
    return "one head of keys has no other to be mixed with" if info.kv_heads == 1 else ""


class MainOnly(Storing):
    """Has its fault in the subject itself; its variants are right."""

    def variant(self, name: str) -> Any:
        """Return the right variant."""
        return self.inner.variant(name)
