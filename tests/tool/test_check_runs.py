"""What `check` says of a failure, and when: it loses none and does not outstay its budget."""

import json
import runpy
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import crosscheck.budget
from crosscheck.blindness import plantable, try_faults
from crosscheck.budget import Clock
from crosscheck.check import check, check_case
from crosscheck.errors import CrosscheckError
from crosscheck.exits import exit_code
from crosscheck.faults import FAULTS
from crosscheck.jobs import make_job
from crosscheck.one_run import PLANTED, portion
from crosscheck.oracle import examine
from crosscheck.programs.case_json import case_from_json
from crosscheck.relations.registry import RELATIONS
from crosscheck.results_json import from_json
from crosscheck.subjects.guard import CALLS, SUBJECTS
from crosscheck.subjects.protocol import Documented, describe
from tests.tool.checking import ONES, quick, row_of, sides
from tests.tool.programs_toy import Odd, OddFull, without_kv
from tests.toys import Toy


def reset_positions(subject):
    return FAULTS["pos.reset"].plant(subject)


def test_a_planted_fault_fails_with_the_smallest_case_and_the_first_ones_curve():
    report = quick(reset_positions(Toy()), "cache.partition")

    row = row_of(report, "cache.partition")
    assert row.verdict == "fail"
    assert row.required_tolerance > 1e-3
    small = case_from_json(row.case)
    assert small.ids.shape[0] == 1
    assert small.ids.shape[1] <= 4
    assert row.curve["chunks"]
    # The curve shows how the error runs along the text, for which the smallest case is too short.
    assert len(row.curve["points"]["logits"][0]) > small.ids.shape[1]
    assert len(row.curve["margins"][0]) == len(row.curve["points"]["logits"][0])


def test_a_saved_case_fails_again_by_itself():
    subject = reset_positions(Toy())
    saved = row_of(quick(subject, "cache.partition"), "cache.partition").case

    again = check_case(subject, None, "cache.partition", case_from_json(saved))

    assert again.verdict == "fail"
    right = check_case(Toy(), None, "cache.partition", case_from_json(saved))
    assert right.verdict == "pass"


def test_what_the_package_documents_stands_beside_the_difference():
    class Said(Toy):
        @property
        def info(self):
            said = Documented("Positions start anew.", "README")
            return replace(super().info, documented={"cache.partition": said})

    row = row_of(quick(reset_positions(Said()), "cache.partition"), "cache.partition")

    assert (row.verdict, row.documented) == ("fail", ("Positions start anew.", "README"))


def test_a_port_with_the_same_fault_passes_alone_and_fails_against_the_reference():
    other = Toy(seed=1)

    report = quick(other, "cache.full", reference=Toy())

    assert row_of(report, "cache.full").verdict == "pass"
    assert row_of(report, "cache.full", axis="parity").verdict == "fail"


def test_parity_is_blind_where_the_relation_is_blind_within_the_candidate(register):
    register("test.constant", sides(ONES, ONES))

    report = quick(Toy(), "test.constant", reference=Toy())

    assert row_of(report, "test.constant", axis="parity").verdict == "blind"


def test_a_forward_that_is_not_causal_is_named_as_the_wrong_side():
    def acausal(ids, logits, call):
        return logits + 1e-2 * np.flip(np.cumsum(np.flip(ids, 1), 1), 1)[..., None]

    report = quick(OddFull(change=acausal), "cache.full,cache.causal")

    assert report.oracle.startswith("refused: the uncached forward")
    assert row_of(report, "cache.full").verdict == "inconclusive"
    assert row_of(report, "cache.causal").verdict == "fail"
    assert report.verdict == "fail"


def test_worse_rounding_fails_in_the_working_dtype_alone():
    class Coarse(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            if self.dtype == "float32":
                logits = logits.astype(np.float16).astype(np.float32)
            return logits, state

    report = quick(Coarse(), "cache.full", dtypes=("float64", "float32"))

    assert row_of(report, "cache.full").verdict == "pass"
    coarse = row_of(report, "cache.full", "float32")
    assert coarse.verdict == "fail"
    assert "times the reference's own" in coarse.reason


def test_a_bad_cached_id_fails_where_the_margin_forces_it():
    class Flipped(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            return (np.roll(logits, 1, -1) if self.dtype == "float32" else logits), state

    report = quick(Flipped(), "cache.full", dtypes=("float64", "float32"))

    assert row_of(report, "greedy.ids", "float32").verdict == "fail"


def test_a_subject_that_runs_earlier_tokens_again_is_found():
    class Counting(Toy):
        forwarded_positions = 0

        def step(self, state, ids, **options):
            again = int(state.length_B.sum()) if self.page == 5 else 0
            type(self).forwarded_positions += ids.size + again
            return super().step(state, ids, **options)

    honest, wasteful = quick(Counting(), "cache.work"), quick(Counting(page=5), "cache.work")

    assert row_of(honest, "cache.work").verdict != "fail"
    assert row_of(wasteful, "cache.work").verdict == "fail"


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

    assert [clock.seconds for clock in clocks] == [60.0, 600.0, 20.0]


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

    monkeypatch.setattr("crosscheck.one_run.try_faults", tried)
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

    monkeypatch.setattr("crosscheck.one_run.try_faults", tried)
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


class Plain(Toy):
    """As plain functions are: in one dtype."""

    @property
    def info(self):
        info = super().info
        return replace(info, capabilities=info.capabilities - {"f32"})


def test_a_dtype_that_the_subject_cannot_take_is_said_and_is_a_row():
    report = quick(Plain(), "cache.full", dtypes=("float32", "bfloat16"))

    assert report.verdict == "pass"
    why = "toy/gqa/contiguous is float64, and it declares no f32 (cast)"
    row = row_of(report, "rounding", "float32")
    assert (row.verdict, row.reason) == ("unsupported", why)
    assert f"float32 is not tested: {why}" in report.notes
    assert "alone" in row_of(report, "rounding", "bfloat16").reason
    assert not any(row.name == "rounding" for row in quick(Toy(), "cache.full").rows)


def test_a_vocabulary_without_an_id_is_refused_with_words():
    class Empty(Toy):
        @property
        def info(self):
            return replace(super().info, vocab_size=0)

    with pytest.raises(
        CrosscheckError, match=r"contiguous has vocab_size 0, expected at least 1\."
    ):
        quick(Empty(), "cache.full")


class Looped(Toy):
    """Holds its layers once a loop, as a decoder in loops does, and tells the windows of one."""

    @property
    def info(self):
        return replace(describe(super()), windows=(None,))


def test_a_cache_of_more_entries_than_layers_is_judged_by_the_windows_of_its_layers():
    report = quick(Looped(), "cache.rollback,cache.fork_gather,cache.write_set")

    assert [row.verdict for row in report.rows if row.verdict in ("error", "fail")] == []


def test_a_report_survives_strict_json(tmp_path):
    report = quick(reset_positions(Toy()), "cache.full,cache.partition,page.permute")
    path = tmp_path / "report.json"

    data = report.to_json(path)

    text = path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == data
    assert data["verdict"] == "fail"
    assert {"relation", "verdict", "worst", "required_tolerance", "diagnosis"} <= set(
        data["rows"][0]
    )
    assert from_json(data).to_json() == data
    with pytest.raises(CrosscheckError, match="schema_version is 0, expected 1"):
        from_json(data | {"schema_version": 0})


def test_progress_only_grows_and_ends_full():
    told = []

    quick(Toy(), "cache.full", progress=lambda *a: told.append(a))

    done = [d for _, d, _ in told]
    assert done == sorted(done)
    assert told[-1][1] == told[-1][2]


MISUSE = {
    "budget": ({"budget_seconds": 0.0}, "budget_seconds is 0.0, expected above 0"),
    "faults": ({"faults": "some"}, "faults is 'some', expected one of"),
    "relation": ({"relations": "cache.ful"}, "Did you mean 'cache.full'"),
    "no relation": ({"relations": " ,"}, "expected names, globs, 'core' or 'all'"),
}


@pytest.mark.parametrize(("options", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused_with_the_value(options, message):
    with pytest.raises(CrosscheckError, match=message):
        check(Toy(), **options)
