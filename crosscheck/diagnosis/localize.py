"""Say where a divergence begins: through the cache first, then captures, then single operations.

The cache needs no hooks and is the same in compiled JAX and in torch. Where it is silent the
captured results of the layers are compared, in the order of the forward pass.
Letters: B rows, T tokens of a call.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import First
from crosscheck.diagnosis.recorder import Event
from crosscheck.diagnosis.trial import Trial, apart, run_trial
from crosscheck.programs.case import Case
from crosscheck.results import Divergence


def localize(
    candidate: Any,
    reference: Any | None,
    relation_name: str,
    case: Case,
    *,
    deadline: float | None = None,
) -> Divergence:
    """Return where a failing case begins to differ.

    Row and position are those of the first wrong logits, or of the first wrong cache entry where no
    logits differ; layer and point are those of the first part of the forward pass that is wrong
    by itself.

    Args:
        candidate: The subject in doubt.
        reference: A right subject with the same weights; None for the candidate's own forward.
        relation_name: The relation that failed.
        case: On which it failed.
        deadline: Not needed: it takes about as long as two runs of the case.
    """
    trial = run_trial(candidate, reference, relation_name, case)
    row, position = _place(trial)
    layer, point, inherited = _origin(trial)
    return Divergence(
        relation_name, row, position, _chunk(trial, position), layer, point, inherited
    )


def _place(trial: Trial) -> tuple[int, int]:
    """Return the row and position of the first wrong logits, else of the first wrong entry."""
    if trial.wrong is not None and trial.wrong.any():
        position = int(np.argmax(trial.wrong.any(axis=0)))
        return int(np.argmax(trial.wrong[:, position])), position
    if trial.first is not None:
        return trial.first.row, trial.first.position
    return 0, 0


def _chunk(trial: Trial, position: int) -> int | None:
    starts = trial.sides.chunks if trial.sides is not None else ()
    return int(np.searchsorted(starts, position, side="right")) - 1 if starts else None


def _origin(trial: Trial) -> tuple[int | None, str, bool | None]:
    """Return the layer, the point, and whether its input was wrong already."""
    first = trial.first
    if first is not None and first.shows == "attention":
        # Wrong keys and values come of a wrong input: what the attention before read.
        return first.layer - 1, "attn", False
    if first is not None:
        return first.layer, first.parts[0], False
    return _captured(trial) or (None, "logits", None)


def _captured(trial: Trial) -> tuple[int | None, str, bool | None] | None:
    """Compare what the layers answer in a step with what they answer in one forward."""
    step = getattr(trial.candidate, "capture_step", None)
    if step is None or "capture" not in trial.info.capabilities:
        return None
    event = _wrong_step(trial)
    if event is None:
        return None
    ours = _step_points(trial, event)
    owed = trial.reference.capture(np.array(event.texts, dtype=np.int32))
    width = len(event.texts[0]) - len(event.before[0])
    for name, array in ours.items():
        if name in owed and array.ndim >= 2 and array.shape[1] == width:
            right = np.asarray(owed[name])[:, -width:]
            if right.shape == array.shape and apart(array, right, None).any():
                return (*_named(name), False)
    return None


def _wrong_step(trial: Trial) -> Event | None:
    """Return the first step whose logits are not those of one forward; rows equally long."""
    for event in trial.events:
        if event.verb != "step" or event.padded or len({len(t) for t in event.texts}) > 1:
            continue
        full = np.asarray(trial.reference.full(np.array(event.texts, dtype=np.int32)))
        width = len(event.texts[0]) - len(event.before[0])
        logits: NDArray | None = event.logits
        if logits is not None and apart(logits, full[:, -width:], None).any():
            return event
    return None


def _step_points(trial: Trial, event: Event) -> dict[str, NDArray]:
    """Feed the tokens before in one step, then capture the step in doubt."""
    texts = np.array(event.texts, dtype=np.int32)
    before = len(event.before[0])
    state = trial.candidate.init(len(texts), None)
    if before:
        _, state = trial.candidate.step(state, texts[:, :before])
    points, _ = trial.candidate.capture_step(state, texts[:, before:])
    return {name: np.asarray(array) for name, array in points.items()}


def _named(name: str) -> tuple[int | None, str]:
    """Return the layer and the point of a canonical name: `layers.3.attn` is (3, "attn")."""
    found = re.fullmatch(r"(?:layers\.)?(?:(\d+)\.)?([a-z_]+)(?:\.(\d+))?", name)
    if found is None:
        return None, name
    number = found[1] or found[3]
    return None if number is None else int(number), found[2]


def describe_first(first: First | None) -> str:
    """Return a sentence on what the cache shows first."""
    return (
        "all entries are as they should be" if first is None else f"{first.words} ({first.shows})"
    )
