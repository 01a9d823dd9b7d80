"""Faults of reordering, repeating and leaving out rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.planted import Held, Planted, reordered
from crosscheck.faults.registry import fault
from crosscheck.faults.storing import copied
from crosscheck.subjects.protocol import KV


class Partial(Planted):
    """Reorders some of what a row holds: `keep(old, new)` gives the entries that result."""

    def __init__(self, subject: Any, *, values: bool) -> None:
        super().__init__(subject)
        self.values = values

    def gather(self, held: Held, rows: Sequence[int] | NDArray) -> Held:
        """Reorder the rows, and put back a part of what stood there."""
        layers = range(self.facts.num_layers)
        before = [copied(self.inner.kv(held.state, layer)) for layer in layers]
        held = super().gather(held, rows)
        state = held.state
        for layer in layers:
            after = self.put_back(before[layer], copied(self.inner.kv(state, layer)))
            state = self.inner.with_kv(state, layer, after)
        return held.advanced(state)

    def put_back(self, old: KV, new: KV) -> KV:
        """Return the reordered entries with the values, or all but the newest, as they were."""
        rows = range(min(len(old.keys_BSKH), len(new.keys_BSKH)))
        for row in rows:
            both_S = new.valid_BS[row] & old.valid_BS[row]
            if not self.values:
                both_S &= new.position_BS[row] < new.position_BS[row][new.valid_BS[row]].max(
                    initial=0
                )
                new.keys_BSKH[row, both_S] = old.keys_BSKH[row, both_S]
            new.values_BSKH[row, both_S] = old.values_BSKH[row, both_S]
        return new


NEEDS = {"cache", "gather", "kv", "kv_write"}


@fault(
    name="gather.partial",
    needs=NEEDS,
    kinds="J",
    shows="write",
    advice="Look at whether keys and values are both reordered.",
)
def gather_partial(subject: Any) -> Planted:
    """Reordering rows moves their keys and leaves their values."""
    return Partial(subject, values=True)


@fault(
    name="gather.partial.old",
    needs=NEEDS,
    kinds="IJ",
    shows="write",
    advice="Look at whether all stores of a layer are reordered: codes as well as exact tokens.",
)
def gather_partial_old(subject: Any) -> Planted:
    """Reordering rows moves their newest token and leaves the older ones."""
    return Partial(subject, values=False)


class Skipped(Planted):
    """Leaves the rows where they are."""

    def gather(self, held: Held, rows: Sequence[int] | NDArray) -> Held:
        """Return as many rows as asked for, in the old order."""
        batch = len(held.texts)
        order = [row % batch for row in range(len(rows))]
        state = (
            held.state
            if order == list(range(batch))
            else self.inner.gather(held.state, np.array(order))
        )
        return reordered(held.advanced(state), rows)


@fault(
    name="gather.skipped",
    needs={"cache", "gather"},
    kinds="J",
    shows="bookkeeping",
    advice="Look at whether the reordered cache is the one that the next step gets.",
)
def gather_skipped(subject: Any) -> Planted:
    """Rows are not reordered."""
    return Skipped(subject)


class Inverse(Planted):
    """Sends row i to place rows[i] instead of taking row rows[i] to place i."""

    def gather(self, held: Held, rows: Sequence[int] | NDArray) -> Held:
        """Reorder by the inverse, where there is one."""
        order = np.asarray(rows)
        if sorted(order.tolist()) != list(range(len(held.texts))):
            return super().gather(held, rows)
        state = self.inner.gather(held.state, np.argsort(order))
        return reordered(held.advanced(state), rows)


@fault(
    name="gather.inverse",
    needs={"cache", "gather"},
    kinds="J",
    shows="bookkeeping",
    advice="Look for a scatter in place of a gather: out[rows] = x against x[rows].",
)
def gather_inverse(subject: Any) -> Planted:
    """Rows are reordered by the inverse permutation."""
    return Inverse(subject)
