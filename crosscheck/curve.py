"""The error along positions, with what a reader needs to see a cache's edges in it: JSON data.

Letters: B rows, T positions, V vocabulary.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.compare import Comparison
from crosscheck.judge import distance
from crosscheck.programs.case_json import plain
from crosscheck.relations.registry import Sides


def curve(sides: Sides, comparison: Comparison | None, *, noise: float = 0.0) -> dict[str, Any]:
    """Return the largest error at each position of each point, the edges, and the margins.

    Args:
        sides: What was compared.
        comparison: How it failed.
        noise: What the uncached forward's own logits move by, relative to the largest.
    """
    points = {
        name: _along(np.asarray(array), np.asarray(sides.right[name]), sides.valid)
        for name, array in sides.left.items()
        if name in sides.right
        and np.shape(array) == np.shape(sides.right[name])
        and np.ndim(array) >= 2
    }
    data: dict[str, Any] = {
        "words": list(sides.words),
        "points": points,
        "chunks": list(sides.chunks),
        "meta": dict(sides.meta),
        "allowed": None if comparison is None else comparison.allowed,
        "rule": "" if comparison is None else comparison.rule,
    }
    if "logits" in sides.right:
        right = np.asarray(sides.right["logits"])
        data["margins"] = _margins(right, sides.valid)
        data["noise"] = noise * float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right)))
    return plain(data)


def _along(left: NDArray, right: NDArray, valid: NDArray | None) -> list[list[float | None]]:
    """Return [B, T] errors; None where nothing is compared, inf where a side isn't finite."""
    error = distance(left, right)
    error_BT = np.where(np.isnan(error), np.inf, error).reshape(*left.shape[:2], -1)
    error_BT = error_BT.max(axis=-1, initial=0.0)
    return _listed(error_BT, valid)


def _margins(logits_BTV: NDArray, valid: NDArray | None) -> list[list[float | None]]:
    if logits_BTV.ndim != 3 or logits_BTV.shape[-1] < 2:
        return []
    top_BT2 = np.sort(logits_BTV.astype(np.float64), axis=-1)[..., -2:]
    return _listed(top_BT2[..., 1] - top_BT2[..., 0], valid)


def _listed(values_BT: NDArray, valid: NDArray | None) -> list[list[float | None]]:
    shown_BT = np.ones(values_BT.shape, np.bool_) if valid is None else valid
    return [
        [float(value) if shown else None for value, shown in zip(*row, strict=True)]
        for row in zip(values_BT, shown_BT, strict=True)
    ]
