"""What `check` may never do: pass what it can't see, lose a failure, or outstay its budget."""

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from crosscheck.check import check, check_case
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.exits import exit_code
from crosscheck.faults import FAULTS
from crosscheck.programs.case import Append, Case
from crosscheck.programs.case_json import case_from_json
from crosscheck.relations.registry import RELATIONS, Sides, relation
from crosscheck.results import NotPassedError, Report
from crosscheck.results_json import from_json
from crosscheck.select import load_relations
from crosscheck.subjects.functions import from_functions
from crosscheck.subjects.protocol import Documented
from tests.tool.programs_toy import Odd, OddFull, without_kv
from tests.toys import Toy

load_relations()
CASE = Case(np.arange(8, dtype=np.int32).reshape(2, 4), (Append(2), Append(2)))
ONES = np.ones((2, 4, 5))


@pytest.fixture
def register():
    """Return a function that registers a relation for one test: name, run -> nothing."""
    before = dict(RELATIONS)

    def add(name, run, *, cases=(CASE,), needs=("cache",), catches=("head.scale",)):
        run.__doc__ = "Holds."
        relation(name=name, needs=needs, cases=lambda info, seed: cases, catches=catches)(run)

    yield add
    for name in RELATIONS.keys() - before.keys():
        del RELATIONS[name]


def row_of(report, name, dtype="float64", axis="self"):
    (row,) = [r for r in report.rows if (r.name, r.dtype, r.axis) == (name, dtype, axis)]
    return row


def quick(candidate, relations, reference=None, **options):
    options = {"dtypes": ("float64",), "budget_seconds": 20.0} | options
    return check(candidate, reference, relations=relations, **options)


def sides(left, right, **fields):
    return lambda candidate, reference, case: Sides({"logits": left}, {"logits": right}, **fields)


def with_nan():
    left = ONES.copy()
    left[1, 3, 2] = np.nan
    return left


PLANTED = {
    "a NaN": (with_nan(), ONES, "outside"),
    "a NaN on both sides": (with_nan(), with_nan(), "outside"),
    "another shape": (ONES[:, :3], ONES, "has shape (2, 3, 5), right has shape (2, 4, 5)"),
    "another dtype": (ONES, ONES + 1e-3, "outside"),
}


@pytest.mark.parametrize(("left", "right", "reason"), PLANTED.values(), ids=PLANTED)
def test_what_can_not_agree_fails(register, left, right, reason):
    register("test.planted", sides(left, right))

    report = quick(Toy(), "test.planted")

    row = row_of(report, "test.planted")
    assert (row.verdict, report.verdict, exit_code(report.verdict)) == ("fail", "fail", 1)
    assert reason in row.reason
    assert not row.required_tolerance < 1e-9


def test_sides_with_other_names_fail(register):
    register("test.names", lambda *_: Sides({"logits": ONES}, {"k.0": ONES}))

    assert "left lacks 'k.0'" in row_of(quick(Toy(), "test.names"), "test.names").reason


NOTHING = {
    "no arrays": lambda *_: Sides({}, {}),
    "nothing valid": sides(ONES, ONES + 1, valid=np.zeros((2, 4), bool)),
    "empty arrays": sides(ONES[:0], ONES[:0]),
}


@pytest.mark.parametrize("run", NOTHING.values(), ids=NOTHING)
def test_nothing_compared_is_its_own_exit_code(register, run):
    register("test.nothing", run)

    report = quick(Toy(), "test.nothing")

    assert row_of(report, "test.nothing").verdict == "inconclusive"
    assert (report.verdict, exit_code(report.verdict)) == ("unsupported", 5)
    with pytest.raises(NotPassedError, match="nothing was compared"):
        report.raise_for_failure()


def test_all_unsupported_is_the_same_exit_code():
    report = quick(Toy(), "page.permute")

    assert (report.verdict, exit_code(report.verdict)) == ("unsupported", 5)
    assert "slots lie one after the other" in row_of(report, "page.permute").reason


def test_a_run_says_how_much_it_compared():
    """KV-77: thresholds that were never evaluated, because two conditions excluded each other."""
    some, none = quick(Toy(), "cache.prefix"), quick(Toy(), "page.permute")

    (told,) = [note for note in some.notes if note.startswith("compared: ")]
    assert re.fullmatch(r"compared: [\d,]+ cache entries, [\d,]+ logits", told)
    assert "no comparison made" in none.notes
    assert exit_code(none.verdict) == 5


def test_a_report_is_not_a_truth_value():
    report = Report("a", None, ())

    with pytest.raises(TypeError, match=r"use .verdict or raise_for_failure"):
        bool(report)


def test_a_right_toy_passes_and_each_pass_has_killed_a_fault():
    report = quick(Toy(), "cache.full,cache.partition", dtypes=("float64", "float32"))

    assert report.verdict == "pass"
    report.raise_for_failure()
    assert report.coverage["cache.partition"] == row_of(report, "cache.partition").kills
    assert "mask.top_left" in report.coverage["cache.partition"]
    assert row_of(report, "cache.partition", "float32").verdict == "pass"
    assert row_of(report, "greedy.ids", "float32").verdict == "pass"


def test_a_relation_that_sees_nothing_is_blind_and_allowed_only_by_name(register):
    register("test.constant", sides(ONES, ONES))

    report = quick(Toy(), "test.constant")

    row = row_of(report, "test.constant")
    assert (row.verdict, report.verdict) == ("blind", "blind")
    assert "it did not see head.scale" in row.reason
    assert exit_code(report.verdict) == 3
    assert exit_code(report.verdict, allow_blind=True) == 0
    with pytest.raises(NotPassedError, match="verdict is blind"):
        report.raise_for_failure()


def test_a_relation_blind_to_one_of_its_faults_is_blind(register):
    run = RELATIONS["cache.full"].run
    register("test.half", lambda *a: run(*a), catches=("head.scale", "rollback.leak"))

    row = row_of(quick(Toy(), "test.half"), "test.half")

    assert (row.verdict, row.kills) == ("blind", ("head.scale",))
    assert "rollback.leak" in row.reason


def test_an_effect_below_ten_tolerances_does_not_count_as_seen(register):
    def faint(candidate, reference, case):
        same = candidate is reference and not hasattr(candidate, "fault")
        return Sides({"logits": ONES + (0 if same else 5e-9)}, {"logits": ONES})

    register("test.faint", faint)

    assert row_of(quick(Toy(), "test.faint"), "test.faint").verdict == "blind"


def test_without_planted_faults_a_pass_is_blind():
    report = quick(Toy(), "cache.full", faults="none")

    assert row_of(report, "cache.full").verdict == "blind"


def test_what_the_subject_raises_is_a_verdict_and_a_sentence():
    def broken(logits, call):
        raise IndexError("slot 9 of 8")

    report = quick(without_kv(Odd, change=broken), "cache.full,cache.partition")

    assert {row.verdict for row in report.rows} == {"error"}
    assert "slot 9 of 8" in row_of(report, "cache.full").reason
    assert exit_code(report.verdict) == 4


def test_a_divergence_elsewhere_says_more_than_an_exception(register):
    def run(candidate, reference, case):
        if case.seed == 0:
            raise IndexError("slot 9 of 8")
        return Sides({"logits": ONES + 1}, {"logits": ONES})

    register("test.both", run, cases=(CASE, replace(CASE, seed=1)))

    row = row_of(quick(Toy(), "test.both"), "test.both")

    assert row.verdict == "fail"
    assert case_from_json(row.case).seed == 1


def test_what_a_fault_answers_instead_of_a_refusal_counts_as_seen(register):
    def run(candidate, reference, case):
        if case.seed == 0 and not hasattr(candidate, "fault"):
            raise Refused("past the ring")
        return Sides({"logits": ONES + (case.seed == 0)}, {"logits": ONES})

    register("test.refusing", run, cases=(CASE, replace(CASE, seed=1)))

    row = row_of(quick(Toy(), "test.refusing"), "test.refusing")

    assert (row.verdict, row.kills) == ("pass", ("head.scale",))


def test_a_forward_that_raises_is_a_verdict_and_a_sentence():
    def broken(ids):
        raise RuntimeError("no kernel")

    broken_subject = from_functions(broken, dtype="float64", vocab_size=5)

    report = quick(broken_subject, "mode.stale")

    assert report.verdict == "error"
    assert "no kernel" in report.rows[0].reason


def test_what_a_subject_may_refuse_is_unsupported(register):
    def refuse(*_):
        raise Refused("past the ring")

    register("test.refused", refuse)

    report = quick(Toy(), "test.refused")

    assert row_of(report, "test.refused").verdict == "unsupported"
    assert "past the ring" in row_of(report, "test.refused").reason


def test_examples_that_can_not_be_made_are_an_error_of_that_row_alone(register):
    def cases(info, seed):
        raise KeyError("no such size")

    def run(*_):
        return Sides({"logits": ONES}, {"logits": ONES})

    run.__doc__ = "Holds."
    relation(name="test.cases", needs=("cache",), cases=cases)(run)

    report = quick(Toy(), "test.cases,cache.full")

    assert row_of(report, "test.cases").verdict == "error"
    assert row_of(report, "cache.full").verdict == "pass"


def reset_positions(subject):
    return FAULTS["pos.reset"].plant(subject)


def test_a_planted_fault_fails_with_the_smallest_case_and_its_curve():
    report = quick(reset_positions(Toy()), "cache.partition")

    row = row_of(report, "cache.partition")
    assert row.verdict == "fail"
    assert row.required_tolerance > 1e-3
    small = case_from_json(row.case)
    assert small.ids.shape[0] == 1
    assert small.ids.shape[1] <= 4
    assert row.curve["chunks"]
    assert len(row.curve["points"]["logits"][0]) == small.ids.shape[1]
    assert len(row.curve["margins"][0]) == small.ids.shape[1]


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
def test_the_budget_is_kept_and_what_was_not_reached_is_no_pass(budget):
    def slow(logits, call):
        time.sleep(0.05)
        return logits

    began = time.monotonic()
    report = quick(without_kv(Odd, change=slow), "all", budget_seconds=budget)

    assert time.monotonic() - began < budget + 2.5
    assert report.verdict == "inconclusive"
    assert any("budget" in row.reason for row in report.rows)


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
