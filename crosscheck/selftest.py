"""Plant every fault in the user's own model, and see which relation sees it.

A fault counts as killed where some relation fails by at least ten times its tolerance in float64.
"""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from crosscheck.budget import Clock
from crosscheck.detection import DetectionMatrix
from crosscheck.errors import CrosscheckError
from crosscheck.faults import FAULTS, Fault
from crosscheck.judging import KILL, Outcome, run_case, sentence
from crosscheck.oracle import Oracle, examine
from crosscheck.programs.case import Case
from crosscheck.relations.registry import Relation, why_not
from crosscheck.select import select
from crosscheck.subjects.protocol import describe

Progress = Callable[[str, int, int], None]
DEPTHS = ("first", "named", "every")


class _Bench:
    """The right subject, what planting needs to know of it, and what has been seen."""

    def __init__(self, oracle: Oracle, clock: Clock, seed: int) -> None:
        self.oracle, self.clock, self.seed = oracle, clock, seed
        self.unseen: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._cases: dict[str, tuple[Case, ...]] = {}
        self._holds: dict[tuple[str, int], bool] = {}

    def cases(self, relation: Relation) -> tuple[Case, ...]:
        """Return a relation's examples, made once."""
        if relation.name not in self._cases:
            info = describe(self.oracle.candidate)
            self._cases[relation.name] = tuple(relation.examples(info, self.seed))
        return self._cases[relation.name]

    def holds(self, relation: Relation, number: int) -> bool:
        """Return whether the right subject passes an example: else it can show no fault."""
        key = relation.name, number
        if key not in self._holds:
            right = self.oracle.candidate
            outcome = run_case(
                relation, right, right, self.cases(relation)[number], rtol=self.oracle.rtol
            )
            # A wrong answer where the right subject refuses is as telling as one where it is right.
            self._holds[key] = outcome.verdict in ("pass", "refused")
            if outcome.verdict in ("fail", "error"):
                self.note(f"{relation.name} does not hold before a fault is planted")
        return self._holds[key]

    def note(self, sentence: str) -> None:
        """Keep a sentence for the report, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def selftest(
    subject: Any,
    *,
    relations: str | Iterable[str] = "core",
    faults: str | Iterable[str] = "all",
    budget_seconds: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    depth: str = "named",
) -> DetectionMatrix:
    """Return which relation sees which fault when it is planted in this subject.

    Args:
        subject: A right subject.
        relations: "core", "all", names and globs, comma-separated or listed.
        faults: "all", names and globs, comma-separated or listed.
        budget_seconds: When to stop planting; None for all that there is.
        seed: Of the examples.
        progress: Called with the fault, how many were tried, and of how many.
        depth: On which relations a fault is tried: "first" until one kills it, "named" on all
            that are there for it and on others until one kills it, "every" on all.

    Raises:
        CrosscheckError: A name matches nothing, the budget is not above 0, the depth is unknown.
    """
    if depth not in DEPTHS:
        raise CrosscheckError(
            f"selftest: depth is {depth!r}, expected one of {', '.join(map(repr, DEPTHS))}."
        )
    if budget_seconds is not None and not budget_seconds > 0:
        raise CrosscheckError(f"selftest: budget_seconds is {budget_seconds}, expected above 0.")
    wanted, chosen = named_faults(faults), select(relations)
    clock = Clock(float("inf") if budget_seconds is None else budget_seconds)
    bench = _Bench(examine(subject, seed=seed), clock, seed)
    info = describe(bench.oracle.candidate)
    usable = [relation for relation in chosen if why_not(relation, info, two=True) is None]
    cells: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    for number, fault in enumerate(wanted):
        if progress is not None:
            progress(fault.name, number, len(wanted))
        if not clock.allows(1.0):
            skipped[fault.name] = "the budget ended before it was planted"
        elif reason := fault.missing(info) or _refusal(bench, fault):
            skipped[fault.name] = reason
        else:
            cells[fault.name] = _row(bench, fault, usable, depth)
    return DetectionMatrix(
        info.name,
        cells,
        skipped,
        {name: tuple(faults) for name, faults in bench.unseen.items()},
        tuple(bench.notes),
        clock.spent,
    )


def named_faults(wanted: str | Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults that are asked for, in the dictionary's order.

    Raises:
        CrosscheckError: A name or a glob matches nothing.
    """
    parts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    patterns = ["*" if part.strip() == "all" else part.strip() for part in parts if part.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in FAULTS):
            raise CrosscheckError(
                f"selftest: faults has {pattern!r}, which names none of {len(FAULTS)} faults. "
                "`crosscheck list faults` shows them."
            )
    if not patterns:
        raise CrosscheckError("selftest: faults is empty, expected names, globs or 'all'.")
    return tuple(f for f in FAULTS.values() if any(fnmatchcase(f.name, p) for p in patterns))


def try_case(
    relation: Relation, fault: Fault, subject: Any, case: Case, *, rtol: float | None = None
) -> Outcome:
    """Return what a relation says of a subject with a fault, planted anew, on one case.

    Args:
        relation: What must hold.
        fault: What is planted.
        subject: A right subject.
        case: On what.
        rtol: Of the semantic level, where the oracle's own noise is above the level's.

    Raises:
        CrosscheckError: The fault cannot be planted in this subject.
    """
    planted = fault.plant(subject)
    reference = subject if fault.parity or relation.parity else planted
    return run_case(relation, planted, reference, case, rtol=rtol)


def _refusal(bench: _Bench, fault: Fault) -> str:
    try:
        fault.plant(bench.oracle.candidate)
    except Exception as error:
        return sentence(error)
    return ""


def _looks_for(relation: Relation, fault: Fault) -> bool:
    """Return whether a relation is there for a fault, or for the one that it is a variant of."""
    base = ".".join(fault.name.split(".")[:2])
    return fault.name in relation.catches or base in relation.catches


def _row(bench: _Bench, fault: Fault, usable: Sequence[Relation], depth: str) -> dict[str, float]:
    """Return what the relations saw of one fault, those that are there for it first."""
    row: dict[str, float] = {}
    for relation in sorted(usable, key=lambda each: not _looks_for(each, fault)):
        named = fault.name in relation.catches
        wanted = depth == "every" or (depth == "named" and named)
        if not wanted and any(effect >= KILL for effect in row.values()):
            break
        if not bench.clock.allows(1.0):
            break
        effect = _effect(bench, fault, relation)
        if effect is None:
            continue
        row[relation.name] = effect
        if named:
            bench.unseen.setdefault(relation.name, [])
            if effect < KILL:
                bench.unseen[relation.name].append(fault.name)
    return row


def _effect(bench: _Bench, fault: Fault, relation: Relation) -> float | None:
    """Return the largest effect on a relation's examples, as a multiple of its tolerance.

    None where none of them compares anything in this subject.
    """
    effect = None
    for number, case in enumerate(bench.cases(relation)):
        outcome = try_case(relation, fault, bench.oracle.candidate, case, rtol=bench.oracle.rtol)
        if outcome.verdict in ("nothing", "refused"):
            continue
        effect = effect or 0.0
        if outcome.verdict == "error":
            bench.note(f"{fault.name} made {relation.name} raise: {outcome.reason}")
        elif outcome.severity > effect and bench.holds(relation, number):
            effect = outcome.severity
        if effect >= KILL or not bench.clock.allows(1.0):
            break
    return effect
