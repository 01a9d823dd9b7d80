"""A budget in seconds that is kept: every part of a run asks before it starts another case."""

import time
from dataclasses import dataclass, field


@dataclass
class Clock:
    """The time of one run.

    Attributes:
        seconds: The budget.
        started: On `time.monotonic`'s clock.
    """

    seconds: float
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def deadline(self) -> float:
        """When the budget ends, on `time.monotonic`'s clock."""
        return self.started + self.seconds

    def until(self, share: float) -> float:
        """Return when a share of the budget is spent, on the same clock."""
        return self.started + self.seconds * share

    def stretch(self, asked: float, *, longest: float) -> None:
        """Give the run so many seconds in all, but no fewer than it has, up to the longest."""
        self.seconds = max(self.seconds, min(asked, longest))

    def allows(self, share: float, expected: float = 0.0) -> bool:
        """Return whether what takes `expected` seconds ends within a share of the budget."""
        return time.monotonic() + expected < self.until(share)
