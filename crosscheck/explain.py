"""What a failing row gets: the smallest case, where it begins, and which fault would explain it."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crosscheck import budget
from crosscheck.curve import curve
from crosscheck.errors import BudgetEnded
from crosscheck.jobs import Job, with_numbers
from crosscheck.judging import Outcome, sentence
from crosscheck.programs.case import Case
from crosscheck.programs.case_json import case_to_json
from crosscheck.programs.shrink import shrink
from crosscheck.results import Diagnosis, Divergence, RelationResult
from crosscheck.subjects.protocol import describe


def explain(job: Job, row: RelationResult, *, deadline: float) -> RelationResult:
    """Return the row with its case made small, localized and named, as far as time allows.

    Args:
        job: With a failure that isn't an exception.
        row: Its result.
        deadline: As `budget.now` gives it.
    """
    if job.failure is None:
        return row
    case, outcome = job.failure
    small, shown = _shrunk(job, case, outcome, deadline)
    # A small case says where; the larger one tells more faults apart.
    divergence, unplaced = _ask("localize", "localize", job, small, deadline)
    diagnosis, unnamed = _ask("diagnose", "diagnose", job, case, deadline)
    comparison = shown.comparison
    row = replace(
        row,
        reason="; ".join(filter(None, (shown.reason or row.reason, unplaced, unnamed))),
        comparison=comparison,
        case=case_to_json(small),
        divergence=divergence if isinstance(divergence, Divergence) else None,
        diagnosis=tuple(each for each in diagnosis or () if isinstance(each, Diagnosis)),
        # The smallest case is too short to show how an error runs along the text.
        curve=_drawn(job, outcome, shown),
    )
    return with_numbers(row, comparison)


def _drawn(job: Job, outcome: Outcome, shown: Outcome) -> dict[str, Any] | None:
    if outcome.sides is None:
        return None
    smallest = shown.sides.words if shown.sides is not None else outcome.sides.words
    drawn = curve(outcome.sides, outcome.comparison, noise=job.oracle.floor)
    # The same words for another text are another case as well.
    return drawn | {"smallest": list(smallest), "shrunk": shown is not outcome}


def _shrunk(job: Job, case: Case, outcome: Outcome, deadline: float) -> tuple[Case, Outcome]:
    seen, best = {id(case): outcome}, [(case, outcome)]
    candidate, reference = job.oracle.candidate, job.oracle.reference
    least = min(outcome.severity, 10.0)

    def fails(smaller: Case) -> bool:
        # The relation may not be made for what shrinking leaves: only its own verdict counts.
        found = job.outcome(candidate, reference, smaller)
        if found.verdict != "fail" or not found.severity >= least:
            return False
        if (found.comparison is None) != (outcome.comparison is None):
            return False
        if _moved_on(smaller, found, *best[-1]):
            return False
        seen[id(smaller)] = found
        best.append((smaller, found))
        return True

    half = budget.now() + 0.3 * max(0.0, deadline - budget.now())
    small = shrink(case, fails, deadline=half, first_id=describe(candidate).first_id)
    return small, seen[id(small)]


def _moved_on(case: Case, outcome: Outcome, was: Case, before: Outcome) -> bool:
    """Return whether it begins later, or only elsewhere because equal ids hide where."""
    now, then = outcome.comparison, before.comparison
    if now is None or then is None or now.first is None or then.first is None:
        return False
    same = case.ops == was.ops and case.ids.shape == was.ids.shape
    at, before_at = now.first.position, then.first.position
    return at > before_at or (same and at != before_at)


def _ask(module: str, name: str, job: Job, case: Case, deadline: float) -> tuple[Any, str]:
    """Return what a part of the diagnosis says, or None and why it could not say."""
    if budget.now() > deadline:
        return None, f"no time left to {name}"
    candidate, reference = job.oracle.candidate, job.oracle.reference
    try:
        function: Callable[..., Any] = getattr(
            importlib.import_module(f"crosscheck.diagnosis.{module}"), name
        )
        takes = inspect.signature(function).parameters
        options = {"deadline": deadline} if "deadline" in takes else {}
        return function(candidate, reference, job.relation.name, case, **options), ""
    except BudgetEnded:
        return None, f"no time left to {name}"
    except Exception as error:
        # A divergence is reported with or without its explanation.
        return None, f"could not {name}: {sentence(error)}"
