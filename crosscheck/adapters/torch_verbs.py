"""What a torch module's cache can do by verbs of its own.

Letters: B rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_tools as tools
from crosscheck.errors import Refused

CROPS = ("crop", "rollback", "truncate", "rewind")
GATHERS = ("batch_select_indices", "reorder_cache", "gather", "reorder", "index_select")


@dataclass(frozen=True)
class Fed:
    """A module's cache, and how many tokens of every row were fed into it."""

    cache: Any
    fed: int
    capacity: int | None = None


def own_verbs(cache: Any) -> dict[str, Any]:
    """Return rollback and gather of a cache object that has them as methods."""
    verbs: dict[str, Any] = {}
    crop = next((n for n in CROPS if callable(getattr(cache, n, None))), None)
    pick = next((n for n in GATHERS if callable(getattr(cache, n, None))), None)

    def rollback(state: Fed, length_B: NDArray) -> Fed:
        length = common(length_B)
        after = getattr(state.cache, str(crop))(length)
        return Fed(state.cache if after is None else after, length, state.capacity)

    def gather(state: Fed, rows: NDArray) -> Fed:
        after = getattr(state.cache, str(pick))(tools.to_torch(rows.astype(np.int64)))
        return Fed(state.cache if after is None else after, state.fed, state.capacity)

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
