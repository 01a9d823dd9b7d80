"""What a cache reads, told by a changed token: the rows after a gather, and how far back it goes.

Nothing of the cache need be shown, and no fault be planted.
Letters: B rows, T tokens of the text, P pairs of rows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.reach import reach
from crosscheck.diagnosis.trial import Trial, apart
from crosscheck.results import Diagnosis

TOKENS = 4
# Steps after the gather: attention that is nearly all on one token hides what one step reads.
ASKED = 4
# A change that moves a logit by less than this share of the largest is rounding.
RTOL = 1e-7


def mixed(trial: Trial) -> Iterator[Diagnosis]:
    """After a gather a row reads what stood there before, besides what was asked for."""
    info = trial.info
    if "kv" in info.capabilities:
        # The entries themselves say it (`disorder`).
        return
    t = min([TOKENS, *(window - ASKED for window in info.windows if window)])
    if t < 2 or not any(event.verb == "gather" for event in trial.events):
        return
    swapped, straight = (_readings(trial, t, swap=swap) for swap in (True, False))
    if straight[1].any() or not straight[0].any():
        # Rows that read each other without a gather are another fault.
        return
    left_T, asked_T = swapped
    # Peaked attention may hide a token: one that shows both is enough.
    if (left_T & asked_T).any():
        words = "after a gather a token reads the row that stood there besides the one asked for"
        yield Diagnosis("gather.partial", 0.92, words)
    elif left_T[:-1].any() and not left_T[-1] and asked_T[-1] and not asked_T[:-1].any():
        words = "after a gather the newest token is of the row asked for, the older ones are not"
        yield Diagnosis("gather.partial.old", 0.92, words)


def _readings(trial: Trial, t: int, *, swap: bool) -> tuple[NDArray, NDArray]:
    """Return bool [T] twice: whether the first row of a pair reads token j of itself, of its mate.

    Pair p has one token changed: j of its first row, then j of its second, and none in the last.
    """
    info, subject, pairs = trial.info, trial.candidate, 2 * t + 1
    span = info.vocab_size - info.first_id
    both_2T = (np.arange(2 * t).reshape(2, t) * 5 + trial.case.seed) % span
    ids_P2T = np.tile(both_2T, (pairs, 1, 1))
    for row in (0, 1):
        for j in range(t):
            ids_P2T[row * t + j, row, j] += 1 + span // 2
    ids_BT = (ids_P2T.reshape(2 * pairs, t) % span + info.first_id).astype(np.int32)
    state = subject.init(2 * pairs, 32)
    for at in range(t):
        _, state = subject.step(state, ids_BT[:, at : at + 1].copy())
    if swap:
        state = subject.gather(state, np.arange(2 * pairs).reshape(pairs, 2)[:, ::-1].ravel())
    parts = []
    for at in range(ASKED):
        asked = np.full((2 * pairs, 1), info.first_id + (3 * at + 1) % span, np.int32)
        logits, state = subject.step(state, asked)
        parts.append(np.array(logits)[::2])
    logits_PTV = np.concatenate(parts, axis=1)
    least = RTOL * np.abs(logits_PTV).max()
    moved_P = np.abs(logits_PTV[:-1] - logits_PTV[-1]).max(axis=(1, 2)) > least
    return moved_P[:t], moved_P[t:]


def narrowed(trial: Trial) -> Iterator[Diagnosis]:
    """A subject that tells no windows reads less far back with a cache than without, or farther."""
    info, ids = trial.info, trial.case.ids[:1]
    t = ids.shape[1]
    if info.windows or "cache" not in info.capabilities or t < 4:
        return
    wrong_T = apart(_stepped(trial.candidate, ids), _whole(trial.candidate, ids), None)[0]
    # Whatever is wrong sooner is no matter of how far back a token reads.
    if not wrong_T.any() or wrong_T[:2].any():
        return
    if "visible" in reach(trial.candidate):
        yield from _by_band(trial, ids)
    else:
        yield from _by_influence(trial, ids)


def _by_band(trial: Trial, ids: NDArray) -> Iterator[Diagnosis]:
    """Find the window under which the forward without a cache answers like itself, and like steps.

    Until told otherwise the forward takes one mask for all layers.
    """
    t, age_TT = ids.shape[1], np.subtract.outer(*(np.arange(ids.shape[1]),) * 2)

    def window_like(owed: NDArray) -> int | None:
        for window in range(1, t + 1):
            band_BTT = ((age_TT >= 0) & (age_TT < window))[None]
            banded = np.asarray(trial.candidate.full(ids.copy(), visible=band_BTT.copy()))
            if not apart(owed, banded, None).any():
                return window
        return None

    bare, cached = (window_like(answer(trial.candidate, ids)) for answer in (_whole, _stepped))
    if bare is None or cached is None:
        return
    words = f"the forward answers as with a window of {bare}, steps of one token as with {cached}"
    told = f"; windows=({bare},) for each layer tells crosscheck of it"
    if bare == t:
        yield Diagnosis("window.cache_only", 0.92, words.replace(f"of {bare}", f"of {t} or more"))
    elif cached == bare - 1:
        yield Diagnosis("window.off_by_one", 0.92, words + told)
    elif cached == bare + 1:
        yield Diagnosis("window.off_by_one.wide", 0.92, words + told)


def _by_influence(trial: Trial, ids: NDArray) -> Iterator[Diagnosis]:
    """Count the tokens that move the last one's logits: L layers of window W read L * (W - 1) back.

    A text that is shorter says nothing of W.
    """
    bare, cached = (_reach(trial, ids, answer) for answer in (_whole, _stepped))
    layers, known = abs(bare - cached), trial.info.num_layers
    if not layers or max(bare, cached) == ids.shape[1]:
        return
    if known in (0, layers) and (bare - 1) % layers == 0:
        told = f"windows=({(bare - 1) // layers + 1},) for each layer tells crosscheck of it"
        words = f"the forward reads the last {bare} tokens, steps of one token {cached}; {told}"
        name = "window.off_by_one" if cached < bare else "window.off_by_one.wide"
        yield Diagnosis(name, 0.92, words)


def _reach(trial: Trial, ids: NDArray, answer: Callable[[Any, NDArray], NDArray]) -> int:
    """Return how many tokens, itself included, the last token of a text reads."""
    info, t = trial.info, ids.shape[1]
    span = info.vocab_size - info.first_id
    ids_BT = np.tile(ids - info.first_id, (t + 1, 1))
    ids_BT[np.arange(t), np.arange(t)] += 1 + span // 2
    ids_BT = (ids_BT % span + info.first_id).astype(np.int32)
    logits_BV = answer(trial.candidate, ids_BT)[:, -1]
    moved_T = np.abs(logits_BV[:t] - logits_BV[t]).max(axis=1) > RTOL * np.abs(logits_BV[t]).max()
    return t - int(np.argmax(moved_T)) if moved_T.any() else 0


def _whole(subject: Any, ids: NDArray) -> NDArray:
    return np.asarray(subject.full(ids.copy()))


def _stepped(subject: Any, ids: NDArray) -> NDArray:
    state, parts = subject.init(len(ids), 32), []
    for at in range(ids.shape[1]):
        logits, state = subject.step(state, ids[:, at : at + 1].copy())
        parts.append(np.array(logits))
    return np.concatenate(parts, axis=1)
