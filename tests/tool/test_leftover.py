"""What a run does with time that is left: examples for those relations that could not tell yet."""

import numpy as np
import pytest

from crosscheck.budget import Clock
from crosscheck.jobs import make_job
from crosscheck.oracle import examine
from crosscheck.planting import Planting
from crosscheck.programs.case import Append, Case
from crosscheck.relations.registry import RELATIONS, Sides
from tests.tool.checking import quick, row_of
from tests.tool.programs_toy import Odd
from tests.toys import Toy

SECONDS = 7.0
TELLS = 4
# One more than the telling one: who stops there does so because it could tell.
EXAMPLES = tuple(
    Case(np.arange(8, dtype=np.int32).reshape(2, 4), (Append(2), Append(2)), seed=number)
    for number in range(1, TELLS + 2)
)


def slow(looks, seconds=SECONDS, tells=TELLS):
    """Return a relation that only one of its examples can show; each other one takes long."""

    def run(candidate, reference, case):
        if case.seed != tells:
            looks.seconds += seconds
            return Sides({"logits": np.ones((2, 4, 5))}, {"logits": np.ones((2, 4, 5))})
        first, state = candidate.step(candidate.init(2, 8), case.ids[:, :2])
        second, _ = candidate.step(state, case.ids[:, 2:])
        left = np.concatenate([first, second], axis=1)
        return Sides({"logits": left}, {"logits": reference.full(case.ids)}, chunks=(0, 2))

    return run


def test_what_is_left_of_a_budget_goes_to_the_examples_of_those_that_could_not_tell(
    register, looks
):
    register("my.slow", slow(looks), cases=EXAMPLES)
    # Three examples fit into their share, and planting in them shows nothing.
    report = quick(Toy(), "my.slow", budget_seconds=60.0)

    row = row_of(report, "my.slow")
    assert (row.verdict, row.cases, row.kills) == ("pass", TELLS, ("head.scale",))
    assert report.seconds < 60.0


def test_a_budget_that_is_too_small_for_them_is_kept_and_says_so(register, looks):
    register("my.slow", slow(looks, seconds=5.0), cases=EXAMPLES)

    report = quick(Toy(), "my.slow", budget_seconds=30.0)

    row = row_of(report, "my.slow")
    assert (row.verdict, row.late) == ("inconclusive", True)
    assert row.reason == (
        f"only {row.cases} of its examples ran within the budget, and those did not see head.scale "
        "when planted in this subject. Give a larger --budget (budget_seconds, a longer profile)"
    )
    assert report.seconds < 30.0


@pytest.mark.parametrize(
    ("tells", "budget"), [(TELLS, 600.0), (1, 60.0)], ids=["not yet told", "told"]
)
def test_without_a_budget_a_run_goes_on_to_the_longest_time_only_for_what_could_not_tell(
    register, looks, monkeypatch, tells, budget
):
    clocks = []
    monkeypatch.setattr("crosscheck.check.Clock", lambda s: clocks.append(Clock(s)) or clocks[-1])
    register("my.slow", slow(looks, seconds=20.0, tells=tells), cases=EXAMPLES)

    row = row_of(quick(Toy(), "my.slow", budget_seconds=None), "my.slow")

    assert (row.verdict, row.kills) == ("pass", ("head.scale",))
    assert clocks[0].seconds == budget


def test_what_a_further_example_finds_is_a_failure_and_is_explained(register, looks):
    register("my.slow", slow(looks), cases=EXAMPLES)
    subject = Odd(change=lambda logits, call: logits * 1.5)

    row = row_of(quick(subject, "my.slow", budget_seconds=60.0), "my.slow")

    assert (row.verdict, row.cases) == ("fail", TELLS)
    assert row.diagnosis[0].fault == "head.scale"


def test_a_relation_that_was_not_reached_has_its_turn_in_what_is_left(looks):
    oracle = examine(Toy())
    jobs = [make_job(RELATIONS[name], "self", oracle, 0) for name in ("cache.full", "batch.rows")]
    for job in jobs:
        job.decide(1.0)
    planting = Planting(jobs, Clock(1e9), "catches", lambda name: None)

    passed = planting.go_on(1.0, found=lambda job: None)

    assert passed == jobs
    assert all(job.ran and job.killed and not job.late for job in jobs)


def test_nothing_more_is_asked_after_a_call_that_was_given_up():
    job = make_job(RELATIONS["cache.full"], "self", examine(Toy()), 0)
    job.next()
    job._cut("a call: no answer within 1 seconds that were left.")

    assert (job.verdict, job.wants_more) == ("inconclusive", False)


def test_planting_again_tries_only_the_cases_that_ran_since(register, looks):
    planted = []

    def run(candidate, reference, case):
        planted.append(case.seed)
        return slow(looks, seconds=0.0)(candidate, reference, case)

    register("my.slow", run, cases=EXAMPLES)
    job = make_job(RELATIONS["my.slow"], "self", examine(Toy()), 0)
    planting = Planting([job], Clock(1e9), "catches", lambda name: None)
    job.next()
    job.next()
    job.decide(1.0)
    planting.plant(1.0)
    planted.clear()

    planting.go_on(1.0, found=lambda job: None)

    # Each further example on the right subject, then on the planted one.
    assert planted == [3, 3, TELLS, TELLS]
    assert (job.verdict, job.killed, job.unseen) == ("pass", ["head.scale"], [])
