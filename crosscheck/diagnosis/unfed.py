"""A part of the model that takes something from the tokens before, and in a step is not given it.

It may be a bias on the scores that adds up along the text, a shift, a convolution: what it takes
belongs to the cache beside keys and values. Each part's inputs and results are looked at in four
runs: a whole text and the last step of it, each with two unlike beginnings.
Letters: T tokens of the text.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.trial import Trial
from crosscheck.results import Diagnosis
from crosscheck.subjects.heard import OPAQUE, Heard

TOKENS = 7
# A change of less than this share of the largest number is rounding.
RTOL = 1e-7


def unfed(trial: Trial) -> Iterator[Diagnosis]:
    """A part of the model depends on the tokens before, in a step on that step's alone."""
    new = _newest(trial)
    if not new or getattr(trial.candidate, "heard", None) is None:
        return
    try:
        runs = _runs(trial, new)
    except Exception:
        # It is asked for a step of its own: what becomes of that is no part of the failure.
        return
    if not runs:
        return
    for name in runs[0]:
        if all(name in run for run in runs) and _is_unfed(*(run[name] for run in runs), new=new):
            words = (
                f"what {name} gives for a token depends on the tokens before it; in a step it is"
                " given that step's tokens alone, and gives the same whatever stood before"
            )
            yield Diagnosis("state.dropped", 0.85, words)
            return


def _newest(trial: Trial) -> int:
    """Return how many tokens the longest later step was fed, up to 2; 0 for no later step."""
    sizes = [
        len(text) - len(before)
        for event in trial.events
        if event.verb == "step"
        for before, text in zip(event.before, event.texts, strict=True)
        if before
    ]
    return min(2, max(sizes, default=0))


def _runs(trial: Trial, new: int) -> list[dict[str, Heard]]:
    """Return what is heard of two whole texts, then of the last step of each.

    Empty where the step reads nothing of what was fed before: then no part is at fault alone.
    """
    info, subject = trial.info, trial.candidate
    span = info.vocab_size - info.first_id
    tokens = ((np.arange(TOKENS) * 7 + trial.case.seed) % span + info.first_id).astype(np.int32)
    other = tokens.copy()
    other[1] = (other[1] - info.first_id + 1 + span // 2) % span + info.first_id
    whole, later, answers = [], [], []
    for text in (tokens[None], other[None]):
        with subject.heard() as run:
            subject.full(text.copy())
        whole.append(dict(run))
        _, state = subject.step(subject.init(1, 32), text[:, :-new].copy())
        with subject.heard() as run:
            logits, _ = subject.step(state, text[:, -new:].copy())
        later.append(dict(run))
        answers.append(np.array(logits))
    return [] if _near(*answers) else [*whole, *later]


def _is_unfed(whole: Heard, other: Heard, step: Heard, again: Heard, *, new: int) -> bool:
    inputs = [_cut(run.given, step.given, new) for run in (whole, other)]
    if inputs[0] is None or inputs[1] is None or not _has_tokens(whole.given, step.given):
        return False
    if not all(_same(inputs[0], each) for each in (inputs[1], step.given, again.given)):
        return False
    outputs = [_cut(run.gave, step.gave, new) for run in (whole, other)]
    if outputs[0] is None or outputs[1] is None:
        return False
    return not _same(outputs[0], outputs[1]) and _same(step.gave, again.gave)


def _has_tokens(whole: Sequence[Any], step: Sequence[Any]) -> bool:
    """Return whether some array of real numbers has an axis of tokens."""
    pairs = zip(whole, step, strict=True)
    return any(
        isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape != b.shape for a, b in pairs
    )


def _cut(whole: Sequence[Any], step: Sequence[Any], new: int) -> list[Any] | None:
    """Return a whole run's values for the newest tokens; None where a step has something else."""
    if len(whole) != len(step):
        return None
    found: list[Any] = []
    for a, b in zip(whole, step, strict=True):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            cut = _newest_of(a, b, new)
            if cut is None:
                return None
            found.append(cut)
        elif type(a) is not type(b) or isinstance(a, np.ndarray) or OPAQUE in (a, b):
            return None
        else:
            found.append(a)
    return found


def _newest_of(whole: NDArray, step: NDArray, new: int) -> NDArray | None:
    """Return the newest tokens along the first axis that is longer in a whole run."""
    if whole.ndim != step.ndim:
        return None
    axes = [i for i, (a, b) in enumerate(zip(whole.shape, step.shape, strict=True)) if a != b]
    if not axes:
        return whole
    if (whole.shape[axes[0]], step.shape[axes[0]]) != (TOKENS, new):
        return None
    return np.take(whole, range(TOKENS - new, TOKENS), axis=axes[0])


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether all values agree but for rounding, arrays of other shapes left out of it."""
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, np.ndarray):
            if a != b:
                return False
        elif a.shape != b.shape or not _near(a, b):
            return False
    return True


def _near(a: NDArray, b: NDArray) -> bool:
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.nanmax(np.abs(a), initial=0.0, where=np.isfinite(a)))
    return bool(np.allclose(a, b, rtol=0.0, atol=RTOL * scale, equal_nan=True))
