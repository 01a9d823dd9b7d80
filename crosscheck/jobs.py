"""One relation on one axis: its examples one by one, and what they showed so far."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crosscheck import budget
from crosscheck.compare import Comparison
from crosscheck.errors import BudgetEnded, CrosscheckError, TimedOut
from crosscheck.judging import Outcome, run_case, sentence, without_sides
from crosscheck.levels import Semantic
from crosscheck.oracle import ROOM, Oracle, remeasured
from crosscheck.place import is_logits
from crosscheck.programs.case import Case
from crosscheck.programs.case_json import case_to_json
from crosscheck.relations.registry import Relation, Sides
from crosscheck.results import RelationResult, Verdict
from crosscheck.subjects.protocol import describe

# An error up to this may be float32 rounding that the first look at the oracle did not meet.
GRAY = 1e-5
KEPT = 24
# What to do about a budget that was too small.
LARGER = "Give a larger --budget (budget_seconds, a longer profile)"
# So many cases that raise are enough to say so.
ERRORS = 5
JUDGES_ITSELF = frozenset({"cache.causal", "mode.stale"})


@dataclass
class Job:
    """A relation on an axis.

    Attributes:
        relation: What must hold.
        axis: "self" or "parity".
        oracle: Who judges on this axis.
        seed: Of the examples.
        ran: How many cases ran and compared something.
        cases: The first of those that passed, for planting faults and for the working dtype.
        worst: The passing comparison that came closest to failing.
        failure: The case that failed, and how.
        raised: The first case that raised, and what: a failure elsewhere says more.
        errors: How many raised.
        slowest: Seconds that a case took at most.
        reason: Of a verdict that no case gave.
        verdict: Set where no case gives it; None while the cases decide.
        killed: Planted faults that it saw.
        unseen: Planted faults that it did not.
        planted_in: The cases in which those that are unseen were planted.
        refused: The first refusal, where the subject may refuse a case.
        refused_cases: Those cases: what a fault answers instead of a refusal shows it.
        exhausted: Whether all examples ran.
        late: Whether the budget ended before all of it was tried.
        given_up: Whether it ended during a call: the subject is asked nothing after that.
        inherits: Whether its verdict is that of the same relation within the candidate.
        compared: How many logits, cache entries and other numbers were compared.
    """

    relation: Relation
    axis: str
    oracle: Oracle
    seed: int
    ran: int = 0
    cases: list[Case] = field(default_factory=list)
    worst: tuple[float, Comparison] | None = None
    failure: tuple[Case, Outcome] | None = None
    raised: tuple[Case, Outcome] | None = None
    errors: int = 0
    slowest: float = 0.0
    reason: str = ""
    verdict: Verdict | None = None
    killed: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    planted_in: list[Case] = field(default_factory=list)
    refused: str = ""
    refused_cases: list[Case] = field(default_factory=list)
    exhausted: bool = False
    late: bool = False
    given_up: bool = False
    inherits: bool = False
    compared: Counter[str] = field(default_factory=Counter)
    _examples: Iterator[Case] | None = None

    @property
    def open(self) -> bool:
        """Whether another case may change the verdict."""
        return self.verdict is None and self.failure is None and self.errors < ERRORS

    @property
    def wants_faults(self) -> bool:
        """Whether the time was up before all faults were planted in the cases that ran."""
        if self.verdict not in ("pass", "inconclusive") or self.raised is not None or self.given_up:
            return False
        ran = len(self.cases) + len(self.refused_cases)
        return self.late and bool(self.cases) and not (self.unseen and len(self.planted_in) == ran)

    @property
    def wants_examples(self) -> bool:
        """Whether the time was up before it could tell, and a further example may do so."""
        if self.verdict != "inconclusive" or self.inherits or self.given_up or self.exhausted:
            return False
        could = bool(self.unseen) or (self.late and not self.ran)
        return could and self.raised is None and not self.wants_faults

    @property
    def wants_more(self) -> bool:
        """Whether it could not tell, for want of time."""
        return self.verdict == "inconclusive" and (self.wants_faults or self.wants_examples)

    def next(self) -> bool:
        """Run the next example; return whether there was one."""
        try:
            if self._examples is None:
                info = describe(self.oracle.candidate)
                self._examples = iter(self.relation.examples(info, self.seed))
            case = next(self._examples, None)
        except Exception as error:
            # A relation's own code may be the user's: its slip is an error of this row alone.
            self.verdict, self.reason = "error", f"its examples can't be made: {sentence(error)}"
            return False
        if case is None:
            self.exhausted = True
            return False
        self.run(case)
        return True

    def run(self, case: Case) -> Outcome:
        """Run one case and keep what it showed."""
        began = budget.now()
        outcome = self.outcome(self.oracle.candidate, self.oracle.reference, case)
        self.slowest = max(self.slowest, budget.now() - began)
        if isinstance(outcome.error, BudgetEnded):
            self._cut(str(outcome.error))
            return outcome
        self._keep(case, outcome)
        return outcome

    def stops(self, case: Case) -> bool:
        """Run one case; return whether no further one can change the verdict."""
        self.run(case)
        return not self.open

    def _cut(self, why: str) -> None:
        self.late = self.given_up = True
        # What the subject did before says more than that its time was up.
        if self.raised is None:
            self.verdict = "inconclusive"
            self.reason = f"the budget ended while it ran: {why} {LARGER}"

    def _keep(self, case: Case, outcome: Outcome) -> None:
        if outcome.verdict == "nothing":
            return
        if outcome.verdict == "refused":
            self.refused = self.refused or outcome.reason
            self.refused_cases += [case][: KEPT - len(self.refused_cases)]
            return
        self.ran += 1
        self.compared += counted(outcome.sides)
        if outcome.verdict == "fail":
            self.failure = (case, outcome)
            return
        if outcome.verdict == "error":
            self.raised = self.raised or (case, outcome)
            self.errors += 1 if not isinstance(outcome.error, TimedOut) else ERRORS
            return
        if len(self.cases) < KEPT:
            self.cases.append(case)
        if outcome.comparison is not None and (
            self.worst is None or outcome.severity > self.worst[0]
        ):
            self.worst = (outcome.severity, outcome.comparison)

    def outcome(self, candidate: Any, reference: Any, case: Case) -> Outcome:
        """Return the outcome of a case on any two subjects, with this axis's tolerance."""
        names = None
        if self.axis == "parity":
            names = (describe(candidate).name, describe(reference).name)
        first = run_case(
            self.relation, candidate, reference, case, rtol=self.oracle.rtol, names=names
        )
        return self._reconsidered(first, case, names, candidate)

    def _reconsidered(
        self, outcome: Outcome, case: Case, names: tuple[str, str] | None, candidate: Any
    ) -> Outcome:
        # Only the real subject is given the benefit of the doubt, and only if its own uncached
        # forward shows that much noise on this very text.
        comparison = outcome.comparison
        if candidate is not self.oracle.candidate or outcome.verdict != "fail":
            return outcome
        if comparison is None or not isinstance(comparison.tolerance, Semantic):
            return outcome
        if not comparison.required_tolerance <= GRAY:
            return outcome
        try:
            rtol = ROOM * remeasured(self.oracle, case.ids)
        except BudgetEnded as error:
            return Outcome("error", reason=sentence(error), error=error)
        if rtol < comparison.required_tolerance:
            return outcome
        reference = self.oracle.reference
        return run_case(self.relation, candidate, reference, case, rtol=rtol, names=names)

    def decide(self, budget_seconds: float) -> None:
        """Set the verdict once no more cases will run."""
        if self.verdict is not None:
            return
        if self.failure is not None:
            self.verdict, self.reason = "fail", self.failure[1].reason
        elif self.raised is not None:
            self.verdict, self.reason = "error", self.raised[1].reason
        elif self.ran:
            self.verdict = "pass"
        elif self._examples is None:
            self.verdict, self.late = "inconclusive", True
            self.reason = f"not reached within the budget of {budget_seconds:.3g} s"
        elif self.refused:
            self.verdict, self.reason = "unsupported", self.refused
        elif self.relation.name == "cache.work":
            self.verdict = "unsupported"
            self.reason = "the subject doesn't tell forwarded_positions"
        elif self.slowest:
            self.verdict, self.reason = "inconclusive", "nothing was compared"
        else:
            self.verdict, self.reason = "unsupported", "none of its examples fits this subject"

    def row(self) -> RelationResult:
        """Return what the report says of it, without localizing or naming."""
        comparison = self.failure[1].comparison if self.failure else None
        shown = comparison
        if shown is None and self.worst is not None:
            shown = self.worst[1]
        told = self.failure or self.raised
        documented = describe(self.oracle.candidate).documented.get(self.relation.name)
        row = RelationResult(
            name=self.relation.name,
            verdict=self.verdict or "inconclusive",
            cases=self.ran,
            reason=self.reason,
            comparison=comparison,
            case=None if told is None else case_to_json(told[0]),
            documented=(documented.sentence, documented.source) if documented else None,
            axis=self.axis,
            dtype=self.oracle.dtype,
            kills=tuple(self.killed),
            late=self.late,
        )
        return with_numbers(row, shown)


def counted(sides: Sides | None) -> Counter[str]:
    """Return how many numbers of each kind were compared."""
    found: Counter[str] = Counter()
    if sides is not None:
        share = 1.0 if sides.valid is None else float(np.mean(sides.valid))
        for name, array in sides.left.items():
            stored = name.startswith(("k.", "v."))
            kind = "logits" if is_logits(name) else "cache entries" if stored else "other numbers"
            found[kind] += round(np.size(array) * share)
    return found


def with_numbers(row: RelationResult, shown: Comparison | None) -> RelationResult:
    """Return the row with a comparison's numbers; a failure without any can't have passed."""
    if shown is not None:
        return replace(
            row,
            worst=shown.worst,
            required_tolerance=shown.required_tolerance,
            tolerance=str(shown.tolerance),
        )
    if row.verdict == "fail":
        return replace(row, worst=math.nan, required_tolerance=math.inf)
    return row


def make_job(relation: Relation, axis: str, oracle: Oracle, seed: int) -> Job:
    """Return a job, closed at once where the oracle can't judge it."""
    job = Job(relation, axis, oracle, seed)
    barred = oracle.shaken or oracle.wrong
    if barred and relation.name not in JUDGES_ITSELF:
        job.verdict, job.reason = "inconclusive", f"no oracle: {barred}"
    return job


def failing_case(job: Job) -> tuple[Case, Outcome]:
    """Return the case that failed, and its outcome without arrays.

    Raises:
        CrosscheckError: None failed.
    """
    if job.failure is None:
        raise CrosscheckError(f"failing_case: {job.relation.name} has no failing case.")
    case, outcome = job.failure
    return case, without_sides(outcome)
