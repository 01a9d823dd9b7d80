"""Write a failing case out as a short program of its own, which knows nothing of crosscheck.

The relation is run once more on taped subjects. Where the two sides first differ, the vectors of
both sides are looked up among the logits that were returned; the calls that led there are the
program.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crosscheck.compare import Comparison
from crosscheck.judging import judge_sides
from crosscheck.place import is_logits
from crosscheck.programs.case import Case
from crosscheck.relations.registry import Relation, Sides
from crosscheck.reproduce_program import Ending, Origin, program
from crosscheck.tape import Call, Tape


def reproduce(
    relation: Relation,
    candidate: Any,
    reference: Any,
    case: Case,
    *,
    origins: Sequence[Origin],
    dtype: str | None = None,
    rtol: float | None = None,
) -> str | None:
    """Return a program that exits with 1 while the case fails, or None where none can be written.

    None where the two sides are not logits that some call returned, but computed from them; or
    where the program would have 40 lines.

    Args:
        relation: The relation that fails.
        candidate: The candidate, in the dtype in which it fails.
        reference: The reference; the candidate itself where there is no second model.
        case: The failing case.
        origins: How the program makes the candidate, and the reference where there is one.
        dtype: What the program casts to; None leaves the models as they are made.
        rtol: Of the semantic level, where the oracle's own noise is above the level's.
    """
    tape = Tape()
    left = tape.subject(candidate, 0)
    right = left if reference is candidate else tape.subject(reference, 1)
    sides = relation.run(left, right, case)
    if sides.expect == "refuse":
        targets, ending = _must_raise(tape)
    else:
        targets, ending = _must_agree(relation, sides, tape, rtol)
    if ending is None:
        return None
    needed = tape.needed(call.number for call in targets)
    return program(relation.name, needed, targets, ending, origins=origins, dtype=dtype)


def _must_raise(tape: Tape) -> tuple[list[Call], Ending | None]:
    steps = [call for call in tape.calls if call.model == 0 and call.method == "step"]
    if not steps:
        return [], None
    lines = ('print("it answered, expected an error")', "sys.exit(1)")
    about = "the last call must raise, there is no room left."
    return steps[-1:], Ending(about, lines, refused=True)


def _must_agree(
    relation: Relation, sides: Sides, tape: Tape, rtol: float | None
) -> tuple[list[Call], Ending | None]:
    comparison = _logits_comparison(relation, sides, rtol)
    if comparison is None or comparison.first is None:
        return [], None
    name, place = comparison.points[0], comparison.first
    at, where = (place.row, place.position), {"row": place.row, "position": place.position}
    left = tape.find(np.asarray(sides.left[name])[at], **where)
    right = tape.find(np.asarray(sides.right[name])[at], **where)
    if left is None or right is None:
        return [], None
    lines = (
        f"left, right = {_element(left)}, {_element(right)}",
        f"error, allowed = np.abs(np.float64(left) - right).max(), {comparison.allowed!r}",
        'print(f"largest difference {error:.3g}, allowed {allowed:.3g}")',
        "sys.exit(0 if error <= allowed else 1)",
    )
    about = f"{' vs '.join(sides.words)}, row {place.row}, position {place.position}."
    return [left[0], right[0]], Ending(about, lines)


def _logits_comparison(relation: Relation, sides: Sides, rtol: float | None) -> Comparison | None:
    """Return the numbers of the first point of logits that fails; None where none does."""
    for name in sides.left:
        if is_logits(name) and name in sides.right:
            alone = replace(sides, left={name: sides.left[name]}, right={name: sides.right[name]})
            comparison = judge_sides(relation, alone, rtol=rtol).comparison
            if comparison is not None and comparison.first is not None:
                return comparison
    return None


def _element(found: tuple[Call, tuple[int, int]]) -> str:
    call, (row, place) = found
    return f"y{call.number}[{row}, {place}]"
