"""What a tolerance is given (a sample), what it gives back (a judgement), and the arithmetic.

A sample holds n valid (row, position) pairs of one point, so its arrays are [n, ...]. Every test is
written as `not (error <= allowed)` and an element that is not finite on either side has error NaN:
it fails at every level.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import ToleranceError

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}


def dtype_kind(dtype: np.dtype) -> str:
    """Return "float" (those of ml_dtypes included), "int", "bool", or the dtype's own name."""
    if re.match(r"b?float|longdouble", dtype.name):
        return "float"
    return {"i": "int", "u": "int", "b": "bool"}.get(dtype.kind, dtype.name)


@dataclass(frozen=True)
class Sample:
    """The valid elements of one point: left (candidate), right (reference), oracle.

    Attributes:
        name: The point's name.
        left: [n, ...], the working dtype.
        right: [n, ...].
        oracle: [n, ...], float64, or None.
    """

    name: str
    left: NDArray
    right: NDArray
    oracle: NDArray | None

    def error(self) -> NDArray[np.float64]:
        """Return |left - right| in float64, NaN where either side is not finite."""
        return distance(self.left, self.right)

    def require_float(self, level: str, dtype: str | None = None) -> None:
        """Refuse arrays that a level cannot judge.

        Raises:
            ToleranceError: A side is no float array, or not of the one dtype that the level is
                defined for.
        """
        for side, array in (("left", self.left), ("right", self.right)):
            given = array.dtype.name
            if dtype is not None and given != dtype:
                raise ToleranceError(
                    f"{side} '{self.name}' is {given}, {level} compares {dtype}. "
                    f"Run the model in {dtype}, or judge {given} with ratio()."
                )
            if dtype_kind(array.dtype) != "float":
                raise ToleranceError(
                    f"{side} '{self.name}' is {given}, {level} compares floats. Use bitwise()."
                )


@dataclass(frozen=True)
class Judgement:
    """One point, judged element by element.

    Attributes:
        measure: What `error` is, as printed: "|a-b|".
        error: [n, ...] float64; NaN where a side is not finite.
        allowed: [n, ...] float64, what each element's error may be.
        outside: [n, ...] bool.
        required: The smallest value of the level's own parameter that would have passed; inf if
            none would.
        rule: The rule with its numbers.
        total: The one number that was judged, where it is not an element's error (the rms of a
            ratio).
    """

    measure: str
    error: NDArray[np.float64]
    allowed: NDArray[np.float64]
    outside: NDArray[np.bool_]
    required: float
    rule: str
    total: float | None = None

    def worst(self) -> int:
        """Return the flat index of the worst element: outside first, then by error / allowed."""
        score = np.where(np.isnan(self.error), np.inf, self.error)
        if self.allowed.min() != self.allowed.max():
            score = share(score, self.allowed)
        score = np.where(self.outside, np.maximum(score, np.finfo(np.float64).tiny), score)
        return int(np.argmax(score))

    def severity(self) -> float:
        """Return the worst error as a multiple of what it may be; inf where it is not finite."""
        error = self.error.flat[self.worst()] if self.total is None else self.total
        allowed = self.allowed.flat[self.worst()]
        return float(share(np.float64(np.nan_to_num(error, nan=np.inf)), np.float64(allowed)))


def share(
    error: NDArray[np.float64] | np.float64, allowed: NDArray[np.float64] | np.float64
) -> NDArray[np.float64]:
    """Return error / allowed, 0 where the error is 0 and inf where only the error is not."""
    with np.errstate(all="ignore"):
        return np.where(error == 0, 0.0, np.divide(error, allowed))


def distance(left: NDArray, right: NDArray) -> NDArray[np.float64]:
    """Return |left - right| in float64, NaN where either side is not finite."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b), np.nan)


def largest(array: NDArray) -> float:
    """Return the largest finite magnitude, or 0.0: an infinity must not widen a tolerance."""
    magnitude = np.abs(array.astype(np.float64))
    return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))


def judge_each(
    measure: str,
    error: NDArray[np.float64],
    allowed: float | NDArray[np.float64],
    *,
    required: float,
    rule: str,
) -> Judgement:
    """Return the judgement that compares every element's error with what is allowed."""
    allowed_n = np.broadcast_to(np.asarray(allowed, dtype=np.float64), error.shape)
    outside = ~(error <= allowed_n)
    return Judgement(measure, error, allowed_n, outside, _finite_or_inf(error, required), rule)


def required_factor(worst: float, scale: float) -> float:
    """Return the smallest factor with worst <= factor * scale, as floats compute it, or inf."""
    if worst == 0:
        return 0.0
    if scale == 0:
        return float("inf")
    factor = worst / scale
    return factor if worst <= factor * scale else float(np.nextafter(factor, np.inf))


def _finite_or_inf(error: NDArray[np.float64], required: float) -> float:
    return required if np.isfinite(error).all() else float("inf")
