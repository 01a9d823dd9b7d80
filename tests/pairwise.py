"""Choices from several lists so that every pair of choices of two lists occurs: few of a product.

With JAXKV_DEEP=1 the whole product.
"""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

from tests.tiny import DEEP


def cover(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows of one choice an axis in which every pair of two axes' choices occurs.

    Greedy: each row begins with a pair that is still missing, and takes for each other axis the
    choice that adds most missing pairs.
    """
    if DEEP:
        return list(product(*axes))
    return pairs_of(*axes)


def pairs_of(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of `cover` whatever the environment."""
    missing = {
        ((a, i), (b, j))
        for a, b in combinations(range(len(axes)), 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    rows = []
    while missing:
        row: dict[int, int] = dict(min(missing))
        for axis, choices in enumerate(axes):
            if axis not in row:
                row[axis] = max(range(len(choices)), key=lambda i: _adds(row, axis, i, missing))
        missing -= {*combinations(sorted(row.items()), 2)}
        rows.append(tuple(choices[row[axis]] for axis, choices in enumerate(axes)))
    return rows


def _adds(row: dict[int, int], axis: int, choice: int, missing: set[Any]) -> int:
    return sum(tuple(sorted(((axis, choice), other))) in missing for other in row.items())
