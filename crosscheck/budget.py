"""A budget in seconds that is kept: every part of a run asks before it starts another case.

`budget.now` is the one source of time of a run: who replaces it sets the time of all its parts.
"""

import time
from dataclasses import dataclass, field


def now() -> float:
    """Return the seconds of a clock that never goes back."""
    return time.monotonic()


@dataclass
class Clock:
    """The time of one run.

    Attributes:
        seconds: The budget.
        started: As `now` gives it.
    """

    seconds: float
    started: float = field(default_factory=lambda: now())

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return now() - self.started

    @property
    def deadline(self) -> float:
        """When the budget ends, as `now` gives it."""
        return self.started + self.seconds

    def until(self, share: float) -> float:
        """Return when a share of the budget is spent, as `now` gives it."""
        return self.started + self.seconds * share

    def stretch(self, asked: float, *, longest: float) -> None:
        """Give the run so many seconds in all, but no fewer than it has, up to the longest."""
        self.seconds = max(self.seconds, min(asked, longest))

    def allows(self, share: float, expected: float = 0.0) -> bool:
        """Return whether what takes `expected` seconds ends within a share of the budget."""
        return now() + expected < self.until(share)
