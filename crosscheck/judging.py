"""Judge what one relation gave on one case: an outcome for whatever may come back or be raised.

Letters: B rows, T positions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crosscheck.compare import Comparison, compare
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.judge import UNIT_ROUNDOFF, dtype_kind
from crosscheck.levels import Bitwise, Bounded, Semantic, Tolerance
from crosscheck.oracle_ratio import Ratio
from crosscheck.programs.case import Case
from crosscheck.relations.registry import Relation, Sides

KILL = 10.0


@dataclass(frozen=True)
class Outcome:
    """One case, judged.

    Attributes:
        verdict: "pass", "fail", "error" (the subject raised), "refused" (the subject may refuse
            this case, and did) or "nothing" (nothing was compared).
        severity: The largest error as a multiple of the tolerance; inf for what no tolerance
            would pass.
        reason: One sentence, for every verdict but pass.
        comparison: The numbers.
        sides: What was compared.
        error: What the subject raised.
    """

    verdict: Literal["pass", "fail", "error", "refused", "nothing"]
    severity: float = 0.0
    reason: str = ""
    comparison: Comparison | None = None
    sides: Sides | None = None
    error: Exception | None = None

    @property
    def killed(self) -> bool:
        """Whether a fault planted here would have been seen with room to spare."""
        return self.verdict == "error" or (self.verdict == "fail" and self.severity >= KILL)


def run_case(
    relation: Relation,
    candidate: Any,
    reference: Any,
    case: Case,
    *,
    rtol: float | None = None,
    names: tuple[str, str] | None = None,
) -> Outcome:
    """Return the outcome of a relation on one case; nothing is raised.

    Args:
        relation: What must hold.
        candidate: The left side.
        reference: The right side; the candidate itself in metamorphic mode.
        case: The case.
        rtol: Of the semantic level, where the oracle's own noise is above the level's.
        names: What reports call the two sides; by default the relation's words.
    """
    try:
        sides = relation.run(candidate, reference, case)
    except Refused as refusal:
        return Outcome("refused", reason=sentence(refusal), error=refusal)
    except Exception as error:
        return Outcome("error", math.inf, sentence(error), error=error)
    return judge_sides(relation, sides, rtol=rtol, names=names)


def judge_sides(
    relation: Relation,
    sides: Sides,
    *,
    rtol: float | None = None,
    tolerance: Tolerance | None = None,
    oracle: Mapping[str, NDArray] | None = None,
    names: tuple[str, str] | None = None,
) -> Outcome:
    """Return the outcome of two sides; a mismatch of shapes or names fails like a difference.

    Args:
        relation: Whose level judges.
        sides: What it gave.
        rtol: Of the semantic level, where the oracle's own noise is above the level's.
        tolerance: Instead of the relation's level.
        oracle: For `ratio`.
        names: What reports call the two sides.
    """
    if sides.expect == "refuse":
        return _judge_refusal(sides)
    if _is_empty(sides):
        return Outcome("nothing", reason="nothing was compared", sides=sides)
    level = tolerance or level_for(sides.level or relation.level, rtol)
    widened = isinstance(level, Semantic)
    left, right = (widen(side) if widened else side for side in (sides.left, sides.right))
    try:
        comparison = compare(
            left,
            right,
            level,
            name="logits" if list(left) == ["logits"] else relation.name,
            names=names or sides.words,
            oracle=oracle,
            valid=sides.valid,
        )
    except CrosscheckError as error:
        return Outcome("fail", math.inf, str(error), sides=sides)
    if comparison.agree:
        return Outcome("pass", severity(comparison), comparison=comparison, sides=sides)
    reason = (
        f"{comparison.count:,} of {comparison.total:,} outside, first at {comparison.first}"
        if comparison.first
        else "outside"
    )
    return Outcome("fail", severity(comparison), reason, comparison, sides)


def level_for(level: Tolerance, rtol: float | None) -> Tolerance:
    """Return a level with the oracle's noise in it, where it is relative to the oracle."""
    if isinstance(level, Semantic) and rtol is not None:
        return replace(level, rtol=max(level.rtol, rtol))
    return level


def severity(comparison: Comparison) -> float:
    """Return the largest error as a multiple of what the level allows."""
    required, level = comparison.required_tolerance, comparison.tolerance
    match level:
        case Semantic(rtol):
            share = _share(required, rtol)
            # A level may hold some points to their bits; no multiple of rtol excuses those.
            return math.inf if share <= 1 and not comparison.agree else share
        case Bounded(eps):
            return _share(required, eps)
        case Ratio():
            return _share(required, level.k or 2.0)
        case Bitwise():
            return 0.0 if comparison.agree else math.inf
        case _:
            return required


def widen(side: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return a side in float64, exactly: a semantic rule means the function, not the dtype."""
    return {
        name: array if array.dtype == np.float64 else array.astype(np.float64)
        for name, array in ((name, np.asarray(array)) for name, array in side.items())
        if dtype_kind(array.dtype) in ("float", "int", "bool")
    }


def sentence(error: BaseException) -> str:
    """Return an exception as one sentence, without its traceback."""
    words = " ".join(str(error).split())
    name = type(error).__name__
    return name if not words else words if words.startswith(name) else f"{name}: {words}"


def unit_roundoff(dtype: str) -> float:
    """Return u of a dtype; that of bfloat16 for one that is unknown."""
    return UNIT_ROUNDOFF.get(dtype, UNIT_ROUNDOFF["bfloat16"])


def without_sides(outcome: Outcome) -> Outcome:
    """Return the outcome without its arrays."""
    return replace(outcome, sides=None)


def _judge_refusal(sides: Sides) -> Outcome:
    if sides.meta.get("raised"):
        return Outcome("pass", reason=str(sides.meta["raised"]), sides=sides)
    return Outcome(
        "fail",
        math.inf,
        f"{sides.words[0]} was accepted, expected a refusal ({sides.words[1]})",
        sides=sides,
    )


def _is_empty(sides: Sides) -> bool:
    if not sides.left and not sides.right:
        return True
    if sides.valid is not None and not np.any(sides.valid):
        return True
    arrays = (*sides.left.values(), *sides.right.values())
    return all(np.asarray(array).size == 0 for array in arrays)


def _share(value: float, allowed: float) -> float:
    if value == 0:
        return 0.0
    return math.inf if allowed == 0 else value / allowed
