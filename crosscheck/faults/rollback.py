"""Faults of taking tokens back.

Letters: B rows, T tokens of a call, S columns.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.bands import at, for_rows, has_own_window, narrowest
from crosscheck.faults.bookkeeping import roomy
from crosscheck.faults.planted import Call, Held, Planted, shortened
from crosscheck.faults.registry import fault


class Leaking(Planted):
    """Takes back only the length: dropped tokens stay and are read."""

    def room(self, capacity: int | None) -> int | None:
        """Return room for the tokens that stay."""
        return roomy(self, capacity)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step after the dropped tokens, at the positions that follow the text."""
        options = dict(call.options)
        if held.memo.get("leaks"):
            options.setdefault("positions", call.position_BT)
        return self.pass_on(held, call.ids_BT, **options)

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Lower the length."""
        leaks = held.memo.get("leaks") or bool((np.asarray(length) < held.length_B).any())
        return replace(shortened(held, length).remember(leaks=leaks), columns=None)

    def length(self, held: Held) -> NDArray:
        """Return the length that was asked for."""
        return held.length_B


@fault(
    name="rollback.leak",
    needs={"cache", "rollback", "positions"},
    kinds="F",
    shows="overwrite",
    advice="Look at whether a rollback also hides or cuts what is stored, not only a counter.",
)
def rollback_leak(subject: Any) -> Planted:
    """A rollback lowers the length only; the dropped tokens are still read."""
    return Leaking(subject)


class Evicting(Leaking):
    """A ring whose rollback moves counters: what the dropped tokens displaced is gone."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step on the last W tokens that were ever written, dropped ones too."""
        written = held.memo.get("written", 0)
        options = dict(call.options)
        if held.memo.get("leaks") and options.get("visible") is None:
            query_T1, key_S = at(written, call.width)
            seen_TS = (key_S <= query_T1) & (key_S > query_T1 - narrowest(self.facts))
            options.setdefault("positions", call.position_BT)
            options["visible"] = for_rows(seen_TS, len(call.ids_BT))
        logits, held = self.pass_on(held, call.ids_BT, **options)
        return logits, held.remember(written=written + call.width)

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Move the counters once something was evicted; else cut rightly."""
        written = held.memo.get("written", 0)
        plain = held.columns is not None and len({*np.ravel(length).tolist()}) == 1
        if plain and written > narrowest(self.facts):
            return super().rollback(held, length)
        cut = shortened(held.advanced(self.inner.rollback(held.state, length)), length)
        return cut.remember(written=int(np.max(length)))


@fault(
    name="rollback.evicted",
    needs={"cache", "rollback", "positions", "visible"},
    kinds="D",
    shows="overwrite",
    applies=has_own_window,
    advice="Look at a ring that was full: what its newest tokens displaced cannot come back.",
)
def rollback_evicted(subject: Any) -> Planted:
    """A full ring takes back tokens by its counters; what they displaced is gone."""
    return Evicting(subject)


class Emptied(Planted):
    """Forgets everything at a rollback."""

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Return an empty state of the same size."""
        state = self.inner.init(len(held.texts), self.room(held.capacity), **held.options)
        return replace(shortened(held.advanced(state), length), columns=None)


@fault(
    name="rollback.reset",
    needs={"cache", "rollback"},
    kinds="F",
    shows="bookkeeping",
    advice="Look at whether a rollback rebuilds the cache instead of cutting it.",
)
def rollback_reset(subject: Any) -> Planted:
    """A rollback leaves an empty cache."""
    return Emptied(subject)


class Ignored(Planted):
    """Takes nothing back."""

    def room(self, capacity: int | None) -> int | None:
        """Return room for the tokens that stay."""
        return roomy(self, capacity)

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Return the state as it was."""
        return replace(shortened(held, length), columns=None)


@fault(
    name="rollback.ignored",
    needs={"cache", "rollback"},
    kinds="F",
    shows="bookkeeping",
    advice="Look for a rollback that returns a new state which nobody keeps.",
)
def rollback_ignored(subject: Any) -> Planted:
    """A rollback takes nothing back."""
    return Ignored(subject)
