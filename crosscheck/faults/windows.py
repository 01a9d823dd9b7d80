"""Faults of windows and rings: too many or too few of the last tokens are read.

Letters: T tokens of a call, S columns: tokens held and those of the call.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.bands import (
    at,
    band,
    common,
    for_rows,
    has_common_window,
    has_window,
    narrowest,
    windows_of,
)
from crosscheck.faults.masks import NEEDS, See, Seeing
from crosscheck.faults.planted import Held, Planted
from crosscheck.faults.registry import fault


def windowed(see: See) -> See:
    """Return a rule that holds only where all layers share a window."""

    def rule(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        return see(planted, held, columns, width) if common(planted.facts) else None

    return rule


class NarrowCache(Planted):
    """Runs everything that has a cache with another window; the uncached forward stays."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.uncached = subject
        self.inner = subject.variant(f"window={narrowest(self.facts) - 1}")

    def again(self, subject: Any) -> "Planted":
        """Return the same fault in another subject."""
        other = NarrowCache(subject)
        other.fault = self.fault
        return other

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return the right logits."""
        return self.uncached.full(ids, **options)

    def cast(self, dtype: str) -> Any:
        """Return the same fault in another dtype."""
        return self.again(self.uncached.cast(dtype))

    def variant(self, name: str) -> Any:
        """Return the same fault in another form of the subject."""
        return self.uncached.variant(name)


class NarrowVariants(Planted):
    """Is right itself; its variants with a window run what has a cache with a shorter one."""

    def variant(self, name: str) -> Any:
        """Return the variant, with the fault where it has a window."""
        variant = self.inner.variant(name)
        return NarrowCache(variant) if name.startswith("window=") else variant


def _window_applies(info: Any) -> str:
    if reason := has_window(info):
        return reason
    by_mask = "visible" in info.capabilities and not has_common_window(info)
    if by_mask or "window" in info.capabilities:
        return ""
    return has_common_window(info)


@fault(
    name="window.off_by_one",
    needs={"cache"},
    ways=({"visible"}, {"window"}),
    kinds="D",
    shows="attention",
    applies=_window_applies,
    advice="Look at whether the window counts the token itself, and at W against W - 1 slots.",
)
def window_off_by_one(subject: Any) -> Planted:
    """With a cache the window is one token too short."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        window = narrowest(planted.facts)
        return band(columns, width, max(window - 1, 1)) if columns else None

    planted = Seeing(subject, windowed(see))
    alike = common(planted.facts) or not windows_of(planted.facts)
    if alike and planted.has("visible"):
        return planted
    return NarrowCache(subject) if windows_of(planted.facts) else NarrowVariants(subject)


@fault(
    name="window.off_by_one.wide",
    needs=NEEDS,
    kinds="D",
    shows="attention",
    applies=has_common_window,
    advice="Look at whether the window counts the token itself, and at W against W + 1 slots.",
)
def window_off_by_one_wide(subject: Any) -> Planted:
    """With a cache the window is one token too long."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        return band(columns, width, narrowest(planted.facts) + 1) if columns else None

    return Seeing(subject, windowed(see))


class WindowOnlyCached(Seeing):
    """Knows its window only where a cache is read."""

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits of the model without its window."""
        batch, width = np.shape(ids)
        if common(self.facts) and not {*options} & {"visible", "mask", "count"}:
            options["visible"] = for_rows(band(0, width), batch)
        return self.inner.full(ids, **options)


@fault(
    name="window.cache_only",
    needs=NEEDS,
    kinds="D",
    shows="attention",
    advice="Look for a mask without the window beside a cache that drops what is outside it.",
)
def window_cache_only(subject: Any) -> Planted:
    """The first forward sees everything, later steps only a window."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray:
        return band(columns, width, narrowest(planted.facts) if columns else None)

    return WindowOnlyCached(subject, see)


@fault(
    name="window.chunk_drops_past",
    needs=NEEDS | {"chunk"},
    kinds="D",
    shows="attention",
    applies=has_common_window,
    advice="Look at the branch of the ring for a chunk that is longer than the window.",
)
def window_chunk_drops_past(subject: Any) -> Planted:
    """A chunk as long as the window sees only itself."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        window = narrowest(planted.facts)
        if not columns or width < window:
            return None
        return band(columns, width, window) & (at(columns, width)[1] >= columns)

    return Seeing(subject, windowed(see))


@fault(
    name="window.chunk_drops_past.shifted",
    needs=NEEDS | {"chunk"},
    kinds="D",
    shows="attention",
    applies=has_common_window,
    advice="Look at the branch of the ring for a chunk that is longer than the window.",
)
def window_chunk_drops_past_shifted(subject: Any) -> Planted:
    """A chunk longer than the window sees only itself, through a mask that counts what it lost."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        window = narrowest(planted.facts)
        if not columns or width <= window:
            return None
        query_T1, key_S = at(columns, width)
        # The mask takes the chunk's first token for the oldest one that the ring would still hold.
        counted_S = key_S - columns + max(columns - window + 1, 0)
        near_TS = (counted_S <= query_T1) & (counted_S > query_T1 - window)
        return near_TS & (key_S >= columns)

    return Seeing(subject, windowed(see))


@fault(
    name="window.chunk_too_wide",
    needs=NEEDS | {"chunk"},
    kinds="D",
    shows="attention",
    applies=has_common_window,
    advice="Look for a mask row of the chunk's first token that all its tokens use.",
)
def window_chunk_too_wide(subject: Any) -> Planted:
    """All tokens of a chunk see what the window of its first token reaches."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        reach = columns - narrowest(planted.facts)
        if not columns:
            return None
        return band(columns, width) & (at(columns, width)[1] > reach)

    return Seeing(subject, windowed(see))


@fault(
    name="window.evicts_newest",
    needs=NEEDS,
    kinds="D",
    shows="attention",
    applies=has_common_window,
    advice="Look at which end of the ring the range of evicted slots is counted from.",
)
def window_evicts_newest(subject: Any) -> Planted:
    """What falls out of the window is the newest of what is held, not the oldest."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        query_T1, key_S = at(columns, width)
        kept = narrowest(planted.facts) - 1
        if columns <= kept:
            return None
        return band(columns, width) & ((key_S < kept) | (key_S == query_T1))

    return Seeing(subject, windowed(see))


class ShortVariant(Planted):
    """Its variants with another window have one that is one token too short."""

    def variant(self, name: str) -> Any:
        """Return the variant, with a short window."""
        key, _, value = name.partition("=")
        if key != "window":
            return super().variant(name)
        return self.inner.variant(f"window={max(int(value) - 1, 1)}")


@fault(
    name="window.wide_off_by_one",
    needs={"window"},
    kinds="D",
    shows="attention",
    advice="Look at < or <= where the mask of the window is built.",
)
def window_wide_off_by_one(subject: Any) -> Planted:
    """A window of exactly the text's length hides its first token."""
    return ShortVariant(subject)
