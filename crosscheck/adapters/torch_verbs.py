"""What a torch module's cache can do by verbs of its own.

Letters: B rows, S tokens fed so far.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_tools as tools
from crosscheck.errors import Refused

CROPS = ("crop", "rollback", "truncate", "rewind")
GATHERS = ("batch_select_indices", "reorder_cache", "gather", "reorder", "index_select")


@dataclass(frozen=True)
class Fed:
    """A module's cache, how many tokens of every row were fed into it, and which are real.

    Attributes:
        cache: The module's.
        fed: Tokens of every row, padding included.
        capacity: The room that was asked for, where the cache has a fixed one.
        real_BS: Which tokens are real; None while all are.
    """

    cache: Any
    fed: int
    capacity: int | None = None
    real_BS: NDArray | None = None

    def column(self, length_B: NDArray) -> int:
        """Return how many of the tokens fed hold the first length[b] real ones of each row.

        Raises:
            Refused: Rows need unlike numbers: this cache has one length for all rows.
        """
        if self.real_BS is None:
            return common(length_B)
        pads_B = (np.cumsum(self.real_BS, axis=1) == 0).sum(axis=1)
        return common(length_B + np.where(np.asarray(length_B) > 0, pads_B, 0))

    def cut(self, cache: Any, column: int) -> "Fed":
        """Return the state around a cache of the first tokens fed."""
        real = None if self.real_BS is None else self.real_BS[:, :column]
        return replace(self, cache=cache, fed=column, real_BS=real)

    def reordered(self, cache: Any, rows: NDArray) -> "Fed":
        """Return the state around a cache with the rows in this order."""
        real = None if self.real_BS is None else self.real_BS[rows]
        return replace(self, cache=cache, real_BS=real)


def own_verbs(cache: Any) -> dict[str, Any]:
    """Return rollback and gather of a cache object that has them as methods."""
    verbs: dict[str, Any] = {}
    crop = next((n for n in CROPS if callable(getattr(cache, n, None))), None)
    pick = next((n for n in GATHERS if callable(getattr(cache, n, None))), None)

    def rollback(state: Fed, length_B: NDArray) -> Fed:
        column = state.column(length_B)
        after = getattr(state.cache, str(crop))(column)
        return state.cut(state.cache if after is None else after, column)

    def gather(state: Fed, rows: NDArray) -> Fed:
        after = getattr(state.cache, str(pick))(tools.to_torch(rows.astype(np.int64)))
        return state.reordered(state.cache if after is None else after, rows)

    if crop is not None:
        verbs["rollback"] = rollback
    if pick is not None:
        verbs["gather"] = gather
    return verbs


def common(length_B: NDArray) -> int:
    """Return the one length of all rows.

    Raises:
        Refused: Rows differ.
    """
    if len(set(length_B.tolist())) != 1:
        raise Refused("rollback: rows keep unlike lengths, this cache has one length for all rows.")
    return int(length_B[0])
