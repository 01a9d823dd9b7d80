"""What a report says, line by line."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck import compare, semantic
from crosscheck.exits import MEANING, exit_code
from crosscheck.results import Diagnosis, Divergence, RelationResult, Report
from crosscheck.screen import wrapped
from crosscheck.text import UNNAMED, diagnosed, divergence_lines, report_lines, where

PASSING = RelationResult("cache.full", "pass", 3e-15, 4e-16, 12, kills=("a.b", "a.c"))


def failing(**changes):
    right = np.random.default_rng(0).normal(size=(2, 9, 5))
    left = right.copy()
    left[1, 6] += 1.0
    comparison = compare(left, right, semantic(), name="logits", names=("chunks", "full"))
    facts = {
        "name": "cache.partition",
        "verdict": "fail",
        "worst": comparison.worst,
        "required_tolerance": comparison.required_tolerance,
        "cases": 14,
        "comparison": comparison,
        "case": {},
        "divergence": Divergence("cache.partition", 1, 6, 2, 1, "k", False),
        "diagnosis": (
            Diagnosis("my.fault", 0.98, "it gives the same logits"),
            Diagnosis("other.fault", 0.3, "less so"),
        ),
    }
    return RelationResult(**facts | changes)


def lines_of(*rows, verdict="fail", **facts):
    return list(report_lines(Report("mine", None, rows, **facts), verdict))


def test_a_divergence_has_its_lines_in_a_fixed_order():
    lines = list(divergence_lines(failing(), "partition.json"))

    assert [line.split()[0] for line in lines] == [
        "DISAGREE",
        "worst",
        "count",
        "first",
        "greedy",
        "meaning",
        "repeat",
    ]
    assert lines[0] == "DISAGREE cache.partition, logits: chunks vs full, float64"
    assert lines[3] == (
        "  first   row 1, position 6, chunk 2, layer 1, k; its inputs agree: it begins here"
    )
    assert lines[5] == "  meaning my.fault (0.98): it gives the same logits. Or other.fault (0.30)"
    assert lines[6] == "  repeat  crosscheck replay partition.json"


def test_a_fault_is_explained_once_and_named_at_the_end():
    lines = lines_of(failing(), failing(name="cache.prefix"))

    assert "  meaning my.fault (0.98), as above" in lines
    assert sum("it gives the same logits" in line for line in lines) == 1
    assert lines[-1].startswith("FAIL: a divergence, most likely my.fault. 2 fail")


def test_a_divergence_that_nothing_explains_says_so():
    lines = list(divergence_lines(failing(diagnosis=(), divergence=None)))

    assert f"  meaning {UNNAMED}" in lines
    assert "  first   row 1, position 6, token 0" in lines


def test_what_the_package_says_itself_stands_beside_the_difference():
    lines = list(divergence_lines(failing(documented=("One cache a loop.", "its guide"))))

    assert '  package says of it: "One cache a loop." (its guide)' in lines


def test_a_failure_without_numbers_gives_its_reason():
    row = failing(comparison=None, divergence=None, reason="shapes differ")

    assert next(divergence_lines(row)) == "DISAGREE cache.partition, float64: shapes differ"


@pytest.mark.parametrize(
    ("inherited", "origin", "isolated", "ending"),
    [
        (True, None, "", "; its inputs differ already: inherited"),
        (True, "layers.0.mlp", "why", "; why: inherited, it begins in layer 0's mlp"),
        (True, "layers.1.in", "why", "; why: inherited, it begins in what enters layer 1"),
        (
            True,
            "layers.1.attn_norm",
            "a",
            "; a: inherited, it begins in what enters layer 1's attn",
        ),
        (False, None, "", "; its inputs agree: it begins here"),
        (False, None, "why", "; why: it begins here"),
        (None, None, "", ""),
        (None, None, "no hooks", "; inherited or not: no hooks"),
    ],
)
def test_a_place_says_whether_the_difference_was_inherited(inherited, origin, isolated, ending):
    words = where(Divergence("a", 0, 3, None, 1, "k", inherited, origin, isolated))

    assert words == f"row 0, position 3, layer 1, k{ending}"


def test_every_relation_has_a_line_with_the_tolerance_that_would_have_passed():
    lines = lines_of(PASSING, failing())

    assert lines[3:6] == [
        "relation         dtype    verdict        worst  passes at  cases  kills",
        "cache.full       float64  pass         3.0e-15    4.0e-16     12      2",
        "cache.partition  float64  fail         1.0e+00    4.3e-01     14      -",
    ]


def test_relations_that_were_not_run_stand_together_under_their_reason():
    rows = [
        RelationResult(name, "unsupported", reason="no window: it has none")
        for name in ("window.ring", "window.wide")
    ]

    assert "  window.ring, window.wide: no window: it has none" in lines_of(PASSING, *rows)


@pytest.mark.parametrize("verdict", ["blind", "inconclusive", "error"])
def test_what_could_not_be_told_gives_its_reason(verdict):
    rows = [
        RelationResult(name, verdict, reason="so it is", dtype=dtype)
        for name, dtype in (("cache.full", "float64"), ("cache.prefix", "float32"))
    ]

    assert f"{verdict.upper()} cache.full, cache.prefix in float32: so it is" in lines_of(
        *rows, verdict=verdict
    )


def test_parity_is_told_from_self_consistency():
    lines = lines_of(PASSING, failing(axis="parity"))

    assert any(line.startswith("cache.partition (parity)  float64") for line in lines)
    assert any(line.startswith("DISAGREE cache.partition (parity), logits") for line in lines)


def test_notes_are_said_once_and_the_last_line_is_the_verdict():
    lines = lines_of(PASSING, verdict="pass", notes=("amplified", "amplified"), seconds=2.04)

    assert lines.count("  note    amplified") == 1
    told = "1 pass (planted faults seen in all 1); 12 cases, 2.0 s"
    assert lines[-1] == f"PASS: {MEANING[0]}. {told}"


def test_the_last_line_says_in_which_rows_no_fault_was_planted():
    bare = replace(PASSING, kills=())
    rows = PASSING, replace(bare, axis="parity"), replace(bare, dtype="float32"), bare

    assert (
        "4 pass (planted faults seen in 1 of 4, none planted in 1 (parity), 1 in float32, 1 "
        in (lines_of(*rows, verdict="pass")[-1])
    )
    assert "planted" not in lines_of(failing())[-1]


def test_a_run_without_rows_says_that_nothing_was_compared():
    assert lines_of(verdict="unsupported")[-1] == (
        f"UNSUPPORTED: {MEANING[5]}. nothing was run; 0 cases, 0.0 s"
    )


@pytest.mark.parametrize(
    ("verdict", "code", "allowed"),
    [
        ("pass", 0, 0),
        ("fail", 1, 1),
        ("blind", 3, 0),
        ("inconclusive", 3, 3),
        ("error", 4, 4),
        ("unsupported", 5, 5),
    ],
)
def test_every_verdict_has_its_exit_code_and_only_blind_can_be_allowed(verdict, code, allowed):
    assert exit_code(verdict) == code
    assert exit_code(verdict, allow_blind=True) == allowed


@pytest.mark.parametrize("width", [60, 80, 120])
def test_wrapped_lines_fit_and_lose_no_word(width):
    line = "  meaning " + " ".join(f"word{i}" for i in range(60))

    parts = wrapped(line, width)

    assert max(map(len, parts)) <= width
    assert " ".join(parts).split() == line.split()
    assert all(part.startswith(" " * 10) for part in parts[1:])


def test_without_a_terminal_a_line_stays_whole():
    assert wrapped("a " * 200, 0) == ["a " * 200]


def test_a_pass_without_padding_says_so_and_a_pass_of_chosen_relations_does_not():
    closed = RelationResult("pad.left", "unsupported", reason="no mask")
    opened = RelationResult("pad.left", "pass", 3e-15, 4e-16, 12, kills=("a.b",))

    assert "; padding was not checked. " in lines_of(PASSING, closed, verdict="pass")[-1]
    assert "padding" not in lines_of(PASSING, opened, verdict="pass")[-1]
    assert "padding" not in lines_of(PASSING, verdict="pass")[-1]


def test_a_meaning_says_of_which_case_it_is_where_the_lines_around_it_are_of_a_smaller_one():
    curve = {"words": ["chunks 3,1,4", "one forward"], "shrunk": True}
    larger, same = (
        list(divergence_lines(failing(curve=curve | {"shrunk": shrunk})))[5]
        for shrunk in (True, False)
    )

    assert "my.fault (0.98) [on the case as first found: chunks 3,1,4]: it gives" in larger
    assert "[" not in same


def test_a_diagnosis_says_which_case_it_is_of():
    curve = {"words": ["chunks 3,1,4", "one forward"], "shrunk": True}

    assert [
        diagnosed(failing(curve=curve)),
        diagnosed(failing(curve=curve | {"shrunk": False})),
        # Who asks anew, asks about the smallest.
        diagnosed(failing(curve=curve, diagnosis=(), axis="parity")),
        diagnosed(failing(comparison=None)),
    ] == [
        "cache.partition fails on chunks 3,1,4 vs one forward, float64, the case as first found",
        "cache.partition fails on chunks vs full, float64",
        "cache.partition (parity) fails on chunks vs full, float64",
        "cache.partition fails, float64",
    ]
