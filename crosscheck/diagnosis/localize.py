"""Say where a divergence begins: through the cache first, then captures, then single operations.

The cache needs no hooks and is the same in compiled JAX and in torch. Where it is silent the
captured results of the layers are compared, in the order of the forward pass. Then the operation
that looks guilty is run alone, on right inputs.
Letters: B rows.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from crosscheck.diagnosis.disorder import disorder
from crosscheck.diagnosis.isolate import Isolation
from crosscheck.diagnosis.trial import Trial, apart, run_trial
from crosscheck.programs.case import Case
from crosscheck.results import Divergence


class Origin(NamedTuple):
    """Where it begins: the last fields of `Divergence`."""

    layer: int | None
    point: str
    inherited: bool | None
    origin: str | None
    isolated: str


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
        deadline: Not needed: it takes about as long as five runs of the case.
    """
    trial = run_trial(candidate, reference, relation_name, case)
    row, position = _place(trial)
    found = _origin(trial)
    return Divergence(relation_name, row, position, _chunk(trial, position), *found)


def _place(trial: Trial) -> tuple[int, int]:
    """Return the row and position of the first wrong logits, else of the first wrong entry."""
    if trial.wrong is not None and trial.wrong.any():
        position = int(np.argmax(trial.wrong.any(axis=0)))
        return int(np.argmax(trial.wrong[:, position])), position
    if trial.first is not None:
        return trial.first.row, trial.first.position
    if trial.sides is not None and "logits" in trial.sides.left:
        # Both sides may lack the same numbers.
        lost_BT = np.logical_not(np.isfinite(trial.sides.left["logits"]).all(axis=-1))
        if trial.sides.valid is not None:
            lost_BT = lost_BT & trial.sides.valid
        if lost_BT.any():
            position = int(np.argmax(lost_BT.any(axis=0)))
            return int(np.argmax(lost_BT[:, position])), position
    return 0, 0


def _chunk(trial: Trial, position: int) -> int | None:
    starts = trial.sides.chunks if trial.sides is not None else ()
    return int(np.searchsorted(starts, position, side="right")) - 1 if starts else None


def _origin(trial: Trial) -> Origin:
    """Return the layer, the point, and whether its input was wrong already."""
    mixed = disorder(trial)
    if mixed is not None and not _wrong_before(trial, mixed.tokens):
        words = "right before this gather, wrong after it"
        return Origin(mixed.layer, mixed.part, False, None, words)
    if trial.first is None:
        return _captured(trial)
    first = trial.first
    event = trial.events[first.event]
    if event.verb != "step" or first.shows in ("overwrite", "bookkeeping"):
        # No operation of the forward pass makes these: what they are fed has no part in it.
        words = f"right before this {event.verb}, wrong after it"
        return Origin(first.layer, first.parts[0], False, None, words)
    alone = Isolation(trial, first.event)
    if first.shows == "attention":
        # Wrong keys and values come of a wrong input: most often of what the attention before read.
        read = alone.verdict(f"layers.{first.layer - 1}.attn")
        if read.inherited is not True:
            return Origin(first.layer - 1, "attn", read.inherited, None, read.words)
    made = alone.verdict(f"layers.{first.layer}.attn", layer=first.layer)
    origin = alone.first if made.inherited else None
    return Origin(first.layer, first.parts[0], made.inherited, origin, made.words)


def _wrong_before(trial: Trial, position: int) -> bool:
    return trial.wrong is not None and bool(trial.wrong[:, :position].any())


def _captured(trial: Trial) -> Origin:
    """Compare what the layers answer in a step with what they answer in one forward."""
    at = _wrong_step(trial)
    if at is None:
        return Origin(None, "logits", None, None, "no step alone gives other logits")
    alone = Isolation(trial, at)
    if alone.obstacle or alone.first is None:
        return Origin(None, "logits", None, None, alone.obstacle or "all points of the step agree")
    layer, point = _named(alone.first)
    if not alone.can_feed(alone.first):
        return Origin(layer, point, False, None, "all that was captured before it agrees")
    found = alone.verdict(alone.first)
    return Origin(layer, point, found.inherited, None, found.words)


def _wrong_step(trial: Trial) -> int | None:
    """Return the first step whose logits are not those of one forward over each row's text."""
    for at, event in enumerate(trial.events):
        if event.verb != "step" or event.logits is None or event.real_BT is None:
            continue
        for b, (text, before) in enumerate(zip(event.texts, event.before, strict=True)):
            if len(text) == len(before):
                continue
            owed = np.asarray(trial.reference.full(np.array([text], dtype=np.int32)))
            ours = event.logits[b : b + 1, event.real_BT[b]]
            if apart(ours, owed[:, len(before) :], None).any():
                return at
    return None


def _named(name: str) -> tuple[int | None, str]:
    """Return the layer and the point of a canonical name: `layers.3.attn` is (3, "attn")."""
    found = re.fullmatch(r"layers\.(\d+)\.(\w+)", name)
    return (None, name) if found is None else (int(found[1]), found[2])
