"""Greedy ids, compared with the oracle's top-2 margin in hand.

With every logit off by at most e, the arg-max is forced where the oracle's margin exceeds 2e: a
different id there is a divergence. Elsewhere it is a near tie, excused up to a budget. Ties go to
the lowest id. Letters: B, T, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosscheck.errors import (
    ComparisonError,
    CrosscheckError,
    Disagreement,
    Inconclusive,
    ToleranceError,
)
from crosscheck.judge import dtype_kind
from crosscheck.place import Place
from crosscheck.points import align
from crosscheck.report import greedy_report

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class GreedyComparison:
    """The greedy ids of two sides; `str()` is the report.

    Attributes:
        names: The two sides.
        verdict: "fail" with a divergence, "inconclusive" with more near ties than the budget, else
            "pass".
        total: Positions compared.
        divergences: Ids that differ and no rounding explains, and rows of logits with NaN or
            without a finite maximum.
        near_ties: Ids that differ where the margin is at most twice the bound.
        forced: Positions whose margin exceeds twice the bound.
        smallest_margin: The smallest top-2 margin; NaN if no position has one.
        waiver: The share of near ties that is excused.
        first: The first divergence, else the first near tie; None if all ids are the same.
        first_ids: The two ids there.
        first_margin: The margin there.
    """

    names: tuple[str, str]
    verdict: Verdict
    total: int
    divergences: int
    near_ties: int
    forced: int
    smallest_margin: float
    waiver: float
    first: Place | None
    first_ids: tuple[int, int] | None
    first_margin: float | None

    @property
    def agree(self) -> bool:
        """Whether the verdict is "pass"."""
        return self.verdict == "pass"

    @property
    def different(self) -> int:
        """How many ids differ, explained or not."""
        return self.divergences + self.near_ties

    def __bool__(self) -> NoReturn:
        raise TypeError("GreedyComparison: use .agree or assert_greedy_agree")

    def __str__(self) -> str:
        return greedy_report(self)


def compare_greedy(
    left_BTV: ArrayLike,
    right_BTV: ArrayLike,
    *,
    bound: ArrayLike,
    oracle: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    names: tuple[str, str] = ("left", "right"),
    waiver: float = 0.05,
) -> GreedyComparison:
    """Return how the greedy ids of two logits differ, every position judged by itself.

    Args:
        left_BTV: The candidate's logits.
        right_BTV: The reference's logits.
        bound: How far a logit may be off: a number, or [B, T]; at least 0 and finite.
        oracle: The reference's logits in float64, from which the margins come; by default
            right_BTV.
        valid: bool [B, T], what is compared; by default everything.
        names: What the report calls the two sides.
        waiver: The share of positions that may be near ties with different ids.

    Raises:
        ComparisonError: The logits cannot be compared, or nothing is left to compare.
        ToleranceError: The bound or the waiver is out of range.
    """
    try:
        return _compare_greedy(left_BTV, right_BTV, bound, oracle, valid, names, waiver)
    except CrosscheckError as error:
        raise type(error)(f"compare_greedy: {error}") from None


def assert_greedy_agree(
    left_BTV: ArrayLike,
    right_BTV: ArrayLike,
    *,
    bound: ArrayLike,
    oracle: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    names: tuple[str, str] = ("left", "right"),
    waiver: float = 0.05,
) -> None:
    """Raise unless the greedy ids agree; the arguments are those of `compare_greedy`.

    Args:
        left_BTV: The candidate's logits.
        right_BTV: The reference's logits.
        bound: How far a logit may be off.
        oracle: The reference's logits in float64.
        valid: bool [B, T], what is compared.
        names: What the report calls the two sides.
        waiver: The share of positions that may be near ties with different ids.

    Raises:
        Disagreement: An id differs where the margin forces it.
        Inconclusive: More near ties than the waiver excuses.
        ComparisonError: The logits cannot be compared, or nothing is left to compare.
        ToleranceError: The bound or the waiver is out of range.
    """
    __tracebackhide__ = True
    try:
        greedy = _compare_greedy(left_BTV, right_BTV, bound, oracle, valid, names, waiver)
    except CrosscheckError as error:
        raise type(error)(f"assert_greedy_agree: {error}") from None
    if not greedy.agree:
        kind = Inconclusive if greedy.verdict == "inconclusive" else Disagreement
        raise kind(str(greedy), greedy)


def _compare_greedy(
    left_BTV: ArrayLike,
    right_BTV: ArrayLike,
    bound: ArrayLike,
    oracle: ArrayLike | None,
    valid: ArrayLike | None,
    names: tuple[str, str],
    waiver: float,
) -> GreedyComparison:
    if not (0 <= waiver < 1):
        raise ToleranceError(f"waiver is {waiver}, expected at least 0 and below 1.")
    (point,) = align(left_BTV, right_BTV, oracle, valid, name="logits")
    if point.left.ndim != 2 or point.left.shape[1] < 2 or dtype_kind(point.left.dtype) != "float":
        raise ComparisonError(
            f"'logits' is {point.left.dtype} {np.shape(left_BTV)}, expected floats [B, T, "
            "V], V at least 2."
        )
    bound_n = _bound(bound, np.shape(left_BTV)[:2], point.rows, point.positions)
    left_nV, right_nV = point.left.astype(np.float64), point.right.astype(np.float64)
    judge_nV = right_nV if point.oracle is None else point.oracle.astype(np.float64)
    usable_n = _usable(left_nV) & _usable(right_nV) & _usable(judge_nV)
    margin_n = np.where(usable_n, _margin(judge_nV), np.nan)
    left_n, right_n = np.argmax(left_nV, axis=1), np.argmax(right_nV, axis=1)
    different_n = ~(usable_n & (left_n == right_n))
    near_n = different_n & (margin_n <= 2 * bound_n)
    diverged_n = different_n & ~near_n
    divergences, near_ties, total = int(diverged_n.sum()), int(near_n.sum()), len(left_n)
    verdict: Verdict = "pass" if near_ties <= waiver * total else "inconclusive"
    shown_n = diverged_n if divergences else near_n
    first = min(np.flatnonzero(shown_n), key=lambda i: (point.positions[i], i), default=None)
    width = left_nV.shape[1]
    return GreedyComparison(
        names=names,
        verdict="fail" if divergences else verdict,
        total=total,
        divergences=divergences,
        near_ties=near_ties,
        forced=int(np.sum(margin_n > 2 * bound_n)),
        smallest_margin=float(np.min(margin_n[usable_n], initial=np.inf))
        if usable_n.any()
        else np.nan,
        waiver=waiver,
        first=None if first is None else _position(point.place(int(first) * width)),
        first_ids=None if first is None else (int(left_n[first]), int(right_n[first])),
        first_margin=None if first is None else float(margin_n[first]),
    )


def _bound(
    bound: ArrayLike, shape_BT: tuple[int, ...], rows: NDArray[np.intp], positions: NDArray[np.intp]
) -> NDArray[np.float64]:
    bound_BT = np.asarray(bound, dtype=np.float64)
    if bound_BT.shape not in ((), shape_BT):
        raise ToleranceError(
            f"bound has shape {bound_BT.shape}, expected one number or {shape_BT}."
        )
    bound_n = np.broadcast_to(bound_BT, shape_BT)[rows, positions]
    bad_n = ~(np.isfinite(bound_n) & (bound_n >= 0))
    if bad_n.any():
        raise ToleranceError(f"bound holds {bound_n[bad_n][0]}, expected finite and at least 0.")
    return bound_n


def _usable(logits_nV: NDArray[np.float64]) -> NDArray[np.bool_]:
    # -inf is a masked token and fine; NaN or +inf, or nothing but -inf, has no arg-max worth the
    # name.
    return np.isfinite(np.max(logits_nV, axis=1))


def _margin(logits_nV: NDArray[np.float64]) -> NDArray[np.float64]:
    top_n2 = np.sort(logits_nV, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        return top_n2[:, 1] - top_n2[:, 0]


def _position(place: Place) -> Place:
    return Place(place.name, place.row, place.position, ())
