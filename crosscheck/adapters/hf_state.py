"""How a model is driven, what was fed into its cache, and which of it is real.

Letters: B rows, T tokens of this call, S tokens fed so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import SubjectError


@dataclass(frozen=True)
class Setup:
    """How a model is driven; the same for its casts and variants.

    Attributes:
        cache: Makes a cache; None for the model's own.
        cache_options: Arguments of that cache beyond config, capacity, batch, dtype.
        gather: The verb that reorders rows; None for the most general one that all layers have.
        name: For reports.
        notes: Sentences for the report.
        documented: relation -> what the package says about a difference there.
    """

    cache: Any = None
    cache_options: Mapping[str, Any] = field(default_factory=dict)
    gather: str | None = None
    name: str = ""
    notes: tuple[str, ...] = ()
    documented: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Held:
    """A cache, and what was fed into it.

    Attributes:
        cache: The package's object, changed in place; None before the model made its own.
        real_BS: Which of the tokens fed are real.
        position_BS: Where they stand.
        capacity: The room that was asked for, where the cache has a fixed one.
        padded: Whether the model must be told which are real.
        encoder: Cross-attention inputs.
        spent: Why this state must not be used any more.
    """

    cache: Any
    real_BS: NDArray
    position_BS: NDArray
    capacity: int | None = None
    padded: bool = False
    encoder: Any = None
    spent: str = ""


def usable(state: Held) -> Held:
    """Return the state.

    Raises:
        SubjectError: It is spent: the cache is one object that is changed in place.
    """
    if state.spent:
        raise SubjectError(f"the state is spent, {state.spent}. Fork it before.")
    return state


def real(ids_BT: NDArray, options: Mapping[str, Any]) -> tuple[NDArray, bool]:
    """Return which tokens are real, and whether that was said."""
    mask, count = options.get("mask"), options.get("count")
    real_BT = np.ones(ids_BT.shape, bool)
    if count is not None:
        real_BT &= np.arange(ids_BT.shape[1]) < np.asarray(count)[:, None]
    if mask is not None:
        real_BT &= np.asarray(mask, bool)
    return real_BT, mask is not None or not real_BT.all()


def kept(real_BS: NDArray, length_B: NDArray) -> tuple[NDArray, int]:
    """Return which tokens stay real, and how many of the tokens fed hold them all."""
    keep_BS = real_BS & (real_BS.cumsum(1) <= length_B[:, None])
    used = np.flatnonzero(keep_BS.any(0))
    return keep_BS, int(used[-1]) + 1 if len(used) else 0


def by_slot(visible_BTS: NDArray, held_BS: NDArray, real_BT: NDArray) -> NDArray:
    """Return visibility by token fed; it comes by real token held, then this call's tokens."""
    rows, new, _ = visible_BTS.shape
    fed = held_BS.shape[1]
    by_slot = np.zeros((rows, new, fed + new), bool)
    for row in range(rows):
        slots = np.flatnonzero(held_BS[row])
        by_slot[row][:, slots] = visible_BTS[row, :, : len(slots)]
    by_slot[:, :, fed:] = visible_BTS[:, :, visible_BTS.shape[2] - new :]
    return by_slot & np.concatenate([held_BS, real_BT], 1)[:, None]
