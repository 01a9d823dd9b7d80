"""Faults of a fixed room: what happens at its end, and what is read beyond what is held.

Letters: B rows, T tokens of a call, S columns, Z unwritten slots.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.bands import at, band, common, for_rows, windows_of
from crosscheck.faults.bookkeeping import roomy
from crosscheck.faults.masks import Seeing
from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.positions import within
from crosscheck.faults.registry import fault
from crosscheck.faults.storing import copied


class Clamped(Planted):
    """Writes past the end go over the last slots that there are."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step; without room, over the last T slots."""
        room, width = held.capacity, call.width
        total = held.memo.get("total", held.columns)
        if room is None or total is None or total + width <= room or width > room:
            logits, held = self.pass_on(held, call.ids_BT, **call.options)
            return logits, held.remember(total=None if total is None else total + width)
        options = dict(call.options)
        if self.has("positions"):
            place_BT = np.broadcast_to(total + np.arange(width), call.ids_BT.shape)
            options.setdefault("positions", within(place_BT, self.facts.max_positions))
        rows = len(call.ids_BT)
        state = self.inner.rollback(held.state, np.full(rows, room - width))
        logits, held = self.pass_on(held.advanced(state), call.ids_BT, **options)
        return logits, held.remember(total=total + width)


@fault(
    name="capacity.clamp",
    needs={"cache", "capacity", "rollback"},
    kinds="E",
    shows="overwrite",
    advice="Look for dynamic_update_slice or a clipped index without a check on the host.",
)
def capacity_clamp(subject: Any) -> Planted:
    """Past the end a write is moved back so that it fits, over tokens that are held."""
    return Clamped(subject)


class ZerosRead(Planted):
    """Reads the slots up to the capacity, which hold zeros, as if they held tokens."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Answer with the unwritten slots in view, and store the keys and values that follow."""
        empty = (held.capacity or 0) - (held.columns or 0) - call.width
        own = {"visible", "positions"} & {*call.options}
        if held.columns is None or held.capacity is None or empty <= 0 or own:
            return self.pass_on(held, call.ids_BT, **call.options)
        apart = held.state if self.has("persistent") else self.inner.fork(held.state)
        logits, seen = self.beyond(apart, held.columns, empty, call)
        _, after = self.pass_on(held, call.ids_BT, **call.options)
        state = after.state
        for layer in range(self.facts.num_layers):
            kv, wrong = copied(self.inner.kv(state, layer)), self.inner.kv(seen, layer)
            for row in range(len(call.ids_BT)):
                into = newest(kv.position_BS[row], kv.valid_BS[row], call.width)
                source = np.flatnonzero(wrong.valid_BS[row])[-call.width :]
                kv.keys_BSKH[row, into] = wrong.keys_BSKH[row, source]
                kv.values_BSKH[row, into] = wrong.values_BSKH[row, source]
            state = self.inner.with_kv(state, layer, kv)
        return logits, after.advanced(state)

    def beyond(self, state: Any, columns: int, empty: int, call: Call) -> tuple[NDArray, Any]:
        """Return logits with so many zero slots before the new tokens, and that state."""
        rows = len(call.ids_BT)
        _, state = self.inner.step(state, np.full((rows, empty), self.facts.first_id, np.int32))
        for layer in range(self.facts.num_layers):
            kv = copied(self.inner.kv(state, layer))
            for row in range(rows):
                blank = np.flatnonzero(kv.valid_BS[row])[columns:]
                kv.keys_BSKH[row, blank], kv.values_BSKH[row, blank] = 0, 0
            state = self.inner.with_kv(state, layer, kv)
        visible_TS = band(columns + empty, call.width)
        return self.inner.step(
            state,
            call.ids_BT,
            positions=call.position_BT,
            visible=for_rows(visible_TS, rows),
        )


def newest(position_S: NDArray, valid_S: NDArray, width: int) -> NDArray:
    """Return the slots of the last tokens, in their order."""
    slots = np.flatnonzero(valid_S)
    return slots[np.argsort(position_S[slots], kind="stable")][-width:]


@fault(
    name="capacity.as_length",
    needs={"cache", "capacity", "visible"},
    kinds="E",
    shows="attention",
    advice="Look for the buffer's size used as the number of keys: masks come from lengths.",
)
def capacity_as_length(subject: Any) -> Planted:
    """The capacity is taken for the number of keys, and what was never written is read."""
    planted = Planted(subject)
    exact = planted.has("positions", "kv", "kv_write") and not windows_of(planted.facts)
    if exact and (planted.has("persistent") or planted.has("fork")):
        return ZerosRead(subject)

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        if held.capacity is None or held.capacity <= columns + width:
            return None
        query_T1, key_S = at(held.capacity - width, width)[0], at(columns, width)[1]
        window, seen_TS = common(planted.facts), key_S <= query_T1
        near_TS = seen_TS & (key_S > query_T1 - window) if window else seen_TS
        # A query whose shifted window is empty sees all that the causal rule lets it see.
        return np.where(near_TS.any(axis=1, keepdims=True), near_TS, band(columns, width))

    return Seeing(subject, see)


class Shrinking(Seeing):
    """Never refuses: its room is its window."""

    def room(self, capacity: int | None) -> int | None:
        """Return room beyond what the caller asked for."""
        return roomy(self, capacity)


@fault(
    name="capacity.shrinks_window",
    needs={"cache", "capacity", "visible"},
    kinds="DE",
    shows="attention",
    advice="Look for min(window, capacity): a buffer that is too short is an error, not a window.",
)
def capacity_shrinks_window(subject: Any) -> Planted:
    """A buffer shorter than the text drops the oldest tokens without a word."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        if held.capacity is None or not columns:
            return None
        window = min(windows_of(planted.facts), default=held.capacity)
        return band(columns, width, min(window, held.capacity))

    return Shrinking(subject, see)
