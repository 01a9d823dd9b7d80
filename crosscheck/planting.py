"""Planted faults for what passed, and what is left of the time for what could not tell yet.

The time for faults is divided first. What one relation leaves over is then spent, an example at a
time and in turn, on those whose share was too small to tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crosscheck.blindness import try_faults
from crosscheck.budget import Clock
from crosscheck.jobs import Job

UNTRIED = "no fault was planted: faults='none'"


@dataclass(frozen=True)
class Planting:
    """How faults are planted in one run.

    Attributes:
        jobs: All of the run.
        clock: The run's time.
        which: Faults that a relation "catches", "all", or "none".
        tell: Called with a relation's name when it is done.
    """

    jobs: list[Job]
    clock: Clock
    which: str
    tell: Callable[[str], None]

    def plant(self, until: float) -> None:
        """Plant faults for every relation that passed, each within its part of what is left.

        Args:
            until: The share of the budget that all of them may take.
        """
        passed = [job for job in self.jobs if job.verdict == "pass" and _is_planted(job)]
        for place, job in enumerate(passed):
            now = self.clock.share
            left = max(0.0, until - now)
            self._try(job, now + left * portion([job.slowest for job in passed[place:]]))
            self.tell(job.relation.name)
        self._inherit()

    def go_on(self, until: float, found: Callable[[Job], None]) -> list[Job]:
        """Spend what is left on relations that want more; return those that pass only now.

        Args:
            until: The share of the budget at which no case starts any more.
            found: Called with a relation that failed on a further example.
        """
        unsure = [job for job in self.jobs if job.verdict == "inconclusive"]
        # The cheapest first: then little time is enough for some of them.
        for job in sorted(self.jobs, key=lambda job: job.slowest):
            if self.which != "none" and job.wants_faults and self._may(until, job):
                job.verdict, job.reason = "pass", ""
                self._try(job, until)
                self.tell(job.relation.name)
        while waiting := [job for job in self.jobs if job.wants_examples and self._may(until, job)]:
            for job in waiting:
                if self._may(until, job):
                    self._further(job, until)
                if job.verdict == "fail":
                    found(job)
        self._inherit()
        return [job for job in unsure if job.verdict == "pass"]

    def _may(self, until: float, job: Job) -> bool:
        return self.clock.allows(until, job.slowest)

    def _further(self, job: Job, until: float) -> None:
        """Run one more example, and plant in it what the others did not show."""
        job.verdict, job.reason, job.late = None, "", False
        ran = job.ran
        while self._may(until, job) and job.next() and job.open and job.ran == ran:
            pass
        job.decide(self.clock.seconds)
        if job.verdict == "pass" and _is_planted(job):
            self._try(job, until)
        if not job.wants_examples:
            self.tell(job.relation.name)

    def _try(self, job: Job, until: float) -> None:
        if self.which == "none":
            job.verdict, job.reason = "blind", UNTRIED
        else:
            try_faults(job, self.clock, until, which=self.which)

    def _inherit(self) -> None:
        """A relation that is blind within the candidate is blind between two subjects as well."""
        own = {job.relation.name: job for job in self.jobs if job.axis == "self"}
        for job in self.jobs:
            twin = own.get(job.relation.name, job)
            if job.inherits:
                job.verdict, job.reason, job.inherits = "pass", "", False
            unsure = twin.verdict in ("blind", "inconclusive")
            if job.axis == "parity" and job.verdict == "pass" and unsure:
                job.verdict, job.reason, job.inherits = twin.verdict, twin.reason, True


def portion(slowest: Sequence[float]) -> float:
    """Return which part of the time that is left goes to the first of the jobs, from 0 to 1.

    Half of the time is divided evenly, half by what a case costs, so that one wide relation can't
    starve the rest.

    Args:
        slowest: Seconds of each job's slowest case.
    """
    return (1 / len(slowest) + slowest[0] / max(sum(slowest), 1e-9)) / 2


def _is_planted(job: Job) -> bool:
    return job.axis == "self" or job.relation.parity
