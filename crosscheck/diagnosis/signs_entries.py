"""Signs in the cache: what the first wrong entries are instead of what is owed there.

Letters: N entries in the order of the text, K key/value heads, H head width.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import Entries, differs, entries, window_of
from crosscheck.diagnosis.reach import turned_keys
from crosscheck.diagnosis.recorder import Event
from crosscheck.diagnosis.signs_logits import near
from crosscheck.diagnosis.trial import Trial
from crosscheck.results import Diagnosis


def stored(trial: Trial) -> Iterator[Diagnosis]:
    """What the first wrong entries are instead."""
    first = trial.first
    if first is None:
        return
    event = trial.events[first.event]
    ours = entries(event.kv[first.layer], first.row)
    owed = trial.right.after(event.texts[first.row])[first.layer]
    evicted = _evicted(trial, first.event, first.layer)
    if evicted:
        yield Diagnosis("rollback.evicted", 0.92, evicted)
    elif first.shows == "bookkeeping":
        yield from _counted(trial, event, first.row)
    elif first.shows == "overwrite" and (beyond := _beyond(trial, event, first.row)):
        yield Diagnosis("capacity.clamp", 0.92, beyond)
    elif first.layer == 0 and event.verb != "gather":
        start = max(0, len(event.before[first.row]) - (len(event.texts[first.row]) - len(owed)))
        yield from _instead(trial, ours, owed, start)


def _evicted(trial: Trial, index: int, layer: int) -> str:
    """Return a sentence where a ring that had wrapped was rolled back; "" where none was."""
    window, run = window_of(trial.info, layer), trial.events[index].run
    for event in trial.events[: index + 1]:
        fed = max(map(len, event.before), default=0)
        if event.verb == "rollback" and event.run == run and window and fed > window:
            return f"{fed} tokens had gone through a window of {window} before the rollback"
    return ""


def _beyond(trial: Trial, event: Event, row: int) -> str:
    """Return a sentence where a step went past the room that there was; "" where none did."""
    room, fed = trial.rooms[event.run], len(event.texts[row])
    if room is None or fed <= room or event.verb != "step":
        return ""
    return f"with {fed} tokens in a room of {room} the step overwrote an earlier entry"


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


def ringed(trial: Trial) -> Iterator[Diagnosis]:
    """The subject tells the length of a ring for that of the text, from the first step on."""
    windows = [window for window in trial.info.windows if window]
    unlike: set[int] = set()
    for event in trial.events:
        if event.verb != "step" or event.length is None or event.padded or not windows:
            continue
        for text, told in zip(event.texts, np.asarray(event.length).tolist(), strict=True):
            if event.run in unlike:
                break
            if told == min(windows) < len(text):
                words = f"after {len(text)} tokens it tells a length of {told}, a layer's window"
                yield Diagnosis("length.from_ring", 0.92, words)
                return
            if told != min(len(text), *windows):
                # Not what a ring would tell: later it is the window by chance.
                unlike.add(event.run)


def rounded(trial: Trial) -> Iterator[Diagnosis]:
    """Stored entries need few bits of mantissa, and the logits are only a little wrong."""
    steps = [event for event in trial.events if event.verb == "step" and event.kv]
    if not steps or trial.info.dtype != "float64":
        return
    ours = entries(steps[-1].kv[0], 0)
    full = ours.keys_NKH.any() and ours.values_NKH.any()
    bits = min(_bits(ours.keys_NKH), _bits(ours.values_NKH)) if full else 53
    if bits <= 24:
        words = f"what is stored has {bits} bits of mantissa, a float64 has 53"
        yield Diagnosis("append.dtype", 0.9, words)


def empty(trial: Trial) -> Iterator[Diagnosis]:
    """Keys or values of tokens that were fed are nothing but zeros."""
    for event in trial.events:
        for kv in event.kv[:1] if event.verb == "step" else ():
            ours = entries(kv, 0)
            zero = [name for name, x in _sides(ours) if len(ours) and not x.any()]
            if zero:
                words = f"the stored {' and '.join(zero)} are all zero"
                only_values = zero == ["values"]
                yield Diagnosis(
                    "append.stale.values" if only_values else "append.stale", 0.9, words
                )
                return


def _sides(ours: Entries) -> list[tuple[str, NDArray]]:
    return [("keys", ours.keys_NKH), ("values", ours.values_NKH)]


def dropped(trial: Trial) -> Iterator[Diagnosis]:
    """A step's first token gives another key and value, the one after it does not."""
    first = trial.first
    if first is None or first.layer or not trial.right.can_tell:
        return
    ids, subject = trial.case.ids[:1, :4], trial.candidate
    if ids.shape[1] < 4 or not trial.info.capabilities >= {"cache", "chunk", "kv"}:
        return
    state = subject.init(1, 32)
    for part in (ids[:, :2], ids[:, 2:]):
        _, state = subject.step(state, part.copy())
    ours = entries(subject.kv(state, 0), 0)
    owed = trial.right.after(tuple(map(int, ids[0])))[0]
    pairs = ((ours.keys_NKH, owed.keys_NKH), (ours.values_NKH, owed.values_NKH))
    if all(differs(a, b).tolist() == [False, False, True, False] for a, b in pairs):
        words = "a step's first token gives another key and value, its second gives the right ones"
        yield Diagnosis("state.dropped", 0.9, words)


def turned(trial: Trial) -> Iterator[Diagnosis]:
    """Values are right and keys stand at other positions: at which ones names the fault."""
    first = trial.first
    if first is None or first.layer or first.parts != "k" or first.shows == "bookkeeping":
        return
    event = trial.events[first.event]
    text, start = event.texts[first.row], len(event.before[first.row])
    keys_NKH = entries(event.kv[0], first.row).keys_NKH
    missing = len(text) - len(keys_NKH)
    asked = range(first.position, min(first.position + 3, len(text)))
    found = {
        at: turned_keys(trial.reference, text[at], keys_NKH[at - missing], 2 * len(text) + 2)
        for at in asked
    }
    words = "; ".join(f"key {at} stands at position {places}" for at, places in found.items())
    for name in PLACES:
        if all(_wrong_places(at, start)[name] in places for at, places in found.items()):
            yield Diagnosis(name, 0.8, words)


def _wrong_places(position: int, start: int) -> dict[str, int]:
    """Return where each fault of positions puts a token of a step that began at `start`."""
    return {
        "pos.reset": position - start,
        "pos.off_by_one": position + 1,
        "pos.off_by_one.early": position - 1,
        "rope.twice": 2 * position,
        "rope.dynamic": position // 2,
    }


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
    elif held == trial.rooms[event.run]:
        yield Diagnosis("capacity.clamp", 0.9, f"{words}: all the room there was, and no refusal")


def _bits(*arrays: NDArray) -> int:
    """Return the bits of mantissa that all the numbers need, at most 53."""
    mantissa = np.concatenate([np.frexp(a)[0].ravel() for a in arrays])
    return next((b for b in range(1, 53) if (np.ldexp(mantissa, b) % 1 == 0).all()), 53)


def _same_numbers(a: NDArray, b: NDArray) -> bool:
    return a.shape == b.shape and near(np.sort(a.ravel()), np.sort(b.ravel()))


def _repeats(wrong_NKH: NDArray, right_NKH: NDArray) -> bool:
    """Return whether each wrong entry is the right one of some token, or empty."""
    if not len(wrong_NKH):
        return False
    scale = np.abs(right_NKH).max(initial=1e-300)
    return all(
        not entry.any() or (np.abs(right_NKH - entry).max(axis=(1, 2)) <= 1e-6 * scale).any()
        for entry in wrong_NKH
    )


PLACES = tuple(_wrong_places(0, 0))
SIGNS = (stored, ringed, rounded, empty, turned, dropped)
