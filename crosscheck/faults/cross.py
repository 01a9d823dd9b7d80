"""Faults of cross-attention: the encoder's result belongs to another row or another request."""

from typing import Any

import numpy as np

from crosscheck.faults.planted import Held, Planted
from crosscheck.faults.registry import fault


class OtherRows(Planted):
    """Gives every row's cache the encoder's result of the row before it."""

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Held:
        """Return an empty state with the encoder's rows moved by one."""
        if options.get("encoder") is not None:
            options["encoder"] = np.roll(np.asarray(options["encoder"]), 1, axis=0)
        return super().init(batch, capacity, **options)


@fault(
    name="cross.rows",
    needs={"cache", "cross"},
    kinds="P",
    shows="attention",
    advice="Look at the order of rows of what the encoder gave, after sorting or repeating them.",
)
def cross_rows(subject: Any) -> Planted:
    """Rows attend to the encoder's result of another row."""
    return OtherRows(subject)


class FirstSource(Planted):
    """Keeps the encoder's result of the first request of each size."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.first: dict[tuple[int, ...], Any] = {}

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Held:
        """Return an empty state beside the first request's encoder result."""
        if options.get("encoder") is not None:
            encoder = np.asarray(options["encoder"])
            options["encoder"] = self.first.setdefault(encoder.shape, encoder)
        return super().init(batch, capacity, **options)


@fault(
    name="cross.stale",
    needs={"cache", "cross"},
    kinds="P",
    shows="attention",
    advice="Look for cross-attention keys that are computed once and kept in the model.",
)
def cross_stale(subject: Any) -> Planted:
    """A second request attends to the first one's encoder result."""
    return FirstSource(subject)
