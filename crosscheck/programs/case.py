"""A case: token ids, a partition of them, and operations on the cache; plain data.

Letters: B rows, T tokens.
"""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Append:
    """Feed the next n tokens of every row in one step."""

    n: int


@dataclass(frozen=True)
class AppendRagged:
    """Feed counts[b] tokens of row b in one step, padded to the largest."""

    counts: tuple[int, ...]


@dataclass(frozen=True)
class Rollback:
    """Keep only the first `to` tokens of every row (an int), or of each row (a tuple)."""

    to: int | tuple[int, ...]


@dataclass(frozen=True)
class Gather:
    """Row i becomes the old row rows[i]."""

    rows: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """Keep a second state, step on it with other tokens, and drop it."""

    n: int


@dataclass(frozen=True)
class Pad:
    """Feed n tokens that are not real, on one side of the real ones of the next append."""

    side: str
    n: int


@dataclass(frozen=True)
class Grow:
    """Raise the room to this capacity."""

    capacity: int


@dataclass(frozen=True)
class PermutePages:
    """Lay the pages in another order."""

    seed: int


@dataclass(frozen=True)
class Speculate:
    """Feed k drafted tokens, then keep `accepted` of them."""

    k: int
    accepted: int


Op = Append | AppendRagged | Rollback | Gather | Fork | Pad | Grow | PermutePages | Speculate


@dataclass(frozen=True)
class Case:
    """What one relation is run on.

    Attributes:
        ids: int32 [B, T], the texts.
        ops: The program of the left side; () where the relation makes its own.
        lengths: int [B], real tokens of each row, where rows differ.
        capacity: Room of the cache; None lets the runner choose.
        seed: Of everything else that is drawn.
        meta: JSON data of the relation (pad ids, a shift, ...).
    """

    ids: NDArray
    ops: tuple[Op, ...] = ()
    lengths: tuple[int, ...] = ()
    capacity: int | None = None
    seed: int = 0
    meta: dict[str, Any] = field(default_factory=dict)
