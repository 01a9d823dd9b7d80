"""How much two sides may differ: a constructor a level; the result prints level, dtype and rule.

The float64 gate comes first because it tells a wrong function from worse rounding; a fixed number
for a working dtype is both too tight and too loose.
"""

import math

from crosscheck.errors import ToleranceError
from crosscheck.judge import UNIT_ROUNDOFF
from crosscheck.levels import Bitwise, Bounded, Close, Semantic, short
from crosscheck.oracle_ratio import Ratio


def bitwise() -> Bitwise:
    """Return the level for facts about memory: untouched slots, an unchanged cache, a gather."""
    return Bitwise()


def semantic(*, rtol: float = 1e-9) -> Semantic:
    """Return the default gate: float64 on both sides, every error at most rtol * max |right|.

    Rounding in float64 is about 1e-14 of the largest logit and the smallest planted fault 5.6e-4
    (measured on a toy), so the default sits between with room on both sides.

    Raises:
        ToleranceError: rtol is not a number in [0, 1); at 1 a zero would pass for anything.
    """
    _number("semantic", "rtol", rtol, below=1.0)
    return Semantic(float(rtol))


def close(*, rtol: float | None = None, atol: float | None = None) -> Close:
    """Return the familiar pair: every error at most atol + rtol * |right|.

    Raises:
        ToleranceError: One of the two is missing (its default would be a guess), or is not finite
            and at least 0.
    """
    if rtol is None or atol is None:
        given = "rtol only" if rtol is not None else "atol only" if atol is not None else "neither"
        raise ToleranceError(f"close: tolerance needs rtol and atol together; got {given}.")
    _number("close", "rtol", rtol)
    _number("close", "atol", atol)
    return Close(float(rtol), float(atol))


def ratio(
    *, k: float | None = None, k_max: float = 3, floor: float = 4, dtype: str | None = None
) -> Ratio:
    """Return the level for working dtypes; it needs oracle=, the reference in float64.

    rms(a-o) <= k * rms(b-o) + floor * u * max |o|, and the same for max with k_max. Pool many
    positions and rows into one comparison: the ratio of two single errors has no finite mean.

    Args:
        k: Factor of the rms rule; by default 2 for float32 and float64, 3 for float16 and bfloat16.
        k_max: Factor of the max rule.
        floor: Multiple of u * max |o| that is always allowed.
        dtype: What the models computed in, when their arrays were widened on the way; by default
            that of the arrays.

    Raises:
        ToleranceError: A number is not finite and at least 0, a factor is 0, or dtype is unknown.
    """
    if k is not None:
        _number("ratio", "k", k)
    _number("ratio", "k_max", k_max)
    _number("ratio", "floor", floor)
    for name, value in (("k", k), ("k_max", k_max)):
        if value == 0:
            raise ToleranceError(f"ratio: {name} is 0, expected above 0.")
    if dtype is not None and dtype not in UNIT_ROUNDOFF:
        raise ToleranceError(
            f"ratio: dtype is {dtype!r}, expected one of {', '.join(UNIT_ROUNDOFF)}."
        )
    return Ratio(None if k is None else float(k), float(k_max), float(floor), dtype or "any")


def bounded(eps: float) -> Bounded:
    """Return the level for quantized caches: every error at most eps.

    Args:
        eps: From the scheme (half a step an element, pushed through one layer), then measured on
            the reference.

    Raises:
        ToleranceError: eps is not finite and at least 0.
    """
    _number("bounded", "eps", eps)
    return Bounded(float(eps))


def _number(function: str, name: str, value: float, *, below: float = math.inf) -> None:
    if not (0 <= value < below):
        upper = "finite" if below == math.inf else f"below {short(below)}"
        raise ToleranceError(
            f"{function}: {name} is {value}, expected a number of at least 0, {upper}."
        )
