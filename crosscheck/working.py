"""The working dtype after the semantic gate: worse rounding, told apart from a wrong function.

Each relation's logits are pooled over its cases and judged by the reference's own rounding, with
the float64 run as oracle; greedy ids are judged with the oracle's margin.
Letters: B rows, T positions, V vocabulary, n pooled positions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.budget import Clock
from crosscheck.compare import Comparison, compare
from crosscheck.errors import BudgetEnded, CrosscheckError
from crosscheck.greedy import GreedyComparison, compare_greedy
from crosscheck.jobs import Job, with_numbers
from crosscheck.judge import distance, largest
from crosscheck.judging import sentence, unit_roundoff
from crosscheck.levels import Bitwise, Semantic
from crosscheck.programs.case import Case
from crosscheck.programs.case_json import case_to_json
from crosscheck.relations.registry import Sides
from crosscheck.results import RelationResult
from crosscheck.subjects.protocol import describe
from crosscheck.tolerance import bitwise, ratio

CASES = 4
K_MAX, FLOOR = 3.0, 4.0


@dataclass(frozen=True)
class Pool:
    """Logits [1, n, V] of a relation's cases: candidate, reference, oracle."""

    left: NDArray
    right: NDArray
    oracle: NDArray


def working_subject(subject: Any, dtype: str) -> Any | None:
    """Return a subject in a working dtype; None where it has it not."""
    if why_no(subject, dtype):
        return None
    return subject if describe(subject).dtype == dtype else subject.cast(dtype)


def why_no(subject: Any, dtype: str) -> str:
    """Return why a subject has no such working dtype; "" where it has."""
    info = describe(subject)
    if info.dtype == dtype or (dtype == "float32" and "f32" in info.capabilities):
        return ""
    if dtype != "float32":
        return f"{info.name} is {info.dtype}, and is cast to float64 and float32 alone"
    return f"{info.name} is {info.dtype}, and {info.absent.get('f32', 'it declares no f32 (cast)')}"


def judge_working(
    job: Job, candidate: Any, reference: Any, dtype: str, clock: Clock, share: float
) -> RelationResult | None:
    """Return a relation's result in a working dtype; None where its level has none.

    Args:
        job: The relation, which passed the semantic gate.
        candidate: In the working dtype.
        reference: In the working dtype.
        dtype: Its name.
        clock: The budget.
        share: Of the budget, after which no case starts.

    Raises:
        BudgetEnded: While a case ran.
    """
    if not isinstance(job.relation.level, Semantic | Bitwise):
        return None
    pools: list[tuple[Case, Pool]] = []
    for case in job.cases[:CASES]:
        if not clock.allows(share, 2 * job.slowest):
            break
        try:
            sides = job.relation.run(candidate, reference, case)
            exact = job.relation.run(job.oracle.candidate, job.oracle.reference, case)
        except BudgetEnded:
            raise
        except Exception as error:
            return _result(job, dtype, "error", len(pools), sentence(error), case=case)
        if isinstance(job.relation.level, Bitwise):
            found = _judge_bits(job, sides, dtype, case, len(pools))
            if found is not None:
                return found
            pools.append((case, Pool(*[np.zeros((1, 0, 1))] * 3)))
        elif exact.level is not None or not _has_logits(sides):
            return None
        else:
            pools.append((case, _pool(sides, exact)))
    if not pools:
        return None
    if isinstance(job.relation.level, Bitwise):
        return _result(job, dtype, "pass", len(pools), "")
    return _judge_pools(job, pools, dtype)


def _judge_bits(job: Job, sides: Sides, dtype: str, case: Case, ran: int) -> RelationResult | None:
    try:
        found = compare(
            sides.left,
            sides.right,
            bitwise(),
            name=job.relation.name,
            names=sides.words,
            valid=sides.valid,
        )
    except CrosscheckError as error:
        return _result(job, dtype, "fail", ran + 1, str(error), case=case)
    if found.agree:
        return None
    reason = f"{found.count:,} of {found.total:,} outside, first at {found.first}"
    return _result(job, dtype, "fail", ran + 1, reason, comparison=found, case=case)


def _has_logits(sides: Sides) -> bool:
    # Other points have no oracle of their own, and ids under that name no margin.
    shape = np.shape(sides.left.get("logits", ()))
    return len(shape) == 3 and shape[-1] > 1


def _pool(sides: Sides, exact: Sides) -> Pool:
    left, right = (np.asarray(side["logits"]) for side in (sides.left, sides.right))
    oracle = np.asarray(exact.right["logits"]).astype(np.float64)
    valid_BT = np.ones(left.shape[:2], np.bool_) if sides.valid is None else sides.valid
    return Pool(left[valid_BT][None], right[valid_BT][None], oracle[valid_BT][None])


def _judge_pools(job: Job, pools: list[tuple[Case, Pool]], dtype: str) -> RelationResult:
    pooled = Pool(
        *(
            np.concatenate([getattr(pool, side) for _, pool in pools], axis=1)
            for side in ("left", "right", "oracle")
        )
    )
    try:
        found = _ratio(job, pooled, dtype)
        greedy = _greedy(pooled, dtype)
    except CrosscheckError as error:
        return _result(job, dtype, "fail", len(pools), str(error), case=pools[0][0])
    if found.agree and greedy.verdict == "pass":
        return _result(
            job, dtype, "pass", len(pools), _ties(greedy), comparison=found, greedy=greedy
        )
    if found.agree and greedy.verdict == "inconclusive":
        reason = f"greedy ids: {greedy.near_ties:,} of {greedy.total:,} are near ties"
        return _result(
            job, dtype, "inconclusive", len(pools), reason, comparison=found, greedy=greedy
        )
    # The case that is worst alone is the one to show and to repeat.
    case, shown = max(
        ((case, _ratio(job, pool, dtype)) for case, pool in pools),
        key=lambda pair: pair[1].required_tolerance,
    )
    shown = found if shown.agree else shown
    reason = (
        f"rounding is {found.required_tolerance:.1f} times the reference's own, allowed "
        f"{found.tolerance.rule}"
        if not found.agree
        else f"greedy ids: {greedy.divergences:,} of {greedy.total:,} differ beyond the margin"
    )
    return _result(
        job, dtype, "fail", len(pools), reason, comparison=shown, case=case, greedy=greedy
    )


def _ratio(job: Job, pool: Pool, dtype: str) -> Comparison:
    return compare(
        pool.left,
        pool.right,
        ratio(dtype=dtype),
        name="logits",
        names=(f"{job.relation.name}, left", "right"),
        oracle=pool.oracle,
    )


def _greedy(pool: Pool, dtype: str) -> GreedyComparison:
    """Return the greedy ids, each position bounded by what the ratio rule allows its errors."""
    spread = largest(distance(pool.right, pool.oracle))
    bound = K_MAX * spread + FLOOR * unit_roundoff(dtype) * largest(pool.oracle)
    return compare_greedy(pool.left, pool.right, bound=bound, oracle=pool.oracle)


def _ties(greedy: GreedyComparison) -> str:
    if not greedy.near_ties:
        return ""
    return f"{greedy.near_ties:,} near ties of {greedy.total:,} ids are excused"


def _result(
    job: Job,
    dtype: str,
    verdict: Any,
    cases: int,
    reason: str,
    *,
    comparison: Comparison | None = None,
    case: Case | None = None,
    greedy: GreedyComparison | None = None,
) -> RelationResult:
    row = RelationResult(
        name=job.relation.name,
        verdict=verdict,
        cases=cases,
        reason=reason,
        comparison=comparison if verdict == "fail" else None,
        case=case_to_json(case) if case is not None else None,
        axis=job.axis,
        dtype=dtype,
        near_ties=greedy.near_ties if greedy is not None else None,
    )
    return with_numbers(row, comparison)
