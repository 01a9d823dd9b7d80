"""The cache as a probe: the first entry, by step, layer, position and row, that is not right.

What should be there is what a reference holds after the same texts in one step. At layer 0 keys and
values follow from ids and positions alone, so a difference there is the writing's own; from layer 1
on it shows what the attention before read.
Letters: S slots, N entries in the order of the text, K key/value heads, H head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.recorder import Event, Text
from crosscheck.errors import Refused
from crosscheck.subjects import protocol
from crosscheck.subjects.protocol import KV, SubjectInfo, describe

# Float32 casts inside a float64 model move entries by 1e-7; the smallest true fault seen was 1e-3.
RTOL = 1e-5


@dataclass(frozen=True)
class Entries:
    """One row of one layer in the order of the text: keys and values [N, K, H]."""

    keys_NKH: NDArray
    values_NKH: NDArray

    def __len__(self) -> int:
        return len(self.keys_NKH)


@dataclass(frozen=True)
class First:
    """The first entry that differs.

    Attributes:
        event: Index of the call after which it differs.
        row: Of the batch.
        layer: Of the cache.
        position: Of the token, 0-based.
        parts: "k", "v" or "kv": what differs there.
        shows: A row of the first-differing-entry table: "positions", "attention", "write",
            "overwrite" or "bookkeeping".
        words: One sentence for people.
    """

    event: int
    row: int
    layer: int
    position: int
    parts: str
    shows: str
    words: str


def entries(kv: KV, row: int) -> Entries:
    """Return the valid entries of a row in the order of their positions, which a ring mixes up."""
    slots = np.flatnonzero(kv.valid_BS[row])
    position = kv.position_BS[row, slots]
    # Positions that repeat are themselves in doubt: then slots tell the order.
    if len(np.unique(position)) == len(position):
        slots = slots[np.argsort(position, kind="stable")]
    return Entries(kv.keys_BSKH[row, slots], kv.values_BSKH[row, slots])


class Right:
    """What the layers of a right cache hold after a text, each text fed in one step of its own."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self._held: dict[Text, tuple[Entries, ...]] = {}

    @cached_property
    def info(self) -> SubjectInfo:
        """What the reference declares."""
        return describe(self.reference)

    @property
    def can_tell(self) -> bool:
        """Whether the reference shows its entries."""
        return self.info.capabilities >= {"cache", "kv"}

    def after(self, text: Text) -> tuple[Entries, ...]:
        """Return the entries of each layer after this text."""
        if text not in self._held:
            try:
                state = self._fed(self._chunks(text), room(len(text)))
            except Refused:
                # A ring may take no step that is longer than it is.
                state = self._fed([(token,) for token in text], room(len(text)))
            layers = range(self.info.num_layers)
            self._held[text] = tuple(
                entries(self.reference.kv(state, layer), 0) for layer in layers
            )
        return self._held[text]

    def _fed(self, chunks: Sequence[Text], capacity: int) -> Any:
        state = self.reference.init(1, capacity)
        for chunk in chunks:
            _, state = self.reference.step(state, np.array([chunk], dtype=np.int32))
        return state

    def _chunks(self, text: Text) -> Sequence[Text]:
        if not text or "chunk" in self.info.capabilities:
            return [text] if text else []
        return [(token,) for token in text]


def room(tokens: int) -> int:
    """Return a capacity with some room; few different ones, so that little is compiled."""
    return -(-(tokens + 1) // 32) * 32


def first_difference(events: Sequence[Event], right: Right) -> First | None:
    """Return the first entry that differs, or None where all are as they should be."""
    for index, event in enumerate(events):
        if not event.kv:
            continue
        for layer, kv in enumerate(event.kv):
            found = [
                difference
                for row in range(len(event.texts))
                if (difference := _in_row(index, event, kv, layer, row, right)) is not None
            ]
            if found:
                return min(found, key=lambda first: (first.position, first.row))
    return None


def _in_row(index: int, event: Event, kv: KV, layer: int, row: int, right: Right) -> First | None:
    stored, text = entries(kv, row), event.texts[row]
    owed, window = right.after(text)[layer], window_of(right.info, layer)
    # Not what the reference holds: it may be the candidate itself, and count in the same way.
    if len(stored) != len(text) and window is None:
        position = min(len(stored), len(text))
        words = (
            f"layer {layer} of row {row} holds {len(stored)} entries, {len(text)} tokens were fed"
        )
        return First(index, row, layer, position, "kv", "bookkeeping", words)
    n = min(len(stored), len(owed))
    if not n:
        return None
    keys_N = differs(stored.keys_NKH[-n:], owed.keys_NKH[-n:])
    values_N = differs(stored.values_NKH[-n:], owed.values_NKH[-n:])
    wrong_N = keys_N | values_N
    if not wrong_N.any():
        return None
    at = int(np.argmax(wrong_N))
    parts = "k" * bool(keys_N[at]) + "v" * bool(values_N[at])
    position = len(text) - n + at
    shows = _shows(layer, parts, position, len(event.before[row]), event)
    words = f"{_named(parts)} of layer {layer} at position {position} of row {row} differ"
    return First(index, row, layer, position, parts, shows, words)


def _shows(layer: int, parts: str, position: int, start: int, event: Event) -> str:
    if layer == 0:
        if position < start or event.verb != "step":
            return "overwrite"
        return "positions" if parts == "k" else "write"
    return "positions" if parts == "k" else "attention"


def _named(parts: str) -> str:
    return {"k": "keys", "v": "values", "kv": "keys and values"}[parts]


def window_of(info: SubjectInfo, layer: int) -> int | None:
    """Return the window of a layer; 0 where the subject does not say."""
    return protocol.window_of(info, layer) if info.windows else 0


def differs(a_NKH: NDArray, b_NKH: NDArray) -> NDArray:
    """Return bool [N]: which entries differ by more than rounding; NaN differs."""
    if a_NKH.shape != b_NKH.shape:
        return np.ones(len(a_NKH), dtype=np.bool_)
    allowed = RTOL * max(float(np.abs(b_NKH).max(initial=0.0)), 1e-300)
    error = np.abs(a_NKH.astype(np.float64) - b_NKH.astype(np.float64))
    same = (error <= allowed).reshape(len(error), -1).all(axis=1)
    return np.logical_not(np.asarray(same))
