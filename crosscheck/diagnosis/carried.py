"""What a model carries from token to token besides keys and values, and a step that loses it.

A convolution's last inputs or a recurrence's state belong to the cache too. A step of several
tokens may not take them up, where steps of one token do: both are tried on a text of its own.
Letters: B rows, T tokens of the text, N entries in the order of the text, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import Entries, differs, entries
from crosscheck.diagnosis.trial import Trial, apart
from crosscheck.results import Diagnosis

TOKENS = 6
# A change that moves a logit by less than this share of the largest is rounding.
RTOL = 1e-7


def lost(trial: Trial) -> Iterator[Diagnosis]:
    """A later step of several tokens does not take up what steps of one token do."""
    if not trial.info.capabilities >= {"cache", "chunk"} or not _occurred(trial):
        return
    if trial.right.can_tell:
        score, words = 0.9, _below(trial)
    else:
        # What multiplies wrongly may look the same: less sure.
        score, words = 0.6, _alike(trial)
    if words:
        yield Diagnosis("state.dropped", score, words)


def _occurred(trial: Trial) -> bool:
    """Return whether a row that held something was fed several tokens in one step.

    What else was done to a cache may be at fault by itself: then this would say too much.
    """
    return all(event.verb in ("step", "fork") for event in trial.events) and any(
        before and len(text) - len(before) > 1
        for event in trial.events
        for before, text in zip(event.before, event.texts, strict=True)
    )


def _below(trial: Trial) -> str:
    """Return a sentence where what lies below the first attention loses its state.

    Without anything carried an entry of layer 0 follows from its own token, so that the tokens
    before it can't move it.
    """
    ids = _text(trial, 5)
    other = ids.copy()
    other[:, 2] = _another(trial, other[:, 2])
    owed, moved = (_held(trial.candidate, each, (3, 1, 1)) for each in (ids, other))
    got = _held(trial.candidate, ids, (3, 2))
    if not len(owed) == len(moved) == len(got) == 5:
        return ""
    carried = _differ(moved, owed)[3:].all()
    wrong = _differ(got, owed)
    if not carried or wrong[:3].any() or not wrong[3]:
        return ""
    return (
        "keys and values of layer 0 depend on the tokens before; a step of several tokens"
        " gives its first one others than a step of one token does"
    )


def _alike(trial: Trial) -> str:
    """Return a sentence where a step of several tokens is wrong, and reads what it should.

    Then no mask explains it. A cache without keys and values by layer carries something else.
    """
    if any(trial.info.windows):
        return ""
    ids = np.repeat(_text(trial, TOKENS), TOKENS + 1, axis=0)
    for at in range(TOKENS):
        ids[at, at] = _another(trial, ids[at, at])
    first = TOKENS - 2
    ones, several = (_answers(trial.candidate, ids, first, sizes)[:, 0] for sizes in ((1,), (2,)))
    owed = np.asarray(trial.reference.full(ids.copy()))[:, first]
    if apart(ones[:, None], owed[:, None], None).any():
        return ""
    wrong = apart(several[-1:, None], owed[-1:, None], None).any()
    if not wrong or _moved(several).tolist() != [True] * (first + 1) + [False]:
        return ""
    return (
        "a step of one token is right; the same token as the first of a step of two reads the same"
        " tokens and gives other logits, and no keys and values are to be seen in the cache"
    )


def _text(trial: Trial, t: int) -> NDArray:
    info = trial.info
    span = info.vocab_size - info.first_id
    return ((np.arange(t) * 7 + trial.case.seed) % span + info.first_id).astype(np.int32)[None]


def _another(trial: Trial, token: Any) -> Any:
    info = trial.info
    span = info.vocab_size - info.first_id
    return (token - info.first_id + 1 + span // 2) % span + info.first_id


def _held(subject: Any, ids_BT: NDArray, sizes: Sequence[int]) -> Entries:
    """Return the entries of layer 0 after steps of these sizes."""
    state, at = subject.init(len(ids_BT), 32), 0
    for size in sizes:
        _, state = subject.step(state, ids_BT[:, at : at + size].copy())
        at += size
    return entries(subject.kv(state, 0), 0)


def _differ(ours: Entries, theirs: Entries) -> NDArray:
    """Return bool [N]: where both the key and the value differ."""
    keys_N = differs(ours.keys_NKH, theirs.keys_NKH)
    return keys_N & differs(ours.values_NKH, theirs.values_NKH)


def _answers(subject: Any, ids_BT: NDArray, first: int, sizes: Sequence[int]) -> NDArray:
    """Return the logits of what is fed after the first tokens, in steps of these sizes."""
    _, state = subject.step(subject.init(len(ids_BT), 32), ids_BT[:, :first].copy())
    parts = []
    for size in sizes:
        logits, state = subject.step(state, ids_BT[:, first : first + size].copy())
        first += size
        parts.append(np.array(logits))
    return np.concatenate(parts, axis=1)


def _moved(logits_BV: NDArray) -> NDArray:
    """Return bool [B - 1]: in which rows the logits are not those of the last row."""
    error_B = np.abs(logits_BV[:-1] - logits_BV[-1]).max(axis=1)
    return np.asarray(error_B > RTOL * np.abs(logits_BV[-1]).max())
