"""Numbers that a caller gives once for all rows, or one a row. Letters: B rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkv.spec.errors import RequestError, ShapeError


def per_row(
    function: str,
    name: str,
    given: Any,
    batch: int,
    *,
    wanted: str,
    fits: Callable[[Any], bool],
) -> list[Any]:
    """Return one checked value a row.

    Args:
        function: For messages: whose argument it is.
        name: The argument's.
        given: One value for all rows, or a sequence of one a row.
        batch: Rows.
        wanted: For messages: what fits.
        fits: Whether a value is in range.

    Raises:
        RequestError: A value does not fit.
        ShapeError: A sequence has another length than there are rows.
    """
    each = list(given) if hasattr(given, "__len__") else [given] * batch
    if len(each) != batch:
        raise ShapeError(
            f"{function}: {name} has {len(each)} numbers for {batch} prompts. Give one, or one "
            "a prompt."
        )
    for value in each:
        if not fits(value):
            raise RequestError(f"{function}: {name} is {value!r}, expected {wanted}.")
    return each


def is_whole(x: Any) -> bool:
    """Return whether it is a whole number; True and False are none."""
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def is_real(x: Any) -> bool:
    """Return whether it is a number, NaN among them; True and False are none."""
    return is_whole(x) or isinstance(x, float | np.floating)
