"""Which operations may come next: legal for the rows as they stand, and for the subject.

Letters: B rows.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Fork,
    Gather,
    Grow,
    Pad,
    PermutePages,
    Rollback,
    Speculate,
)
from crosscheck.programs.model import Rows
from crosscheck.relations.drive import room_for
from crosscheck.subjects.protocol import SubjectInfo

BATCHES = (2, 3)
# A compiled subject compiles anew for each of them.
COMPILED_BATCHES = (3,)
LONGEST = 24


@dataclass(frozen=True)
class Limits:
    """How far generated programs go on one subject.

    Attributes:
        capabilities: What it declares.
        longest: Tokens that a row may ever hold, those not real included.
        chunk: The longest step.
        room_back: Tokens that may be taken back once the smallest window has filled; None for any
            number.
        window: The smallest window; None without one.
        batches: How many rows there may be.
        room: Of the cache: exactly the longest row.
        grown: Of the cache when it grows: what other relations ask for as well.
    """

    capabilities: frozenset[str]
    longest: int
    chunk: int
    room_back: int | None
    window: int | None
    batches: tuple[int, ...]
    room: int
    grown: int

    @classmethod
    def of(cls, subject: object, info: SubjectInfo) -> "Limits":
        """Return the limits: past every small window, inside the model's positions."""
        windows = [w for w in info.windows if w is not None]
        wanted = max([LONGEST, *(w + w // 2 + 3 for w in windows if w <= 2 * LONGEST)])
        longest = min(wanted, info.max_positions or wanted)
        compiled = info.framework == "jax"
        return cls(
            info.capabilities,
            longest,
            8,
            getattr(subject, "rollback_room", 0 if windows else None),
            min(windows, default=None),
            COMPILED_BATCHES if compiled else BATCHES,
            longest,
            room_for(info, longest),
        )

    def lowest(self, held: int) -> int:
        """Return how far back a row may go once any row has held so many tokens."""
        if self.room_back is None or (self.window is not None and held < self.window):
            return 0
        return max(0, held - self.room_back)


def legal(limits: Limits, rows: Rows, held: int) -> dict[str, st.SearchStrategy[Any]]:
    """Return what may come next, by kind; nothing is taken back, copied or grown before the first.

    Args:
        limits: Of the subject.
        rows: As they stand.
        held: The most tokens that any row has held so far.
    """
    found = {"append": appends(limits, rows)}
    if rows.pad is None:
        found |= {"ragged": raggeds(limits, rows), "pad": pads(limits, rows)}
    if rows.pad is None and any(rows.lengths):
        found |= {
            "rollback": rollbacks(limits, rows, held),
            "gather": gathers(limits, rows),
            "fork": forks(limits, rows),
            "speculate": speculations(limits, rows, held),
            "grow": grows(limits),
            "pages": permutations(limits),
        }
    return {kind: options for kind, options in found.items() if options is not None}


def appends(limits: Limits, rows: Rows) -> st.SearchStrategy[Append] | None:
    """Return how many tokens may be fed to every row."""
    most = _most(limits, rows)
    return st.integers(1, most).map(Append) if most else None


def raggeds(limits: Limits, rows: Rows) -> st.SearchStrategy[AppendRagged] | None:
    """Return how many tokens may be fed to each row."""
    most = _most(limits, rows)
    if not most or "count" not in limits.capabilities:
        return None
    each = st.lists(st.integers(0, most), min_size=len(rows.texts), max_size=len(rows.texts))
    return each.filter(any).map(lambda counts: AppendRagged(tuple(counts)))


def rollbacks(limits: Limits, rows: Rows, held: int) -> st.SearchStrategy[Rollback] | None:
    """Return lengths to go back to.

    Args:
        limits: Of the subject.
        rows: As they stand.
        held: The most tokens that any row has held so far.
    """
    if "rollback" not in limits.capabilities or not all(rows.lengths):
        return None
    lowest = limits.lowest(held + rows.padded)
    if lowest > min(rows.lengths):
        return None
    same = st.integers(lowest, min(rows.lengths)).map(Rollback)
    if "count" not in limits.capabilities:
        return same
    each = st.tuples(*(st.integers(lowest, most) for most in rows.lengths))
    return same | each.map(Rollback)


def gathers(limits: Limits, rows: Rows) -> st.SearchStrategy[Gather] | None:
    """Return orders of rows, with repeats, of a few batch sizes."""
    if "gather" not in limits.capabilities:
        return None
    row = st.integers(0, len(rows.texts) - 1)
    sizes = st.sampled_from(limits.batches)
    orders = sizes.flatmap(lambda n: st.lists(row, min_size=n, max_size=n))
    return orders.map(lambda order: Gather(tuple(order)))


def forks(limits: Limits, rows: Rows) -> st.SearchStrategy[Fork] | None:
    """Return how many other tokens a second state takes."""
    most = min(_most(limits, rows), 3)
    if "fork" not in limits.capabilities or not most:
        return None
    return st.integers(1, most).map(Fork)


def pads(limits: Limits, rows: Rows) -> st.SearchStrategy[Pad] | None:
    """Return padding for the first append, the one place where every loop puts it."""
    # Without counts, padding on the right is for a last step: what follows it is not promised.
    able = limits.capabilities
    sides = ["left"] if "left_pad" in able else []
    sides += ["right"] if {"right_pad", "count"} <= able else []
    room = min(3, limits.longest - 1)
    if any(rows.lengths) or rows.pad is not None or not sides or room < 1:
        return None
    return st.builds(Pad, st.sampled_from(sides), st.integers(1, room))


def speculations(limits: Limits, rows: Rows, held: int) -> st.SearchStrategy[Speculate] | None:
    """Return drafts, and how much of them is kept."""
    most = min(_most(limits, rows), 3)
    if not {"rollback", "chunk"} <= limits.capabilities or not most or not all(rows.lengths):
        return None
    lowest = limits.lowest(max(held, max(rows.lengths) + most) + rows.padded)
    least = max(0, lowest - min(rows.lengths))
    return st.integers(1, most).flatmap(
        lambda k: st.integers(min(k, least), k).map(lambda kept: Speculate(k, kept))
    )


def grows(limits: Limits) -> st.SearchStrategy[Grow] | None:
    """Return more room, by one amount: each capacity is compiled anew."""
    if "grow" not in limits.capabilities or limits.grown <= limits.room:
        return None
    return st.just(Grow(limits.grown))


def permutations(limits: Limits) -> st.SearchStrategy[PermutePages] | None:
    """Return another order of the pages."""
    if "paged" not in limits.capabilities:
        return None
    return st.integers(0, 3).map(PermutePages)


def _most(limits: Limits, rows: Rows) -> int:
    """Return the longest step that is legal now; 0 when the rows are full."""
    owed = 0 if rows.pad is None else rows.pad.n
    left = limits.longest - max(rows.lengths) - rows.padded - owed
    started = any(rows.lengths)
    return max(0, min(left, limits.chunk if "chunk" in limits.capabilities or not started else 1))
