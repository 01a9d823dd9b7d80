"""Rows before and after a gather: which entries stand in the new order, and which where they were.

Both are what the candidate itself holds, so that it also tells of codes, which no other cache has.
Letters: N entries in the order of the text, K key/value heads, H head width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import entries
from crosscheck.diagnosis.recorder import Event
from crosscheck.diagnosis.trial import Trial
from crosscheck.results import Diagnosis
from crosscheck.subjects.protocol import KV

SIDES = {"k": "keys_NKH", "v": "values_NKH"}


@dataclass(frozen=True)
class Disorder:
    """A gather after which entries do not stand as asked for.

    Attributes:
        layer: The first with such entries.
        part: "k" or "v".
        tokens: How many tokens the longest row held.
        moved: How many entries of all layers stand in the new order.
        left: How many stand where they were.
        inverse: How many stand in the inverse order.
        other: How many stand in none of these.
    """

    layer: int
    part: str
    tokens: int
    moved: int
    left: int
    inverse: int
    other: int


def disorder(trial: Trial) -> Disorder | None:
    """Return the first gather that did not put every entry in the order asked for."""
    for index, event in enumerate(trial.events):
        before = _before(trial.events, index) if event.verb == "gather" else None
        if before is not None and (found := _compared(before, event)) is not None:
            return found
    return None


def reordered(trial: Trial) -> Iterator[Diagnosis]:
    """After a gather some entries, or all, stand where they were, or in the inverse order."""
    found = disorder(trial)
    if found is None:
        return
    words = f"{found.left} entries stand where they were after the gather"
    if found.moved and found.left:
        yield Diagnosis("gather.partial", 0.92, f"{words}, {found.moved} in the new order")
    elif found.left:
        yield Diagnosis("gather.skipped", 0.9, f"all {words}")
    elif found.inverse and not found.other:
        words = "after the gather the rows stand in the inverse order"
        yield Diagnosis("gather.inverse", 0.9, words)


def _before(events: Sequence[Event], index: int) -> Event | None:
    """Return the event that made the state which a gather got; None where that can't be told."""
    asked = events[index]
    for event in events[:index][::-1]:
        if event.run == asked.run:
            return event if event.texts == asked.before and event.kv and asked.kv else None
    return None


def _compared(before: Event, after: Event) -> Disorder | None:
    rows = after.rows
    inverse = [int(i) for i in np.argsort(rows)] if sorted(rows) == list(range(len(rows))) else ()
    total = np.zeros(4, dtype=np.int64)
    first: tuple[int, str] | None = None
    for layer, (old, new) in enumerate(zip(before.kv, after.kv, strict=True)):
        for part in SIDES:
            counts = sum(
                (_stand(part, old, new, i, rows, inverse) for i in range(len(rows))),
                np.zeros(4, dtype=np.int64),
            )
            if first is None and counts[1:].any():
                first = layer, part
            total += counts
    if first is None:
        return None
    tokens = max(map(len, after.texts), default=0)
    return Disorder(*first, tokens, *(int(n) for n in total))


def _stand(
    part: str, old: KV, new: KV, row: int, rows: Sequence[int], inverse: Sequence[int]
) -> NDArray:
    """Count one row's entries: moved, left, inverse, other; those that tell nothing are moved."""
    ours = getattr(entries(new, row), SIDES[part])
    moved = _same(ours, old, part, rows[row])
    left = _same(ours, old, part, row) & ~moved
    turned = _same(ours, old, part, inverse[row] if inverse else None) & ~moved & ~left
    other = ~(moved | left | turned)
    told = moved & ~_same(ours, old, part, row)
    return np.array([told.sum(), left.sum(), turned.sum(), other.sum()])


def _same(ours_NKH: NDArray, old: KV, part: str, row: int | None) -> NDArray:
    """Return bool [N]: which entries are bit for bit those of that row before the gather."""
    if row is None or row >= len(old.keys_BSKH):
        return np.zeros(len(ours_NKH), dtype=np.bool_)
    theirs = getattr(entries(old, row), SIDES[part])
    if theirs.shape != ours_NKH.shape:
        return np.zeros(len(ours_NKH), dtype=np.bool_)
    same = np.asarray(ours_NKH == theirs).reshape(len(ours_NKH), -1)
    return np.asarray(same.all(axis=1))
