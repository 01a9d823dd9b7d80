"""Interleaved timing: A B A B ..., so that a drift of the machine hits all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Clock = Callable[[], float]


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


def seconds(call: Callable[[], object], *, clock: Clock = time.perf_counter) -> float:
    """Return how long a call takes, in seconds; the call must return finished results."""
    start = clock()
    call()
    return clock() - start


def first_and_steady(
    call: Callable[[], object], *, repeats: int, clock: Clock = time.perf_counter
) -> tuple[float, Spread]:
    """Return the first call's seconds, compilation included, and the spread of those after it."""
    first = seconds(call, clock=clock)
    return first, Spread.of([seconds(call, clock=clock) for _ in range(repeats)])


def tokens_per_second(*, batch: int, tokens: int, seconds: float) -> float:
    """Return the rate of `tokens` a row: all rows' tokens count, prompts are no unit here."""
    return batch * tokens / seconds
