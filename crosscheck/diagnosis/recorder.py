"""A subject that notes what is done to it: the tokens of every step, and what the cache then holds.

Letters: B rows, T tokens of a call, S slots, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import KV, SubjectInfo, describe

Text = tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One call that made a new state.

    Attributes:
        verb: "step", "rollback", "gather" or "fork".
        run: Which state from `init` it descends from.
        before: Real tokens of each row before.
        texts: Real tokens of each row after.
        padded: Whether tokens that are not real were fed, here or before.
        rows: Of a gather.
        logits: What a step answered.
        kv: Copies of what each layer holds after; () where the subject can't tell.
        length: What the subject says of its rows' lengths after; None where it can't.
        real_BT: Which tokens of a step are real.
    """

    verb: str
    run: int
    before: tuple[Text, ...]
    texts: tuple[Text, ...]
    padded: bool
    rows: tuple[int, ...] = ()
    logits: NDArray | None = None
    kv: tuple[KV, ...] = ()
    length: NDArray | None = None
    real_BT: NDArray | None = None


@dataclass
class Tap:
    """Asks for the captured points of one step of a program.

    Attributes:
        at: Index of its event.
        points: Which; None for all.
        given: Point -> what takes its place.
        seen: Point -> what it was, once the step has run.
    """

    at: int
    points: tuple[str, ...] | None = None
    given: Mapping[str, NDArray] = field(default_factory=dict)
    seen: dict[str, NDArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Noted:
    """A subject's state and what was fed into it."""

    state: Any
    run: int
    texts: tuple[Text, ...]
    padded: bool = False


@dataclass
class Recorder:
    """Passes every call on to a subject and keeps `events` and what `init` was asked for."""

    inner: Any
    events: list[Event] = field(default_factory=list)
    rooms: list[int | None] = field(default_factory=list)
    tap: Tap | None = None

    @property
    def info(self) -> SubjectInfo:
        """What the subject declares."""
        return describe(self.inner)

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return the subject's logits of whole texts."""
        return self.inner.full(ids, **options)

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Noted:
        """Return an empty state."""
        self.rooms.append(capacity)
        state = self.inner.init(batch, capacity, **options)
        return Noted(state, len(self.rooms) - 1, ((),) * batch)

    def step(self, noted: Noted, ids: NDArray, **options: Any) -> tuple[NDArray, Noted]:
        """Return the subject's answer, and note it."""
        real_BT = real_tokens(np.asarray(ids), options)
        logits, state = self._stepped(noted.state, ids, options)
        texts = tuple(
            (*text, *(int(i) for i in np.asarray(row)[real]))
            for text, row, real in zip(noted.texts, ids, real_BT, strict=True)
        )
        padded = noted.padded or not real_BT.all()
        after = replace(noted, state=state, texts=texts, padded=bool(padded))
        self._note("step", noted, after, logits=np.array(logits), real_BT=real_BT)
        return logits, after

    def _stepped(self, state: Any, ids: NDArray, options: dict[str, Any]) -> tuple[NDArray, Any]:
        tap = self.tap
        if tap is None or tap.at != len(self.events):
            return self.inner.step(state, ids, **options)
        given = {"given": tap.given} if tap.given else {}
        seen, after = self.inner.capture_step(state, ids, tap.points, **given, **options)
        tap.seen.update((name, np.array(x)) for name, x in seen.items())
        return tap.seen["logits"], after

    def rollback(self, noted: Noted, length: NDArray) -> Noted:
        """Return the subject's shortened state, and note it."""
        length_B = np.broadcast_to(np.asarray(length), (len(noted.texts),)).tolist()
        texts = tuple(text[:n] for text, n in zip(noted.texts, length_B, strict=True))
        after = replace(noted, state=self.inner.rollback(noted.state, length), texts=texts)
        return self._note("rollback", noted, after)

    def gather(self, noted: Noted, rows: Sequence[int] | NDArray) -> Noted:
        """Return the subject's reordered state, and note it."""
        order = tuple(int(row) for row in np.asarray(rows))
        after = replace(
            noted,
            state=self.inner.gather(noted.state, rows),
            texts=tuple(noted.texts[row] for row in order),
        )
        return self._note("gather", noted, after, rows=order)

    def fork(self, noted: Noted) -> Noted:
        """Return a second state, and note it."""
        return self._note("fork", noted, replace(noted, state=self.inner.fork(noted.state)))

    def grow(self, noted: Noted, capacity: int) -> Noted:
        """Return a state with more room."""
        return replace(noted, state=self.inner.grow(noted.state, capacity))

    def permute_pages(self, noted: Noted, seed: int) -> Noted:
        """Return a state with its pages in another order."""
        return replace(noted, state=self.inner.permute_pages(noted.state, seed))

    def length(self, noted: Noted) -> NDArray:
        """Return what the subject says of its rows."""
        return self.inner.length(noted.state)

    def kv(self, noted: Noted, layer: int) -> KV:
        """Return what one layer holds."""
        return self.inner.kv(noted.state, layer)

    def with_kv(self, noted: Noted, layer: int, kv: KV) -> Noted:
        """Return a state with one layer's entries replaced."""
        return replace(noted, state=self.inner.with_kv(noted.state, layer, kv))

    def cast(self, dtype: str) -> "Recorder":
        """Return the subject in another dtype, noted in the same list."""
        return Recorder(self.inner.cast(dtype), self.events, self.rooms, self.tap)

    def variant(self, name: str) -> "Recorder":
        """Return the subject in another form, noted in the same list."""
        return Recorder(self.inner.variant(name), self.events, self.rooms, self.tap)

    def _note(self, verb: str, before: Noted, after: Noted, **more: Any) -> Noted:
        self.events.append(
            Event(
                verb,
                after.run,
                before.texts,
                after.texts,
                after.padded,
                kv=self._held(after.state),
                length=self._length(after.state),
                **more,
            )
        )
        return after

    def _held(self, state: Any) -> tuple[KV, ...]:
        info = self.info
        if "kv" not in info.capabilities:
            return ()
        # Copies: a cache that is written in place would change under the note.
        return tuple(copied(self.inner.kv(state, layer)) for layer in range(info.num_layers))

    def _length(self, state: Any) -> NDArray | None:
        try:
            return np.array(self.inner.length(state))
        except (AttributeError, NotImplementedError):
            return None

    def __getattr__(self, name: str) -> Any:
        # Copying asks for attributes before there is an inner subject.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def copied(kv: KV) -> KV:
    """Return the same entries in arrays of their own."""
    return KV(*(np.array(x) for x in (kv.keys_BSKH, kv.values_BSKH, kv.position_BS, kv.valid_BS)))


def real_tokens(ids_BT: NDArray, options: Mapping[str, Any]) -> NDArray:
    """Return bool [B, T]: which tokens of a call are real."""
    real_BT = np.ones(ids_BT.shape, dtype=np.bool_)
    if options.get("mask") is not None:
        real_BT &= np.asarray(options["mask"], dtype=np.bool_)
    if options.get("count") is not None:
        real_BT &= np.arange(ids_BT.shape[1]) < np.asarray(options["count"])[:, None]
    return real_BT
