"""One case taken apart: both sides, what was done to the candidate, where its cache differs.

Letters: B rows, T positions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import First, Right, first_difference
from crosscheck.diagnosis.recorder import Event, Recorder, Tap
from crosscheck.programs.case import Case
from crosscheck.relations.registry import RELATIONS, Relation, Sides
from crosscheck.select import load_relations
from crosscheck.subjects.protocol import SubjectInfo, describe

# The part of the largest value that rounding and float32 casts inside a model may move.
RTOL = 1e-5
POINTS = ("logits", "full", "fork")


@dataclass
class Trial:
    """A relation run on a case, with every call on the candidate noted.

    Attributes:
        candidate: The subject in doubt.
        reference: The one that is right; the candidate itself where there is no other.
        relation: Which relation.
        case: On what.
        sides: What it gave; None where the candidate raised.
        events: What was done to the candidate.
        rooms: What its states were made for.
        error: What the candidate raised.
    """

    candidate: Any
    reference: Any
    relation: Relation
    case: Case
    sides: Sides | None
    events: tuple[Event, ...]
    rooms: tuple[int | None, ...]
    error: Exception | None

    @property
    def info(self) -> SubjectInfo:
        """What the candidate declares."""
        return describe(self.candidate)

    @property
    def alone(self) -> bool:
        """Whether the candidate is its own reference."""
        return self.reference is self.candidate

    @cached_property
    def right(self) -> Right:
        """What a right cache holds."""
        return Right(self.reference)

    @cached_property
    def first(self) -> First | None:
        """The first entry of the candidate's cache that differs; None where none does."""
        if not self.right.can_tell or not self.events:
            return None
        return first_difference(self.events, self.right)

    @cached_property
    def wrong(self) -> NDArray | None:
        """Bool [B, T]: where the logits differ; None where nothing was compared."""
        if self.sides is None or "logits" not in self.sides.left:
            return None
        left, right = (side["logits"] for side in (self.sides.left, self.sides.right))
        return apart(left, right, self.sides.valid)

    @property
    def unbounded(self) -> bool:
        """Whether some of what is compared is not finite, on either side."""
        if self.sides is None:
            return False
        arrays = [*self.sides.left.values(), *self.sides.right.values()]
        return any(not _is_finite(array, self.sides.valid) for array in arrays)


def run_trial(
    candidate: Any, reference: Any, relation: str, case: Case, *, tap: Tap | None = None
) -> Trial:
    """Return the relation's sides on a case, and what was done to the candidate on the way.

    Args:
        candidate: The subject in doubt.
        reference: One that is right; None for the candidate's own forward.
        relation: Which relation.
        case: On what.
        tap: Filled with what one step's points are.
    """
    load_relations()
    recorder = Recorder(candidate, tap=tap)
    other = candidate if reference is None else reference
    sides, error = None, None
    try:
        sides = RELATIONS[relation].run(recorder, other, case)
    except Exception as raised:
        error = raised
    # In metamorphic mode the right side may be run through the recorder too: it comes last.
    return Trial(
        candidate,
        other,
        RELATIONS[relation],
        case,
        sides,
        tuple(recorder.events),
        tuple(recorder.rooms),
        error,
    )


def apart(left: NDArray, right: NDArray, valid: NDArray | None) -> NDArray:
    """Return bool [B, T]: where two arrays differ beyond rounding; NaN on one side differs."""
    scale = float(np.nanmax(np.abs(right), initial=0.0))
    with np.errstate(invalid="ignore"):
        error = np.abs(left.astype(np.float64) - right.astype(np.float64))
    same = (error <= RTOL * scale) | (np.isnan(left) & np.isnan(right))
    wrong: NDArray = np.logical_not(same.reshape(*same.shape[:2], -1).all(axis=2))
    return wrong if valid is None else wrong & valid


def _is_finite(array: NDArray, valid: NDArray | None) -> bool:
    finite = np.isfinite(array.astype(np.float64))
    shown = valid is not None and finite.shape[:2] == valid.shape
    return bool((finite[valid] if shown else finite).all())
