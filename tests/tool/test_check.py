"""What `check` may never do: pass what it can't see."""

import re
from dataclasses import replace

import numpy as np
import pytest

from crosscheck.errors import Refused
from crosscheck.exits import exit_code
from crosscheck.programs.case_json import case_from_json
from crosscheck.relations.registry import RELATIONS, Sides, relation
from crosscheck.results import NotPassedError, Report
from crosscheck.subjects.functions import from_functions
from tests.tool.checking import CASE, ONES, quick, row_of, sides
from tests.tool.programs_toy import Odd, without_kv
from tests.toys import Toy


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
