"""Signs in the logits: what the wrong ones are made of, and on what they depend.

Letters: B rows, T positions, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.reach import reach
from crosscheck.diagnosis.trial import Trial, apart
from crosscheck.results import Diagnosis

# Of fewer numbers any is a multiple, and any few rise together by chance.
SEVERAL = 8


def run_to_run(trial: Trial) -> Iterator[Diagnosis]:
    """The same call gives other logits."""
    ids = trial.case.ids[:1]
    first, second = (np.array(trial.candidate.full(ids.copy())) for _ in range(2))
    if not np.array_equal(first, second, equal_nan=True):
        yield Diagnosis("train.dropout", 0.95, "the same forward twice gives different logits")


def empty_rows(trial: Trial) -> Iterator[Diagnosis]:
    """Rows with padding are not finite, others are."""
    both = _logits(trial)
    if both is None or np.isfinite(both[0]).all():
        return
    lost_B = ~np.isfinite(both[0]).all(axis=(1, 2))
    padded = any(event.padded for event in trial.events)
    if padded:
        rows = ", ".join(map(str, np.flatnonzero(lost_B)))
        yield Diagnosis("mask.empty_row_nan", 0.9, f"rows {rows}, which hold padding, are NaN")


def scaled(trial: Trial) -> Iterator[Diagnosis]:
    """Wrong logits are the right ones times one number, or a function of each of them."""
    both = _logits(trial)
    if both is None or trial.wrong is None or not trial.wrong.any():
        return
    left, right = (side[trial.wrong].astype(np.float64) for side in both)
    if not np.isfinite(left).all() or left.size < SEVERAL:
        return
    factor = float((left * right).sum() / max((right * right).sum(), 1e-300))
    if near(left, factor * right) and abs(factor - 1) > 1e-6:
        words = f"all wrong logits are {factor:.4g} times the right ones"
        yield Diagnosis("head.scale", 0.9, words)
        return
    order = np.argsort(right.ravel(), kind="stable")
    if (np.diff(left.ravel()[order]) >= -1e-9 * np.abs(left).max()).all():
        words = "the wrong logits are one rising function of the right ones, each by itself"
        yield Diagnosis("head.cap", 0.85, words)


def moved(trial: Trial) -> Iterator[Diagnosis]:
    """Wrong logits are right ones of other tokens of the row."""
    both = _logits(trial)
    if both is None or trial.wrong is None or not trial.wrong.any():
        return
    left, right = both
    offsets: list[int] = []
    for row, at in zip(*np.nonzero(trial.wrong), strict=True):
        error_T = np.abs(right[row] - left[row, at]).max(axis=-1)
        nearest = int(np.argmin(error_T))
        if not error_T[nearest] <= 1e-5 * np.abs(right).max():
            return
        offsets.append(nearest - int(at))
    words = f"the logits are those of the tokens {sorted(set(offsets))} places away"
    yield Diagnosis("head.slice", 0.9 if min(offsets) >= 0 else 0.85, words)
    if set(offsets) == {-1}:
        yield Diagnosis("head.slice.shifted", 0.9, words)


def windowed(trial: Trial) -> Iterator[Diagnosis]:
    """Unlike windows: the first wrong position tells, for no mask of all layers can be replayed."""
    windows = {w for w in trial.info.windows if w}
    if not windows or len(set(trial.info.windows)) == 1 or trial.wrong is None:
        return
    small, wrong_T = min(windows), trial.wrong.any(axis=0)
    at = int(np.argmax(wrong_T)) if wrong_T.any() else -1
    first = trial.first
    if (first is not None and first.layer == 0) or at not in (small - 1, small):
        return
    words = f"nothing is wrong before position {at}; a layer has a window of {small}"
    narrow = at == small - 1
    yield Diagnosis("window.off_by_one" if narrow else "window.off_by_one.wide", 0.7, words)


def early(trial: Trial) -> Iterator[Diagnosis]:
    """One token a step, the first that is wrong is the one with which the window is just full."""
    windows = set(trial.info.windows)
    window = next(iter(windows)) if len(windows) == 1 else None
    if not window or not 1 < window <= trial.case.ids.shape[1]:
        return
    if "cache" not in trial.info.capabilities:
        return
    ids = trial.case.ids[:1, :window]
    wrong_T = apart(_one_by_one(trial.candidate, ids), trial.reference.full(ids.copy()), None)[0]
    if wrong_T[-1] and not wrong_T[:-1].any():
        words = f"one token a step, the first wrong one is the last that a window of {window} holds"
        yield Diagnosis("window.off_by_one", 0.92, words)


def _one_by_one(subject: Any, ids: NDArray, room: int = 32) -> NDArray:
    """Return the logits of one token a step."""
    state, parts = subject.init(len(ids), room), []
    for at in range(ids.shape[1]):
        logits, state = subject.step(state, ids[:, at : at + 1].copy())
        parts.append(np.array(logits))
    return np.concatenate(parts, axis=1)


def roomy(trial: Trial) -> Iterator[Diagnosis]:
    """The room of the cache changes its logits."""
    if not trial.info.capabilities >= {"capacity", "chunk"}:
        return
    ids = trial.case.ids[:, :4]
    owed = np.asarray(trial.reference.full(ids.copy()))
    wrong = {}
    for room in (4, 32):
        logits, _ = trial.candidate.step(trial.candidate.init(len(ids), room), ids.copy())
        wrong[room] = apart(np.asarray(logits), owed, None).any()
    if wrong[32] and not wrong[4]:
        words = "with room for exactly the tokens it is right, with more room it is wrong"
        yield Diagnosis("capacity.as_length", 0.9, words)


def past_window(trial: Trial) -> Iterator[Diagnosis]:
    """The forward without a cache reads past the window that the cache keeps."""
    windows, t = set(trial.info.windows), trial.case.ids.shape[1]
    window = next(iter(windows)) if len(windows) == 1 else None
    if window is None or t <= window or "visible" not in reach(trial.candidate):
        return
    ids, age_TT = trial.case.ids, np.arange(t)[:, None] - np.arange(t)
    band = np.broadcast_to((age_TT >= 0) & (age_TT < window), (len(ids), t, t)).copy()
    bare = np.asarray(trial.candidate.full(ids.copy()))
    banded = np.asarray(trial.candidate.full(ids.copy(), visible=band))
    if apart(bare, banded, None).any():
        words = f"the forward without a cache reads past the window of {window}, the cache does not"
        yield Diagnosis("window.cache_only", 0.99, words)


def shrunk(trial: Trial) -> Iterator[Diagnosis]:
    """With room for less than the window the logits are those of a window as wide as the room."""
    room, windows = trial.case.capacity, trial.info.windows
    window = windows[0] if len(set(windows)) == 1 else None
    if room is None or window is None or room >= window:
        return
    if "visible" not in reach(trial.candidate):
        return
    ids = trial.case.ids[:, : room + 3]
    rows, t = ids.shape
    stepped = _one_by_one(trial.candidate, ids, room)
    age_TT = np.arange(t)[:, None] - np.arange(t)
    band = np.broadcast_to((age_TT >= 0) & (age_TT < room), (rows, t, t)).copy()
    banded = np.asarray(trial.candidate.full(ids.copy(), visible=band))
    if not apart(stepped, banded, None).any():
        words = f"with room for {room} the logits are those of a window of {room}"
        yield Diagnosis("capacity.shrinks_window", 0.95, words)


def one_token(trial: Trial) -> Iterator[Diagnosis]:
    """A single token is wrong with a cache: then neither positions nor masks explain it."""
    if "cache" not in trial.info.capabilities or not trial.alone:
        return
    ids = trial.case.ids[:1, :1]
    owed = np.asarray(trial.candidate.full(ids.copy()))
    logits, _ = trial.candidate.step(trial.candidate.init(1, 32), ids.copy())
    logits = np.asarray(logits)
    if apart(logits, owed, None).any() and np.abs(logits - owed).max() > 0.02 * np.abs(owed).max():
        words = "one token alone is wrong with a cache: what it reads is not its own value"
        yield Diagnosis("append.swap_kv", 0.5, words)


def shifted(trial: Trial) -> Iterator[Diagnosis]:
    """A common shift of all positions changes cached logits, though they are rotated."""
    info = trial.info
    if not info.capabilities >= {"cache", "chunk", "positions", "rope"} or trial.first is not None:
        return
    ids = trial.case.ids[:1, :4]
    place = np.arange(ids.shape[1])[None]
    full, cached = (
        [np.asarray(answer(trial.candidate, ids.copy(), place + shift)) for shift in (0, 7)]
        for answer in (_uncached, _cached)
    )
    moved_cached = apart(cached[0], cached[1], None).any()
    if moved_cached and not apart(full[0], full[1], None).any():
        words = "a shift of all positions changes cached logits: keys and queries rotate unlike"
        yield Diagnosis("rope.twice", 0.85, words)


def _uncached(subject: Any, ids: NDArray, place: NDArray) -> NDArray:
    return subject.full(ids, positions=place)


def _cached(subject: Any, ids: NDArray, place: NDArray) -> NDArray:
    return subject.step(subject.init(len(ids), 32), ids, positions=place)[0]


def _logits(trial: Trial) -> tuple[NDArray, NDArray] | None:
    sides = trial.sides
    if sides is None or "logits" not in sides.left:
        return None
    return sides.left["logits"], sides.right["logits"]


def near(a: NDArray, b: NDArray) -> bool:
    """Return whether two arrays agree but for rounding."""
    return bool(np.abs(a - b).max(initial=0.0) <= 1e-6 * max(np.abs(b).max(initial=0.0), 1e-300))


SIGNS = (
    run_to_run,
    empty_rows,
    scaled,
    moved,
    windowed,
    past_window,
    early,
    shifted,
    roomy,
    shrunk,
    one_token,
)
