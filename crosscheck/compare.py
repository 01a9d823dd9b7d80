"""Compare two sides point by point, and say where they first differ.

Letters: B rows, T positions. A side is one array [B, T, ...] or an ordered mapping name -> array in
the order of the forward pass (`k.0`, `v.0`, `resid.0`, ..., `logits`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosscheck.errors import CrosscheckError, Disagreement
from crosscheck.greedy import GreedyComparison, compare_greedy
from crosscheck.judge import Judgement, Sample, dtype_kind
from crosscheck.levels import Tolerance
from crosscheck.place import Place, is_logits
from crosscheck.points import Point, align
from crosscheck.report import comparison_report

Side = ArrayLike | Mapping[str, ArrayLike]


@dataclass(frozen=True)
class Comparison:
    """The numbers of one comparison; `str()` is its report.

    Attributes:
        name: What was compared, as the caller calls it.
        names: The two sides.
        dtype: The left side's dtype, with the right one's after a slash where they differ.
        tolerance: The rule that judged.
        points: The names in order; one for a bare array.
        agree: Whether every element was inside.
        measure: What `worst` measures: "|a-b|", "|a-o|" or "rms(a-o)".
        worst: The error that is the largest multiple of what it may be; NaN where a side is not
            finite.
        worst_at: Its place.
        allowed: What it may be.
        rule: The rule with the numbers of that place's point.
        required_tolerance: The smallest value of the level's own parameter that would have passed:
            rtol of semantic, eps of bounded, k of ratio, the factor on both numbers of close, the
            largest difference of bitwise.
        count: Elements outside.
        total: Elements compared.
        first: The earliest position with an element outside, and there the first point of the
            forward pass.
        non_finite: How many elements are not finite, left and right.
        greedy: The greedy ids, where logits were compared.
    """

    name: str
    names: tuple[str, str]
    dtype: str
    tolerance: Tolerance
    points: tuple[str, ...]
    agree: bool
    measure: str
    worst: float
    worst_at: Place
    allowed: float
    rule: str
    required_tolerance: float
    count: int
    total: int
    first: Place | None
    non_finite: tuple[int, int]
    greedy: GreedyComparison | None

    def __bool__(self) -> NoReturn:
        raise TypeError("Comparison: use .agree or assert_agree")

    def __str__(self) -> str:
        return comparison_report(self)


def compare(
    left: Side,
    right: Side,
    tolerance: Tolerance,
    *,
    name: str,
    names: tuple[str, str] = ("left", "right"),
    oracle: Side | None = None,
    valid: ArrayLike | None = None,
) -> Comparison:
    """Return how left and right differ.

    Each point is judged alone, so that one with large values does not widen the tolerance of the
    others. An element that is not finite on either side is outside at every level.

    Args:
        left: The candidate: an array [B, T, ...] or an ordered mapping of them.
        right: The reference, of the same form; relative rules are relative to it.
        tolerance: From `bitwise`, `semantic`, `close`, `ratio` or `bounded`.
        name: What is compared; `logits` and `logits_BTV` get a line on their greedy ids.
        names: What the report calls the two sides.
        oracle: The reference in float64, of the same form; `ratio` needs it, greedy margins use it.
        valid: bool [B, T], what is compared; by default everything.

    Raises:
        ComparisonError: The sides cannot be compared, or nothing is left to compare.
        ToleranceError: The tolerance does not fit the arrays.
    """
    try:
        return _compare(left, right, tolerance, name, names, oracle, valid)
    except CrosscheckError as error:
        raise type(error)(f"compare: {error}") from None


def assert_agree(
    left: Side,
    right: Side,
    tolerance: Tolerance,
    *,
    name: str,
    names: tuple[str, str] = ("left", "right"),
    oracle: Side | None = None,
    valid: ArrayLike | None = None,
    repeat: str | None = None,
) -> None:
    """Raise unless left and right agree; the arguments are those of `compare`.

    Args:
        left: The candidate.
        right: The reference.
        tolerance: The rule.
        name: What is compared.
        names: What the report calls the two sides.
        oracle: The reference in float64.
        valid: bool [B, T], what is compared.
        repeat: The command that repeats this comparison, for the report's last line.

    Raises:
        Disagreement: With the report as its message and the `Comparison` as `comparison`.
        ComparisonError: The sides cannot be compared, or nothing is left to compare.
        ToleranceError: The tolerance does not fit the arrays.
    """
    __tracebackhide__ = True
    try:
        comparison = _compare(left, right, tolerance, name, names, oracle, valid)
    except CrosscheckError as error:
        raise type(error)(f"assert_agree: {error}") from None
    if not comparison.agree:
        raise Disagreement(comparison_report(comparison, repeat=repeat), comparison)


def _compare(
    left: Side,
    right: Side,
    tolerance: Tolerance,
    name: str,
    names: tuple[str, str],
    oracle: Side | None,
    valid: Any,
) -> Comparison:
    points = align(left, right, oracle, valid, name=name)
    judged = [tolerance.judge(Sample(p.name, p.left, p.right, p.oracle)) for p in points]
    severities = [(bool(j.outside.any()), j.severity()) for j in judged]
    worst = max(range(len(points)), key=lambda i: severities[i])
    point, verdict = points[worst], judged[worst]
    flat = verdict.worst()
    error = verdict.error.flat[flat] if verdict.total is None else verdict.total
    return Comparison(
        name=name,
        names=names,
        dtype="/".join(
            dict.fromkeys(d for p in points for d in (p.left.dtype.name, p.right.dtype.name))
        ),
        tolerance=tolerance,
        points=tuple(p.name for p in points),
        agree=not any(outside for outside, _ in severities),
        measure=verdict.measure,
        worst=float(error),
        worst_at=point.place(flat),
        allowed=float(verdict.allowed.flat[flat]),
        rule=verdict.rule,
        required_tolerance=max(j.required for j in judged),
        count=sum(int(j.outside.sum()) for j in judged),
        total=sum(j.outside.size for j in judged),
        first=_first(points, judged),
        non_finite=(
            sum(_non_finite(p.left) for p in points),
            sum(_non_finite(p.right) for p in points),
        ),
        greedy=_greedy(points, names),
    )


def _first(points: list[Point], judged: list[Judgement]) -> Place | None:
    # Position before point: the text is causal, so what differs earliest in it caused the rest;
    # within one position the forward pass runs in the mapping's order.
    found: list[tuple[tuple[int, int, int, int], Place]] = []
    for order, (point, judgement) in enumerate(zip(points, judged, strict=True)):
        outside = np.flatnonzero(judgement.outside)
        if outside.size:
            pairs = outside // (judgement.outside.size // len(point.rows))
            best = outside[np.lexsort((outside, point.rows[pairs], point.positions[pairs]))[0]]
            place = point.place(int(best))
            found.append(((place.position, order, place.row, int(best)), place))
    return min(found, key=lambda item: item[0])[1] if found else None


def _non_finite(array: NDArray) -> int:
    return int(np.sum(~np.isfinite(array.astype(np.float64))))


def _greedy(points: list[Point], names: tuple[str, str]) -> GreedyComparison | None:
    for p in points:
        if is_logits(p.name) and p.left.ndim == 2 and p.left.shape[1] > 1:
            if dtype_kind(p.left.dtype) != "float":
                return None
            oracle = None if p.oracle is None else p.oracle[None]
            return compare_greedy(
                p.left[None], p.right[None], bound=0.0, oracle=oracle, names=names
            )
    return None
