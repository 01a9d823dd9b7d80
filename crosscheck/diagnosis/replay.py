"""Counterfactual replay: plant a fault in what is right, run the same case, compare the logits.

A fault that gives the candidate's own wrong logits is its name; one that gives others is not.
Letters: B rows, T positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.rebuilt import Rebuilt
from crosscheck.diagnosis.trial import POINTS, Trial, apart
from crosscheck.faults.registry import Fault
from crosscheck.relations.registry import Sides
from crosscheck.subjects.protocol import describe

# Share of the deviation that may stay unexplained in an exact replay.
EXACT = 1e-3


@dataclass(frozen=True)
class Match:
    """How well a planted fault reproduces the candidate on one case.

    Attributes:
        explained: 1 - |candidate - replay| / |candidate - right|, at least 0; 1 where all agree.
        pattern: Share of the wrong positions of either that are wrong in both.
        silent: Whether neither is wrong anywhere: that tells nothing.
    """

    explained: float
    pattern: float
    silent: bool = False

    @property
    def exact(self) -> bool:
        """Whether nothing of the deviation is left."""
        return self.explained >= 1 - EXACT

    @property
    def score(self) -> float:
        """From 0 to 1."""
        return 1.0 if self.exact else 0.7 * self.explained + 0.15 * self.pattern


@dataclass(frozen=True)
class Ground:
    """A right subject in which faults can be planted, and what it answers without one."""

    subject: Any
    clean: Sides


def grounds(trial: Trial) -> tuple[Ground, ...]:
    """Return where faults can be planted, best first.

    A second model comes first, for it has a cache that can be read and written; then the forward
    without a cache, rebuilt into a cached subject.
    """
    subjects = [Rebuilt(trial.reference)]
    if not trial.alone and not trial.relation.needs - describe(trial.reference).capabilities:
        subjects.insert(0, trial.reference)
    return tuple(g for subject in subjects if (g := _ground(trial, subject)) is not None)


def _ground(trial: Trial, subject: Any) -> Ground | None:
    """Return a subject with its answers; None where it breaks the relation itself."""
    try:
        sides = trial.relation.run(subject, subject, trial.case)
    except Exception:
        return None
    wrong = any(
        apart(sides.left[name], sides.right[name], sides.valid).any()
        for name in POINTS
        if name in sides.left
    )
    return None if wrong else Ground(subject, sides)


def replay(trial: Trial, fault: Fault, ground: Ground) -> Match | None:
    """Return how a fault planted in a right subject compares; None where it can't be tried."""
    if fault.missing(describe(ground.subject)) or trial.sides is None:
        return None
    try:
        planted = fault.plant(ground.subject)
        sides = trial.relation.run(planted, ground.subject, trial.case)
    except Exception:
        # What can't be planted here, or makes the program impossible, explains nothing.
        return None
    return match(trial.sides, sides, ground.clean)


def match(candidate: Sides, planted: Sides, clean: Sides) -> Match | None:
    """Return how two left sides compare, measured against the right one's."""
    deviation = rest = 0.0
    both = either = 0
    shared = [n for n in POINTS if all(n in s.left for s in (candidate, planted, clean))]
    for name in shared:
        ours, theirs, right = (side.left[name] for side in (candidate, planted, clean))
        if not ours.shape == theirs.shape == right.shape or ours.dtype.kind != "f":
            return None
        valid = candidate.valid
        wrong, other = apart(ours, right, valid), apart(theirs, right, valid)
        both, either = both + int((wrong & other).sum()), either + int((wrong | other).sum())
        deviation += _energy(ours, right, wrong | other)
        rest += _energy(ours, theirs, apart(ours, theirs, valid))
    if not shared:
        return None
    pattern = both / either if either else 1.0
    if rest == 0.0:
        return Match(1.0, pattern, silent=not either)
    return Match(max(0.0, 1.0 - (rest / deviation) ** 0.5) if deviation else 0.0, pattern)


def _energy(a: NDArray, b: NDArray, where: NDArray) -> float:
    """Return the sum of squared differences; what is not finite on one side counts as its size."""
    x, y = a[where].astype(np.float64), b[where].astype(np.float64)
    one = np.isfinite(x) != np.isfinite(y)
    with np.errstate(invalid="ignore"):
        error = np.where(np.isfinite(x) & np.isfinite(y), x - y, 0.0)
    size = np.nanmax(np.abs(b), initial=1.0, where=np.isfinite(b))
    return float((np.where(one, size, error) ** 2).sum())
