"""Bring two sides into one form: named points with the valid elements of both, or refuse.

Letters: B rows, T positions; n valid (row, position) pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import ComparisonError
from crosscheck.judge import dtype_kind
from crosscheck.place import Place


@dataclass(frozen=True)
class Point:
    """One named pair of arrays [n, ...], and where its n pairs stand.

    Attributes:
        name: Its key in the mapping, or the comparison's name.
        left: [n, ...].
        right: [n, ...].
        oracle: [n, ...] or None.
        rows: int [n].
        positions: int [n].
    """

    name: str
    left: NDArray
    right: NDArray
    oracle: NDArray | None
    rows: NDArray[np.intp]
    positions: NDArray[np.intp]

    def place(self, flat: int) -> Place:
        """Return the place of a flat index into the [n, ...] arrays."""
        n, *rest = (int(i) for i in np.unravel_index(flat, self.left.shape))
        return Place(self.name, int(self.rows[n]), int(self.positions[n]), tuple(rest))


def align(left: Any, right: Any, oracle: Any, valid: Any, *, name: str) -> list[Point]:
    """Return the points in the order of the left side.

    Raises:
        ComparisonError: Other names, shapes or kinds of dtype; fewer than two axes; nothing to
            compare.
    """
    sides = {"left": _named(left, name), "right": _named(right, name)}
    if oracle is not None:
        sides["oracle"] = _named(oracle, name)
    for side in list(sides)[1:]:
        _same_names(sides["left"], sides[side], side)
    if not sides["left"]:
        raise ComparisonError("left and right hold no arrays, nothing was compared.")
    return [
        _point(key, {s: np.asarray(a[key]) for s, a in sides.items()}, valid)
        for key in sides["left"]
    ]


def _named(side: Any, name: str) -> Mapping[str, Any]:
    return side if isinstance(side, Mapping) else {name: side}


def _same_names(left: Mapping[str, Any], other: Mapping[str, Any], side: str) -> None:
    for lacking, holder, a, b in (("left", side, left, other), (side, "left", other, left)):
        missing = [key for key in b if key not in a]
        if missing:
            listed = ", ".join(map(repr, missing))
            raise ComparisonError(
                f"{lacking} lacks {listed}, {holder} has it; {lacking} has "
                f"{', '.join(map(repr, a)) or 'nothing'}."
            )


def _point(name: str, arrays: dict[str, NDArray], valid: Any) -> Point:
    left = arrays["left"]
    for side, array in arrays.items():
        if array.shape != left.shape:
            raise ComparisonError(
                f"left '{name}' has shape {left.shape}, {side} has shape {array.shape}. "
                "Shapes are never broadcast; align them first."
            )
        kinds = dtype_kind(left.dtype), dtype_kind(array.dtype)
        if kinds[0] != kinds[1] or kinds[0] not in ("float", "int", "bool"):
            raise ComparisonError(
                f"left '{name}' is {left.dtype}, {side} is {array.dtype}, "
                "expected one kind: float, int or bool."
            )
    if left.ndim < 2:
        raise ComparisonError(f"'{name}' has shape {left.shape}, expected [B, T, ...].")
    valid_BT = _mask(name, left, valid)
    if left[valid_BT].size == 0:
        why = (
            f"shape {left.shape}" if valid is None else f"{valid_BT.sum()} valid of {valid_BT.size}"
        )
        raise ComparisonError(f"'{name}' has no elements ({why}), nothing was compared.")
    rows, positions = np.nonzero(valid_BT)
    oracle = arrays.get("oracle")
    return Point(
        name,
        left[valid_BT],
        arrays["right"][valid_BT],
        None if oracle is None else oracle[valid_BT],
        rows,
        positions,
    )


def _mask(name: str, array: NDArray, valid: Any) -> NDArray[np.bool_]:
    if valid is None:
        return np.ones(array.shape[:2], dtype=np.bool_)
    valid_BT = np.asarray(valid)
    if valid_BT.dtype != np.bool_ or valid_BT.shape != array.shape[:2]:
        raise ComparisonError(
            f"valid is {valid_BT.dtype} {valid_BT.shape}, expected bool {array.shape[:2]} "
            f"(the first two axes of '{name}')."
        )
    return valid_BT
