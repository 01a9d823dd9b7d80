"""One call of `check` from its first question to its last row, within one budget in seconds.

The order: who may judge; the float64 gate over every relation's examples, one by one in turn;
generated programs; for what failed the smallest case, where it begins and which fault explains it;
planted faults for what passed; the working dtype.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from crosscheck.budget import Clock
from crosscheck.environment import environment
from crosscheck.errors import BudgetEnded, CrosscheckError, SubjectError
from crosscheck.explain import explain
from crosscheck.greedy_ids import judge_greedy
from crosscheck.jobs import LARGER, Job, make_job
from crosscheck.judging import sentence
from crosscheck.oracle import Oracle, examine
from crosscheck.planting import Planting
from crosscheck.programs.engine import search
from crosscheck.relations.registry import RELATIONS, Relation, why_not
from crosscheck.results import RelationResult, Report
from crosscheck.subjects.guard import guarded
from crosscheck.subjects.protocol import SubjectInfo, describe, steady
from crosscheck.working import judge_working, why_no, working_subject

Progress = Callable[[str, int, int], None]
Pair = tuple[Any | None, Any | None]
"""Candidate and reference in one dtype; None for one that has it not."""

# When each part stops, as shares of the budget; what one leaves over goes to the next.
EXAMPLES, PROGRAMS, EXPLAINED, PLANTED, WORKING = 0.45, 0.55, 0.75, 0.88, 0.95
GENERATED = 60
# A relation's first example is worth more than another's tenth.
REACHED = 0.75
GRACE = 3.0
# A call that takes longer hangs; a first call may compile a large model on a busy machine.
HANGS = 300.0
# Of a run without a budget: how many times what examining the judge took, at most so many seconds.
# It follows how busy the machine is; none should wait longer than this without having asked.
EXAMINATIONS, LONGEST = 10.0, 600.0


class Run:
    """One call of `check`: its jobs, its clock, and what is known of the oracle.

    Attributes:
        is_patient: Whether the budget follows how long the first questions took.
        longest: Up to how many seconds it grows for what could not tell yet; 0 for not at all.
        explained: The rows of failures, by the identity of their jobs.
    """

    def __init__(
        self,
        candidate: Any,
        reference: Any | None,
        clock: Clock,
        seed: int,
        progress: Progress | None,
        chosen: tuple[Relation, ...],
        *,
        is_patient: bool = False,
        longest: float = 0.0,
    ) -> None:
        self.clock, self.seed, self.chosen = clock, seed, chosen
        self.is_patient, self.longest = is_patient, longest
        self.candidate, self.reference = (guard(x, self._left) for x in (candidate, reference))
        self.info = describe(self.candidate)
        self.progress, self.done, self.total = progress, 0, 2 * len(chosen) + 1
        self.notes = [*self.info.notes, *_steady_words(self.info)]
        self.jobs: list[Job] = []
        self.explained: dict[int, RelationResult] = {}
        self.oracle: Oracle | None = None

    def report(self, dtypes: Sequence[str], faults: str) -> Report:
        """Return the report of the whole run."""
        two = self.reference is not None
        why = {r.name: why_not(r, self.info, two=two) for r in self.chosen}
        rows = [self._unsupported(r, reason) for r in self.chosen if (reason := why[r.name])]
        able = [r for r in self.chosen if why[r.name] is None]
        try:
            self._examine(able)
        except Exception as error:
            # Misuse is the caller's to see; what the subject does wrong is a result.
            if isinstance(error, CrosscheckError) and not isinstance(error, SubjectError):
                raise
            return self._finished([*rows, *self._unexamined(able, error)])
        self._gate()
        self._generate()
        for job in self.jobs:
            job.decide(self.clock.seconds)
        self._explain(EXPLAINED)
        planting = Planting(self.jobs, self.clock, faults, self._tell)
        planting.plant(PLANTED)
        planting.go_on(PLANTED, self._explain_late)
        working = self._work(dtypes, self.jobs, WORKING)
        working += self._go_on(dtypes, planting)
        working += self._lacking(dtypes)
        gate = [self.explained.get(id(job)) or job.row() for job in self.jobs]
        return self._finished([*rows, *gate, *working])

    def _go_on(self, dtypes: Sequence[str], planting: Planting) -> list[RelationResult]:
        """Spend the rest on what could not tell, and, if nobody gave a budget, more than that."""
        late = planting.go_on(1.0, self._explain_late)
        if self.longest > self.clock.seconds and any(job.wants_more for job in self.jobs):
            self.clock.seconds = self.longest
            late += planting.go_on(1.0, self._explain_late)
        return self._work(dtypes, late, 1.0)

    def _left(self) -> float:
        """Return how long a call may take: soon after the budget's end it is given up."""
        if self.is_patient and self.oracle is None:
            return math.inf
        more = max(0.0, self.longest - self.clock.seconds)
        return max(1.0, self.clock.left + more + GRACE)

    def _unexamined(self, able: list[Relation], error: Exception) -> list[RelationResult]:
        late = isinstance(error, BudgetEnded)
        verdict, why = "error", sentence(error)
        if late:
            verdict = "inconclusive"
            why = f"the budget ended before anything was compared: {error} {LARGER}"
        return [RelationResult(r.name, verdict, reason=why, late=late) for r in able]

    def _examine(self, able: list[Relation]) -> None:
        oracles = {"self": examine(self.candidate, seed=self.seed)}
        if self.reference is not None:
            # One copy of the candidate's weights, and of what was compiled, for both.
            own = oracles["self"]
            oracles["parity"] = examine(self.candidate, self.reference, seed=self.seed, own=own)
            theirs = describe(self.reference).notes
            self.notes += [f"reference: {note}" for note in theirs if note not in self.notes]
        if self.is_patient:
            self.clock.stretch(EXAMINATIONS * self.clock.spent, longest=LONGEST)
        self.oracle = oracles.get("parity", oracles["self"])
        for axis, oracle in oracles.items():
            self.notes += oracle.notes
            on_axis = [r for r in able if axis == "parity" or not r.parity]
            self.jobs += [make_job(r, axis, oracle, self.seed) for r in on_axis]

    def _gate(self) -> None:
        """Run the examples in turn, so that a short budget still reaches every relation."""
        waiting = [job for job in self.jobs if job.open]
        while waiting:
            for job in list(waiting):
                first = not job.ran
                share = REACHED if first else EXAMPLES
                more = self.clock.allows(share, job.slowest) and job.next()
                if not more or not job.open:
                    waiting.remove(job)
                    self._tell(job.relation.name)

    def _generate(self) -> None:
        """Give the rest of this part's time to generated programs."""
        for job in self.jobs:
            if job.relation.name == "cache.program" and job.open and job.ran:
                late = self.clock.until(PROGRAMS)
                found = search(
                    job.oracle.candidate,
                    steady(describe(job.oracle.candidate)),
                    job.stops,
                    programs=GENERATED,
                    deadline=late,
                    seed=self.seed,
                )
                self.notes.append(f"{found.programs} generated programs ({job.axis} axis)")

    def _work(self, dtypes: Sequence[str], jobs: list[Job], share: float) -> list[RelationResult]:
        rows: list[RelationResult] = []
        # What the subject's users run it in is always among them.
        for dtype in dict.fromkeys((*dtypes, self.info.dtype)):
            # Made once: a copy of the weights each, while hooks keep earlier copies alive.
            pair = cache(partial(working_pair, self.candidate, self.reference, dtype))
            try:
                for job in jobs:
                    wanted = job.verdict in ("pass", "blind") and dtype != job.oracle.dtype
                    if wanted and self.clock.allows(share, 2 * job.slowest):
                        row = in_working(job, *pair(), dtype, self.clock, share)
                        rows += [row] if row is not None else []
                rows += self._greedy(dtype, pair) if jobs is self.jobs else []
            except BudgetEnded as error:
                self.notes.append(f"the budget ended before {dtype} was tried out: {error}")
        return rows

    def _lacking(self, dtypes: Sequence[str]) -> list[RelationResult]:
        """Return a row for each dtype that was asked for and that a subject can't be had in."""
        rows: list[RelationResult] = []
        gates = {"float64", *(job.oracle.dtype for job in self.jobs)}
        for dtype in [each for each in dict.fromkeys(dtypes) if each not in gates]:
            subjects = [each for each in (self.candidate, self.reference) if each is not None]
            why = next(filter(None, (why_no(each, dtype) for each in subjects)), "")
            if why and any(job.ran for job in self.jobs):
                self.notes.append(f"{dtype} is not tested: {why}")
                rows.append(RelationResult("rounding", "unsupported", reason=why, dtype=dtype))
        return rows

    def _greedy(self, dtype: str, pair: Callable[[], Pair]) -> list[RelationResult]:
        able = self.info.capabilities
        if "cache" not in able or "quant" in able or not self.clock.allows(WORKING):
            return []
        if not any(job.relation.name.startswith("cache.") for job in self.jobs):
            return []
        oracle = self.oracle
        if oracle is None or oracle.wrong or oracle.shaken or dtype == oracle.dtype:
            return []
        subject, against = pair()
        if subject is None or against is None:
            return []
        axis = "self" if self.reference is None else "parity"
        return [judge_greedy(subject, against, oracle, dtype, seed=self.seed, axis=axis)]

    def _explain(self, share: float) -> None:
        """Explain what failed; each may take half of the time that is left, the last all."""
        todo = [job for job in self.jobs if self._is_new(job)]
        for place, job in enumerate(todo):
            spent = self.clock.share
            left = max(0.0, share - spent) / (1 if job is todo[-1] else 2)
            self.explained[id(job)] = explain(
                job, job.row(), deadline=self.clock.until(spent + left)
            )
            self._tell(f"{job.relation.name}, {place + 1} of {len(todo)} failures")

    def _explain_late(self, job: Job) -> None:
        """Explain what failed after the others: half of the time that is left is for it."""
        if self._is_new(job):
            middle = self.clock.until((self.clock.share + 1.0) / 2)
            self.explained[id(job)] = explain(job, job.row(), deadline=middle)

    def _is_new(self, job: Job) -> bool:
        """Return whether a job failed, and not only because it fails within one subject too."""
        own = {each.relation.name for each in self.jobs if each.failure and each.axis == "self"}
        return job.verdict == "fail" and (job.axis == "self" or job.relation.name not in own)

    def _unsupported(self, relation: Relation, reason: str) -> RelationResult:
        documented = self.info.documented.get(relation.name)
        return RelationResult(
            relation.name,
            "unsupported",
            reason=reason,
            documented=(documented.sentence, documented.source) if documented else None,
        )

    def _finished(self, rows: list[RelationResult]) -> Report:
        if self.oracle is not None and self.oracle.decoder is not None:
            rows = [*rows, _contradicted(self.oracle)]
        place = {name: i for i, name in enumerate(RELATIONS)}
        rows = sorted(rows, key=lambda row: (row.axis != "self", place.get(row.name, 10**6)))
        self.notes.append(compared_words(self.jobs))
        self._tell("", end=True)
        return Report(
            subject=self.info.name,
            against=None if self.reference is None else describe(self.reference).name,
            rows=tuple(rows),
            oracle=self.oracle.status if self.oracle else "unchecked: the subject did not answer",
            notes=tuple(dict.fromkeys(self.notes)),
            coverage={
                job.relation.name: tuple(job.killed) for job in self.jobs if job.axis == "self"
            },
            env=environment(),
            seconds=self.clock.spent,
        )

    def _tell(self, name: str, *, end: bool = False) -> None:
        self.done = self.total if end else min(self.done + 1, self.total)
        if self.progress is not None:
            self.progress(name, self.done, self.total)


def _steady_words(info: SubjectInfo) -> list[str]:
    if info.steady is None:
        return []
    return [
        f"beyond {info.steady} tokens a text's result depends on the steps that feed it: relations "
        "between different steps are held to texts up to there"
    ]


def compared_words(jobs: list[Job]) -> str:
    """Return how much was compared in the gate: a run that compared nothing must say so."""
    found = sum((job.compared for job in jobs), Counter())
    if not found:
        return "no comparison made"
    return "compared: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.items()))


def working_pair(candidate: Any, reference: Any | None, dtype: str) -> Pair:
    """Return candidate and reference in a working dtype; without a reference the candidate twice.

    None stands for a subject that has it not.
    """
    left = working_subject(candidate, dtype)
    return left, left if reference is None else working_subject(reference, dtype)


def in_working(
    job: Job, candidate: Any | None, reference: Any | None, dtype: str, clock: Clock, share: float
) -> RelationResult | None:
    """Return a job's result in a working dtype; None where a subject or the level has none.

    Both subjects are in it already.
    """
    left, right = candidate, candidate if job.axis == "self" else reference
    if left is None or right is None:
        return None
    return judge_working(job, left, right, dtype, clock, share)


def _contradicted(oracle: Oracle) -> RelationResult:
    name = describe(oracle.reference).name
    return RelationResult(
        "oracle.decoder",
        "fail",
        cases=1,
        reason=f"the uncached forward of {name}: {oracle.decoder}",
        dtype=oracle.dtype,
    )


def guard(subject: Any | None, left: Callable[[], float] | None = None) -> Any | None:
    """Return a subject whose misbehavior becomes typed errors; None for none.

    Args:
        subject: Any, or None.
        left: Tells what is left of a budget; None without one.
    """
    if subject is None or left is None:
        return None if subject is None else guarded(subject)
    return guarded(subject, timeout_seconds=HANGS, left=left)
