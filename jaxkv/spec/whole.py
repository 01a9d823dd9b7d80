"""Sizes that people pass: whole numbers from a least one on, or refused by name."""

from numbers import Integral
from typing import Any

from jaxkv.spec.errors import RequestError


def check_whole(function: str, name: str, value: Any, *, least: int) -> None:
    """Refuse what is no whole number, True among it, or is below the least.

    Args:
        function: For messages, as is the next.
        name: Of the argument.
        value: As it was passed.
        least: The smallest that can be.

    Raises:
        RequestError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(
            f"{function}: {name} is {value!r}, expected a whole number of at least {least}."
        )
    if value < least:
        raise RequestError(f"{function}: {name} is {value}, expected at least {least}.")
