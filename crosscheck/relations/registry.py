"""What a relation is, and the decorator by which ours and a user's come to be.

A relation is one function: run two programs that must agree, and return both sides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.errors import Refused as Refused
from crosscheck.levels import Tolerance
from crosscheck.programs.case import Case
from crosscheck.subjects.protocol import CAPABILITIES, SubjectInfo, steady
from crosscheck.tolerance import semantic

CORE = frozenset({"cache", "chunk", "rollback", "gather", "left_pad", "right_pad", "f64", "kv"})


@dataclass(frozen=True)
class Sides:
    """Two sides that must agree.

    Attributes:
        left: The candidate: name -> array [B, T, ...], in the order of the forward pass; `logits`
            last.
        right: The reference, the same names and shapes.
        valid: bool [B, T] of what is compared; None for everything.
        chunks: Where the left side's steps began, as positions; for reports and diagnosis.
        words: What the two sides are, for reports ("chunks 1,1,12", "one forward").
        expect: "agree", or "refuse": the left side must have raised, and `meta["raised"]` is its
            sentence or None. Ours expect "agree": what a subject answers before it refuses must be
            right too.
        meta: JSON data for reports and diagnosis: pads, windows, capacity, lengths after the steps.
        level: Instead of the relation's, where the subject decides: a quantized cache is bounded, a
            batch-invariant batch is bitwise.
    """

    left: Mapping[str, NDArray]
    right: Mapping[str, NDArray]
    valid: NDArray | None = None
    chunks: tuple[int, ...] = ()
    words: tuple[str, str] = ("cached", "full")
    expect: str = "agree"
    meta: Mapping[str, Any] = field(default_factory=dict)
    level: Tolerance | None = None


Run = Callable[[Any, Any, Case], Sides]
Cases = Callable[[Any, int], Iterable[Case]]
Applies = Callable[[SubjectInfo], str | None]


@dataclass(frozen=True)
class Relation:
    """One relation: `run(candidate, reference, case)` gives the sides that must agree.

    Attributes:
        name: Dotted, unique.
        needs: Capabilities of the candidate.
        level: How much the sides may differ.
        catches: Names of the faults that it is there for.
        about: One sentence: what must hold.
        run: Left from the candidate, right from the reference (the same subject in metamorphic
            mode).
        cases: (info, seed) -> the examples that always run, most telling first.
        applies: info -> why it says nothing about this subject beyond what `needs` tell, or None.
        parity: Whether it compares two subjects, and says nothing about one.
        restepped: Whether its sides feed one text in different steps.
    """

    name: str
    needs: frozenset[str]
    level: Tolerance
    catches: frozenset[str]
    about: str
    run: Run
    cases: Cases
    applies: Applies | None = None
    parity: bool = False
    restepped: bool = False

    def examples(self, info: SubjectInfo, seed: int) -> Iterable[Case]:
        """Return the examples for a subject, none longer than it allows.

        Where its results depend on the steps from some length on, sides of different steps must
        agree up to there.
        """
        return self.cases(steady(info) if self.restepped else info, seed)


RELATIONS: dict[str, Relation] = {}


def relation(
    *,
    name: str,
    needs: Iterable[str],
    cases: Cases,
    level: Tolerance | None = None,
    catches: Iterable[str] = (),
    applies: Applies | None = None,
    parity: bool = False,
    restepped: bool = False,
) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as a relation; its docstring says what holds.

    Args:
        name: Dotted, unique.
        needs: Capabilities of the candidate.
        cases: (info, seed) -> the examples that always run, most telling first.
        level: How much the sides may differ; the float64 gate by default.
        catches: Names of the faults that it is there for.
        applies: info -> why it says nothing about a subject beyond what `needs` tell, or None.
        parity: Whether it compares two subjects, and says nothing about one.
        restepped: Whether its sides feed one text in different steps.

    Raises:
        CrosscheckError: The name is taken, or the function has no docstring.
    """

    def register(run: Run) -> Run:
        if name in RELATIONS:
            raise CrosscheckError(f"relation: name is {name!r}, which is taken. Choose another.")
        about = " ".join((run.__doc__ or "").split("\n\n")[0].split())
        if not about:
            raise CrosscheckError(f"relation: {name!r} has no docstring that says what must hold.")
        RELATIONS[name] = Relation(
            name,
            frozenset(needs),
            level or semantic(),
            frozenset(catches),
            about,
            run,
            cases,
            applies,
            parity,
            restepped,
        )
        return run

    return register


def why_not(relation: Relation, info: SubjectInfo, *, two: bool = False) -> str | None:
    """Return why a relation is not run on a subject, or None where it is.

    Args:
        relation: The relation.
        info: The candidate's, in full (`describe`).
        two: Whether the reference is another subject.
    """
    if relation.name in info.absent:
        return info.absent[relation.name]
    for name in sorted(relation.needs - info.capabilities):
        reason = info.absent.get(name) or CAPABILITIES.get(name, "no such capability is known")
        return f"{info.name} does not declare {name} ({reason})"
    if relation.parity and not two:
        return "it compares two subjects, and there is one"
    return relation.applies(info) if relation.applies else None


def core_names() -> tuple[str, ...]:
    """Return the relations that need nothing beyond a cache, its padding and its probe."""
    return tuple(name for name, each in RELATIONS.items() if each.needs <= CORE)
