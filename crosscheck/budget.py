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
        free: Seconds after the start that the budget does not count.
    """

    seconds: float
    started: float = field(default_factory=lambda: now())
    free: float = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return now() - self.started

    @property
    def share(self) -> float:
        """Which part of the budget is spent, from 0."""
        return (self.spent - self.free) / self.seconds

    @property
    def left(self) -> float:
        """Seconds until the budget's end, negative after it."""
        return self.free + self.seconds - self.spent

    def until(self, share: float) -> float:
        """Return when a share of the budget is spent, as `now` gives it."""
        return self.started + self.free + self.seconds * share

    def stretch(self, asked: float, *, longest: float) -> None:
        """Give the run so many seconds from now, up to the longest, but no fewer than it has."""
        self.free, self.seconds = self.spent, max(self.seconds, min(asked, longest))

    def allows(self, share: float, expected: float = 0.0) -> bool:
        """Return whether what takes `expected` seconds ends within a share of the budget."""
        return now() + expected < self.until(share)
