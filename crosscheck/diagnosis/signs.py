"""Signs that name a fault without a replay: what the entries and the logits themselves look like.

Each sign gives a fault, a score of at most 0.9 (a replay that fits is worth more), and a sentence.
Letters: B rows, T positions, V vocabulary, N entries, K key/value heads, H head width.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import Entries, differs, entries
from crosscheck.diagnosis.recorder import Event
from crosscheck.diagnosis.trial import Trial, apart
from crosscheck.results import Diagnosis

Sign = Callable[[Trial], Iterator[Diagnosis]]


def signs(trial: Trial) -> list[Diagnosis]:
    """Return what all signs say."""
    return [found for sign in SIGNS for found in sign(trial)]


def _logits(trial: Trial) -> tuple[NDArray, NDArray] | None:
    sides = trial.sides
    if sides is None or "logits" not in sides.left:
        return None
    return sides.left["logits"], sides.right["logits"]


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
    if not np.isfinite(left).all():
        return
    factor = float((left * right).sum() / max((right * right).sum(), 1e-300))
    if _near(left, factor * right) and abs(factor - 1) > 1e-6:
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


def stored(trial: Trial) -> Iterator[Diagnosis]:
    """What the first wrong entries are instead."""
    first = trial.first
    if first is None:
        return
    event = trial.events[first.event]
    ours = entries(event.kv[first.layer], first.row)
    owed = trial.right.after(event.texts[first.row])[first.layer]
    if event.verb == "gather":
        yield from _gathered(trial, event, first.layer)
    elif first.shows == "bookkeeping":
        yield from _counted(trial, event, first.row)
    elif first.layer == 0:
        start = max(0, len(event.before[first.row]) - (len(event.texts[first.row]) - len(owed)))
        yield from _instead(trial, ours, owed, start)


def _instead(trial: Trial, ours: Entries, owed: Entries, start: int) -> Iterator[Diagnosis]:
    n = min(len(ours), len(owed))
    k, v = ours.keys_NKH[-n:].astype(float), ours.values_NKH[-n:].astype(float)
    k_right, v_right = owed.keys_NKH[-n:].astype(float), owed.values_NKH[-n:].astype(float)
    bad_k, bad_v = differs(k, k_right), differs(v, v_right)
    bad = bad_k | bad_v
    if (
        k.shape == v.shape
        and not differs(np.r_[k[bad], v[bad]], np.r_[v_right[bad], k_right[bad]]).any()
    ):
        yield Diagnosis("append.swap_kv", 0.9, "the stored keys are the values owed there")
        return
    old = np.arange(n) < start
    same = _same_numbers(k, k_right), _same_numbers(v, v_right)
    if all(same) and bad_k.any() and bad_v.any():
        words = "the right numbers are all there, in the places of other heads and tokens"
        yield Diagnosis("concat.axis", 0.85, words)
        return
    if (bad & old).any():
        yield Diagnosis("write.overlap", 0.8, "an entry from before the step was overwritten")
        return
    empty = not v[bad_v].any() and not k[bad_k].any()
    if empty or _repeats(v[bad_v], v_right) or _repeats(k[bad_k], k_right):
        words = "new slots hold " + ("zeros" if empty else "entries of other tokens")
        yield Diagnosis("append.stale.values" if not bad_k.any() else "append.stale", 0.9, words)
        return
    if bad_k.any() and not bad_v.any() and "rope" in trial.info.capabilities:
        words = "values are right and keys are not: they were rotated to other positions"
        for name in ("pos.reset", "pos.off_by_one", "rope.twice"):
            yield Diagnosis(name, 0.3, words)


def rounded(trial: Trial) -> Iterator[Diagnosis]:
    """Stored entries need few bits of mantissa, and the logits are only a little wrong."""
    steps = [event for event in trial.events if event.verb == "step" and event.kv]
    if not steps or trial.info.dtype != "float64":
        return
    kv, (text, *_) = steps[-1].kv[0], steps[-1].texts
    ours = entries(kv, 0)
    bits = min(_bits(ours.keys_NKH), _bits(ours.values_NKH)) if len(text) else 53
    if bits <= 24:
        words = f"what is stored has {bits} bits of mantissa, a float64 has 53"
        yield Diagnosis("append.dtype", 0.9, words)


def _gathered(trial: Trial, event: Event, layer: int) -> Iterator[Diagnosis]:
    """Compare keys and values after a gather with those of the rows as they were before."""
    fits: dict[str, set[str]] = {"k": set(), "v": set()}
    orders = {
        "done": event.texts,
        "left": tuple(event.before[i] for i in range(len(event.rows)) if i < len(event.before)),
    }
    for name, texts in orders.items():
        if len(texts) != len(event.texts):
            continue
        for part, side in (("k", "keys_NKH"), ("v", "values_NKH")):
            if all(
                _equal(
                    getattr(entries(event.kv[layer], row), side),
                    getattr(trial.right.after(text)[layer], side),
                )
                for row, text in enumerate(texts)
            ):
                fits[part].add(name)
    if fits["k"] != fits["v"]:
        words = "after the gather only one of keys and values stands in the new order"
        yield Diagnosis("gather.partial", 0.9, words)
    elif "done" not in fits["k"]:
        skipped = "left" in fits["k"]
        words = "after the gather the rows stand " + (
            "as before" if skipped else "in another order"
        )
        yield Diagnosis("gather.skipped" if skipped else "gather.inverse", 0.85, words)


def _counted(trial: Trial, event: Event, row: int) -> Iterator[Diagnosis]:
    text, before = event.texts[row], event.before[row]
    held = len(entries(event.kv[0], row))
    words = f"{held} entries after {len(text)} tokens"
    if event.verb == "rollback":
        name = "rollback.reset" if held < len(text) else "rollback.ignored"
        yield Diagnosis(name, 0.8, words)
        if held > len(text):
            yield Diagnosis("rollback.leak", 0.75, words)
        return
    new = len(text) - len(before)
    if held > len(text):
        again = bool(before) and held >= len(text) + len(before)
        yield Diagnosis("append.double", 0.6 if again and new != len(before) else 0.8, words)
        yield Diagnosis("prompt.reprocessed", 0.8 if again and new != len(before) else 0.5, words)
    else:
        yield Diagnosis("length.from_ring", 0.4, words)


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


def roomy(trial: Trial) -> Iterator[Diagnosis]:
    """The room of the cache changes its logits."""
    if trial.relation.name != "cache.capacity" or "chunk" not in trial.info.capabilities:
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


def _near(a: NDArray, b: NDArray) -> bool:
    return bool(np.abs(a - b).max(initial=0.0) <= 1e-6 * max(np.abs(b).max(initial=0.0), 1e-300))


def _equal(a: NDArray, b: NDArray) -> bool:
    n = min(len(a), len(b))
    return not differs(a[len(a) - n :], b[len(b) - n :]).any()


def _relative(a: NDArray, b: NDArray) -> float:
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-300))


def _bits(*arrays: NDArray) -> int:
    """Return the bits of mantissa that all the numbers need, at most 53."""
    mantissa = np.concatenate([np.frexp(a)[0].ravel() for a in arrays])
    return next((b for b in range(1, 53) if (np.ldexp(mantissa, b) % 1 == 0).all()), 53)


def _same_numbers(a: NDArray, b: NDArray) -> bool:
    return a.shape == b.shape and _near(np.sort(a.ravel()), np.sort(b.ravel()))


def _repeats(wrong_NKH: NDArray, right_NKH: NDArray) -> bool:
    """Return whether each wrong entry is the right one of some token, or empty."""
    if not len(wrong_NKH):
        return False
    scale = np.abs(right_NKH).max(initial=1e-300)
    return all(
        not entry.any() or (np.abs(right_NKH - entry).max(axis=(1, 2)) <= 1e-6 * scale).any()
        for entry in wrong_NKH
    )


SIGNS: tuple[Sign, ...] = (run_to_run, empty_rows, scaled, moved, stored, rounded, windowed, roomy)
