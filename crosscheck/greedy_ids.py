"""Greedy ids of a cached continuation, with the oracle's margin in hand.

The text is the oracle's own greedy continuation and every side is fed that, whatever it would have
chosen: after a near tie the comparison goes on with the same text.
Letters: B rows, T positions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import BudgetEnded, ComparisonError
from crosscheck.greedy import compare_greedy
from crosscheck.judge import distance, largest
from crosscheck.judging import sentence, unit_roundoff
from crosscheck.oracle import Oracle, full_of, sample_ids
from crosscheck.programs.case import Append, Case
from crosscheck.programs.case_json import case_to_json
from crosscheck.programs.run import run_program
from crosscheck.results import RelationResult
from crosscheck.subjects.protocol import describe, steady
from crosscheck.working import FLOOR, K_MAX

PROMPT, NEW, WAIVER = 6, 10, 0.05


def judge_greedy(
    candidate: Any,
    reference: Any,
    oracle: Oracle,
    dtype: str,
    *,
    seed: int,
    axis: str,
) -> RelationResult:
    """Return whether the cached greedy ids are the reference's, near ties counted.

    Args:
        candidate: In the working dtype.
        reference: In the working dtype; the candidate in metamorphic mode.
        oracle: Who gives the text and the margins.
        dtype: The working dtype.
        seed: Of the prompts.
        axis: "self" or "parity".

    Raises:
        BudgetEnded: While it ran.
    """
    try:
        ids_BT, exact_BTV = continuation(oracle.reference, seed)
        steps = (Append(PROMPT), *(Append(1),) * (ids_BT.shape[1] - PROMPT))
        case = Case(ids_BT, steps, seed=seed)
        trace = run_program(candidate, case).require()
        left_BTV = np.concatenate([fed.logits_BTV for fed in trace.steps], axis=1)
        right_BTV = np.asarray(full_of(reference)(ids_BT))
        spread = largest(distance(right_BTV, exact_BTV))
        bound = K_MAX * spread + FLOOR * unit_roundoff(dtype) * largest(exact_BTV)
        found = compare_greedy(left_BTV, right_BTV, bound=bound, oracle=exact_BTV, waiver=WAIVER)
    except BudgetEnded:
        raise
    except Exception as error:
        # Logits that can't be compared are a failure; what the subject raises is its error.
        failed = isinstance(error, ComparisonError)
        verdict = "fail" if failed else "error"
        return RelationResult(
            "greedy.ids",
            verdict,
            cases=int(failed),
            reason=sentence(error),
            axis=axis,
            dtype=dtype,
        )
    reason = (
        ""
        if not found.different
        else f"{found.divergences:,} of {found.total:,} ids differ beyond the margin, "
        f"{found.near_ties:,} near ties (budget {WAIVER:.0%})"
    )
    return RelationResult(
        "greedy.ids",
        found.verdict,
        worst=largest(distance(left_BTV, exact_BTV)),
        required_tolerance=None,
        cases=1,
        reason=reason,
        case=case_to_json(case) if found.verdict != "pass" else None,
        axis=axis,
        dtype=dtype,
        tolerance=f"margin above 2 x {bound:.1e} of the oracle",
        near_ties=found.near_ties,
    )


def continuation(reference: Any, seed: int) -> tuple[NDArray, NDArray]:
    """Return prompts with the reference's own greedy continuation [B, T], and its logits."""
    info = steady(describe(reference))
    most = min(PROMPT + NEW, info.max_positions or PROMPT + NEW)
    ids_BT = sample_ids(info, seed, batch=2)[:, :PROMPT]
    logits_BTV = np.asarray(full_of(reference)(ids_BT))
    while ids_BT.shape[1] < most:
        # Ids below first_id are padding or the like, which some models refuse as input.
        new_B = np.argmax(logits_BTV[:, -1, info.first_id :], axis=-1) + info.first_id
        ids_BT = np.concatenate([ids_BT, new_B[:, None].astype(np.int32)], axis=1)
        logits_BTV = np.asarray(full_of(reference)(ids_BT))
    return ids_BT, logits_BTV.astype(np.float64)
