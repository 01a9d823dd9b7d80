"""What a relation is, and the decorator by which ours and a user's come to be.

A relation is one function: run two programs that must agree, and return both sides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.levels import Tolerance
from crosscheck.programs.case import Case
from crosscheck.tolerance import semantic


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
        expect: "agree", or "refuse": the left side must have raised (capacity exhausted).
        meta: JSON data for reports and diagnosis: pads, windows, capacity, lengths after the steps.
    """

    left: Mapping[str, NDArray]
    right: Mapping[str, NDArray]
    valid: NDArray | None = None
    chunks: tuple[int, ...] = ()
    words: tuple[str, str] = ("cached", "full")
    meta: Mapping[str, Any] = field(default_factory=dict)


Run = Callable[[Any, Any, Case], Sides]
Cases = Callable[[Any, int], Iterable[Case]]


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
    """

    name: str
    needs: frozenset[str]
    level: Tolerance
    catches: frozenset[str]
    about: str
    run: Run
    cases: Cases


RELATIONS: dict[str, Relation] = {}


def relation(
    *,
    name: str,
    needs: Iterable[str],
    cases: Cases,
    level: Tolerance | None = None,
    catches: Iterable[str] = (),
) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as a relation; its docstring says what holds.

    Raises:
        CrosscheckError: The name is taken, or the function has no docstring.
    """

    def register(run: Run) -> Run:
        if name in RELATIONS:
            raise CrosscheckError(f"relation: name is {name!r}, which is taken. Choose another.")
        about = (run.__doc__ or "").strip().split("\n\n")[0]
        if not about:
            raise CrosscheckError(f"relation: {name!r} has no docstring that says what must hold.")
        RELATIONS[name] = Relation(
            name, frozenset(needs), level or semantic(), frozenset(catches), about, run, cases
        )
        return run

    return register
