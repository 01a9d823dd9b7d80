"""Plant the faults that a passing relation is there for: what it can't see, it can't vouch for."""

from collections.abc import Callable
from typing import Any

from crosscheck.budget import Clock
from crosscheck.errors import BudgetEnded
from crosscheck.faults import FAULTS, Fault
from crosscheck.jobs import LARGER, Job
from crosscheck.judging import sentence
from crosscheck.programs.case import Case
from crosscheck.subjects.protocol import describe
from crosscheck.subjects.remembered import Remembered

COMPUTED_ANEW = frozenset({"mode.stale", "cache.work", "jit.equal"})


def plantable(job: Job, which: str) -> list[Fault]:
    """Return the faults to plant for a job: those it names, else all that the subject can have.

    Args:
        job: A relation that passed.
        which: "catches", or "all".
    """
    info, two = describe(job.oracle.candidate), job.axis == "parity"
    fitting = [f for f in FAULTS.values() if not f.missing(info) and (two or not f.parity)]
    named = [fault for fault in fitting if fault.name in job.relation.catches]
    return named if which == "catches" and named else fitting


def try_faults(job: Job, clock: Clock, share: float, *, which: str = "catches") -> None:
    """Plant faults and set the verdict to blind where the relation does not see one.

    A relation that names none of the faults that can be planted must see at least one of the
    others. A job that was late once goes on where it stopped; what was not seen is planted again in
    cases that ran since.
    """
    every, late = plantable(job, which), False
    right = right_for(job)
    cases = [(case, False) for case in job.cases] + [(case, True) for case in job.refused_cases]
    fresh = [(case, refuses) for case, refuses in cases if not _is_in(case, job.planted_in)]
    named = any(fault.name in job.relation.catches for fault in every)
    refused: list[str] = []
    for fault in every:
        is_unseen = fault.name in job.unseen
        if fault.name in job.killed or (is_unseen and not fresh):
            continue
        if not clock.allows(share, job.slowest):
            late = True
            break
        try:
            planted = fault.plant(right)
        except BudgetEnded:
            late = job.given_up = True
            break
        except Exception as error:
            refused.append(f"{fault.name} ({sentence(error)})")
            continue
        todo = fresh if is_unseen else cases
        seen = _is_seen(job, planted, todo, lambda: clock.allows(share, job.slowest))
        if seen is None:
            late = True
            break
        if is_unseen:
            job.unseen.remove(fault.name)
        (job.killed if seen else job.unseen).append(fault.name)
        if seen and not named:
            break
    job.late = late
    if not late:
        job.planted_in = [case for case, _ in cases]
    _judge(job, refused, named=named, many=len(every))


def right_for(job: Job) -> Any:
    """Return the subject to plant in: the candidate, its uncached answers remembered.

    Not where the relation asks whether, or how often, the subject computes anew.
    """
    candidate = job.oracle.candidate
    return candidate if job.relation.name in COMPUTED_ANEW else Remembered(candidate)


def _is_in(case: Case, cases: list[Case]) -> bool:
    # Cases hold arrays, which have no truth value: the same case is the same object.
    return any(case is each for each in cases)


def _is_seen(
    job: Job, planted: Any, cases: list[tuple[Case, bool]], in_time: Callable[[], bool]
) -> bool | None:
    """Return whether some case that passed kills the fault; None when the time is up first.

    The case that kills comes to the front of the list: it is likely to kill the next fault too.
    """
    for place, (case, refuses) in enumerate(cases):
        if not in_time():
            return None
        outcome = job.outcome(planted, planted_reference(job, planted), case)
        if isinstance(outcome.error, BudgetEnded):
            job.given_up = True
            return None
        # Where the right subject refuses, another exception shows nothing; another answer does.
        if outcome.killed and (outcome.verdict == "fail" or not refuses):
            cases.insert(0, cases.pop(place))
            return True
    return False


def planted_reference(job: Job, planted: Any) -> Any:
    """Return the right side when the left one is planted: itself, unless a second subject is."""
    return planted if job.axis == "self" else job.oracle.reference


def _judge(job: Job, refused: list[str], *, named: bool, many: int) -> None:
    if job.killed and not (named and job.unseen):
        if job.late:
            job.reason = f"{len(job.killed)} of {many} faults were planted within the budget"
        return
    if job.late and not (named and job.unseen):
        job.verdict = "inconclusive"
        job.reason = f"the budget ended before faults were planted: it may be blind. {LARGER}"
        return
    if job.unseen and not job.exhausted:
        job.verdict, job.late = "inconclusive", True
        job.reason = (
            f"only {job.ran} of its examples ran within the budget, and those did not see "
            f"{', '.join(job.unseen)} when planted in this subject. {LARGER}"
        )
        return
    job.verdict = "blind"
    if job.unseen:
        job.reason = f"it did not see {', '.join(job.unseen)} when planted in this subject"
    else:
        why = f": {'; '.join(refused)}" if refused else ""
        job.reason = f"no fault could be planted in this subject to show that it sees{why}"
