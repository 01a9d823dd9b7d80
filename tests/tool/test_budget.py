"""What a run does with its time: a budget is kept, nothing it cut off is the subject's fault."""

import runpy
import threading
import time

import pytest

import crosscheck.budget
from crosscheck.blindness import plantable, try_faults
from crosscheck.budget import Clock
from crosscheck.exits import exit_code
from crosscheck.jobs import make_job
from crosscheck.one_run import PLANTED
from crosscheck.oracle import examine
from crosscheck.planting import portion
from crosscheck.relations.registry import RELATIONS
from crosscheck.subjects.guard import CALLS, SUBJECTS
from tests.tool.checking import quick, row_of
from tests.tool.programs_toy import Odd, without_kv
from tests.toys import Toy


@pytest.mark.parametrize("budget", [0.5, 1.5], ids=str)
def test_the_budget_is_kept_and_what_was_not_reached_is_no_pass(budget, looks):
    def slow(logits, call):
        looks.seconds += 0.05
        return logits

    report = quick(without_kv(Odd, change=slow), "all", budget_seconds=budget)

    assert report.seconds < budget + 1.0
    assert report.verdict == "inconclusive"
    assert any("budget" in row.reason for row in report.rows)


def test_outside_of_tests_the_time_of_a_run_is_the_machines():
    now = runpy.run_path(crosscheck.budget.__file__)["now"]

    before, between, after = time.monotonic(), now(), time.monotonic()

    assert before <= between <= after


def test_a_run_without_a_budget_gives_a_model_of_slow_questions_more(monkeypatch):
    clocks = []
    monkeypatch.setattr("crosscheck.check.Clock", lambda s: clocks.append(Clock(s)) or clocks[-1])
    quick(Toy(), "cache.full", budget_seconds=None)
    monkeypatch.setattr("crosscheck.one_run.EXAMINATIONS", 1e9)
    quick(Toy(), "cache.full", budget_seconds=None)
    quick(Toy(), "cache.full", budget_seconds=20.0)
    quick(Toy(), "cache.full", budget_seconds=20.0, stretch=True)

    assert [clock.seconds for clock in clocks] == [60.0, 600.0, 20.0, 600.0]
    # What the questions took is not taken from what they ask for.
    assert [clock.free > 0 for clock in clocks] == [True, True, False, True]


def test_a_stretched_budget_counts_from_where_it_was_stretched(looks):
    clock = Clock(10.0)
    looks.seconds += 30.0
    clock.stretch(20.0, longest=15.0)
    looks.seconds += 7.5

    assert clock.share == pytest.approx(0.5, abs=1e-3)
    assert clock.left == pytest.approx(7.5, abs=1e-2)
    assert clock.until(1.0) - looks.seconds == pytest.approx(7.5, abs=1e-2)
    assert clock.spent == pytest.approx(37.5, abs=1e-2)


def test_what_other_relations_leave_of_the_budget_goes_to_those_whose_share_was_too_small(
    monkeypatch,
):
    """As a large model's: one case costs more than an even share of the time for faults."""
    shares = []

    def tried(job, clock, share, *, which):
        shares.append(share)
        if len(shares) == 1:
            job.verdict, job.late = "inconclusive", True
        else:
            try_faults(job, clock, share, which=which)

    monkeypatch.setattr("crosscheck.planting.try_faults", tried)
    report = quick(Toy(), "cache.full,cache.partition")

    assert len(shares) == 3
    assert shares[2] == PLANTED > shares[0]
    assert row_of(report, "cache.full").verdict == "pass"


def test_what_is_left_at_the_end_goes_to_faults_that_were_not_planted(monkeypatch):
    """The working dtype had its share; half of the budget was left, and the run inconclusive."""
    shares = []

    def tried(job, clock, share, *, which):
        shares.append(share)
        if share < 1.0:
            job.verdict, job.late = "inconclusive", True
        else:
            try_faults(job, clock, share, which=which)

    monkeypatch.setattr("crosscheck.planting.try_faults", tried)
    report = quick(Toy(), "cache.full", Toy(), dtypes=("float64", "float32"))

    assert shares[1:] == [PLANTED, 1.0]
    assert [row.verdict for row in report.rows if row.name == "cache.full"] == ["pass"] * 4
    assert row_of(report, "cache.full").kills


def test_a_job_that_was_late_goes_on_where_it_stopped(looks):
    job = make_job(RELATIONS["cache.partition"], "self", examine(Toy()), 0)
    while job.next():
        pass
    job.decide(1.0)
    every = plantable(job, "catches")
    stopped = Clock(1e9)
    stopped.allows = lambda share, expected=0.0: not job.killed
    try_faults(job, stopped, 1.0)
    late = list(job.killed), job.late, job.reason

    try_faults(job, Clock(1e9), 1.0)

    assert late == (
        [job.killed[0]],
        True,
        f"1 of {len(every)} faults were planted within the budget",
    )
    assert sorted(job.killed) == sorted(fault.name for fault in every)
    assert (job.late, job.verdict) == (False, "pass")


# Which of 310 calls, the last 100 in float32; what was judged before it stands.
HANGS_AT = {
    "the first": (1, "inconclusive"),
    "the oracle's": (5, "inconclusive"),
    "a case's": (40, "inconclusive"),
    "a planted one": (100, "inconclusive"),
    "the cast": (211, "pass"),
    "one in float32": (260, "pass"),
}


class Hanging:
    """Passes on all calls, up to one that does not answer while the test runs."""

    def __init__(self, inner, hangs_at, calls, released):
        self.inner, self.told = inner, (hangs_at, calls, released)

    def __getattr__(self, name):
        value = getattr(self.__dict__["inner"], name)
        if name not in CALLS | SUBJECTS:
            return value

        def call(*given, **options):
            hangs_at, calls, released = self.told
            calls.append(name)
            if len(calls) == hangs_at:
                released.wait(60)
            found = value(*given, **options)
            return Hanging(found, *self.told) if name in SUBJECTS else found

        return call


@pytest.mark.parametrize(
    ("hangs_at", "verdict"),
    HANGS_AT.values(),
    ids=HANGS_AT,
)
def test_a_call_that_the_budgets_end_cuts_off_is_no_error(monkeypatch, hangs_at, verdict):
    calls, released = [], threading.Event()

    def left(run):
        return 0.05 if len(calls) + 1 == hangs_at else 60.0

    monkeypatch.setattr("crosscheck.one_run.Run._left", left)
    both = ("float64", "float32")
    report = quick(Hanging(Toy(), hangs_at, calls, released), "cache.full,batch.rows", dtypes=both)
    released.set()

    assert len(calls) == hangs_at
    assert (report.verdict, exit_code(report.verdict)) == (verdict, 0 if verdict == "pass" else 3)
    told = [row for row in report.rows if row.verdict != "pass"]
    assert all(row.late and "larger --budget" in row.reason for row in told)
    assert told or any("the budget ended before float32" in note for note in report.notes)


def test_time_for_faults_goes_by_what_a_case_costs_and_leaves_some_to_all():
    assert portion([3.0, 1.0]) == 0.625
    assert portion([1.0, 3.0]) == 0.375
    assert portion([0.0, 5.0]) == 0.25
    assert portion([2.0]) == 1.0
    assert portion([0.0, 0.0]) == 0.25
