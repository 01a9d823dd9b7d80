"""Interleaved timing: A B A B ..., so that a drift of the machine hits all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one quantity.

    Attributes:
        median: What to quote.
        low: The smallest.
        high: The largest.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def interleaved(
    measures: Mapping[str, Callable[[], float]], *, repeats: int, warmups: int = 1
) -> dict[str, Spread]:
    """Return the spread of each measure, taken in turn; the first `warmups` rounds do not count."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for round_ in range(warmups + repeats):
        for name, measure in measures.items():
            value = measure()
            if round_ >= warmups:
                found[name].append(value)
    return {name: Spread.of(values) for name, values in found.items()}


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds; the call must return finished results."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
