"""Check a decoder's cache: every relation that it can run, and a verdict that can be withheld."""

from collections.abc import Iterable, Sequence
from typing import Any

from crosscheck.budget import Clock
from crosscheck.errors import CrosscheckError
from crosscheck.jobs import make_job
from crosscheck.one_run import LONGEST, Progress, Run, guard, in_working
from crosscheck.oracle import examine
from crosscheck.programs.case import Case
from crosscheck.relations.registry import why_not
from crosscheck.results import RelationResult, Report
from crosscheck.select import load_relations, select
from crosscheck.subjects.protocol import describe

FAULTS_WANTED = ("catches", "all", "none")


def check(
    candidate: Any,
    reference: Any | None = None,
    *,
    relations: str | Iterable[str] = "core",
    budget_seconds: float | None = 60.0,
    dtypes: Sequence[str] = ("float64", "float32"),
    seed: int = 0,
    progress: Progress | None = None,
    faults: str = "catches",
    stretch: bool = False,
) -> Report:
    """Return what every relation showed on the candidate, and against the reference if given.

    Args:
        candidate: A subject.
        reference: Another subject that must compute the same; None for the candidate's own forward
            without a cache.
        relations: "core", "all", names and globs, comma-separated or listed.
        budget_seconds: When to stop. None for 60, and up to 600 for a model so large, or a
            machine so busy, that the first questions take long, or some relations can't tell yet.
        dtypes: "float64" is the gate, which always runs; the others are judged by rounding.
        seed: Of everything that is drawn.
        progress: Called with the relation, how many steps are done, and of how many.
        faults: Which faults to plant for a relation that passed: those that it "catches", "all"
            that the subject can have, or "none"; without any, a pass is blind.
        stretch: Whether a budget may become ten times what the first questions took, up to 600 s,
            as it does without one: what is short follows how busy the machine is.

    Raises:
        CrosscheckError: An argument is out of range, a relation is unknown, or the two subjects
            are of different vocabularies.
    """
    if budget_seconds is not None and not budget_seconds > 0:
        raise CrosscheckError(f"check: budget_seconds is {budget_seconds}, expected above 0.")
    if faults not in FAULTS_WANTED:
        raise CrosscheckError(
            f"check: faults is {faults!r}, expected one of {', '.join(map(repr, FAULTS_WANTED))}."
        )
    chosen = select(relations)
    clock, is_patient = Clock(budget_seconds or 60.0), stretch or budget_seconds is None
    longest = LONGEST if budget_seconds is None else 0.0
    run = Run(
        *(candidate, reference, clock, seed, progress, chosen),
        is_patient=is_patient,
        longest=longest,
    )
    return run.report(dtypes, faults)


def check_case(
    candidate: Any,
    reference: Any | None,
    relation_name: str,
    case: Case,
    *,
    dtype: str = "float64",
    seed: int = 0,
) -> RelationResult:
    """Return the result of one relation on one case, for a replay or a matrix of faults.

    Args:
        candidate: A subject.
        reference: Another subject, or None.
        relation_name: Which relation.
        case: On what.
        dtype: "float64" for the gate, else a working dtype.
        seed: Of the oracle's texts.

    Raises:
        CrosscheckError: The relation is unknown, or needs what the candidate does not declare.
    """
    load_relations()
    (relation,) = select([relation_name])
    two = reference is not None and reference is not candidate
    missing = why_not(relation, describe(candidate), two=two)
    if missing:
        raise CrosscheckError(f"check_case: {relation_name} can't run here: {missing}.")
    oracle = examine(guard(candidate), guard(reference), seed=seed)
    axis = "parity" if two else "self"
    job = make_job(relation, axis, oracle, seed)
    if job.open:
        job.run(case)
    job.decide(0.0)
    row = job.row()
    if dtype != oracle.dtype and row.verdict == "pass":
        working = in_working(job, candidate, reference, dtype, Clock(3600.0), 1.0)
        return working if working is not None else row
    return row
