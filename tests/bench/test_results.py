"""Results of a benchmark: rows, their file, their page."""

import argparse
import json
import xml.etree.ElementTree as ElementTree

import pytest

from bench.__main__ import BENCHES, main
from bench.environment import environment
from bench.page import page
from bench.plots import INK, bars, curves
from bench.rows import Row, missing, report, rows_of
from bench.timing import Spread

FOUND = {"slow": Spread(30.0, 29.0, 31.0), "quick": Spread(10.0, 9.0, 12.0)}


@pytest.fixture
def rows():
    measured = rows_of("decode", "b1", "step", FOUND, baseline="slow", floor=6.0)
    return [*measured, missing("decode", "b64", "quick", "step", "ms", "out of memory")]


def options(tmp_path):
    return argparse.Namespace(json=tmp_path / "rows.jsonl", html=tmp_path / "rows.html")


def test_a_ratio_above_one_is_faster_than_the_baseline(rows):
    assert [row.ratio for row in rows] == [1.0, 3.0, None]


def test_the_floors_share_is_the_least_time_over_the_measured_one(rows):
    assert [row.floor_share for row in rows] == [0.2, 0.6, None]


def test_a_case_without_a_number_is_a_row_that_says_why(rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    report(rows, options(tmp_path), about="a table")

    assert "out of memory" in capsys.readouterr().out
    last = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[-1])
    assert last["median"] is None
    assert last["note"] == "out of memory"


def test_a_result_file_begins_with_its_environment(rows, tmp_path):
    report(rows, options(tmp_path), about="a table", precision="bfloat16")

    first, *others = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert first["environment"]["precision"] == "bfloat16"
    assert first["environment"]["versions"]["jax"]
    assert [Row(**other) for other in others] == rows
    keys = [
        "bench",
        "case",
        "subject",
        "metric",
        "unit",
        "median",
        "low",
        "high",
        "ratio",
        "floor_share",
    ]
    assert [[*other] for other in others] == [keys, keys, [*keys, "note"]]


def test_a_page_holds_every_number_and_asks_for_nothing_outside(rows, tmp_path):
    report(rows, options(tmp_path), about="a table", says="No number is universal.")

    text = (tmp_path / "rows.html").read_text()
    assert all(word in text for word in ("quick", "out of memory", "No number is universal."))
    assert "src=" not in text
    assert "@import" not in text


def test_a_page_escapes_what_it_is_given():
    row = Row("decode", "<b>", "it", "step", "ms", 1.0, 1.0, 1.0)

    text = page([row], about="<script>", says="", environment=environment(), figures={})

    assert "<script>" not in text
    assert "<b>" not in text


def test_a_reference_is_never_the_best_of_a_case():
    found = {"weight-read": Spread(1.0, 1.0, 1.0), **FOUND}
    rows = rows_of("decode", "b1", "step", found)

    text = page(rows, about="a table", says="", environment=environment(), figures={})

    best = [line for line in text.splitlines() if 'class="best"' in line]
    assert len(best) == 1
    assert "quick" in best[0]


def test_plots_take_the_readers_ink(rows):
    for svg in (bars(rows, unit="ms"), curves({"a": ([1, 2], [3, 4])}, x="tokens", y="ms")):
        ElementTree.fromstring(svg)
        assert INK not in svg
        assert "currentColor" in svg


def test_nothing_measured_draws_nothing(rows):
    assert bars(rows[2:], unit="ms") == ""


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_tells_its_options(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])

    assert stopped.value.code == 0
    assert "--html" in capsys.readouterr().out
