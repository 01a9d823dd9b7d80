"""The commands on a decoder as a user has one: what they print, write, and exit with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crosscheck.cli import command, main
from tests.children import ROOT

MODEL = Path(__file__).parent / "user_model.py"
QUICK = ("--dtypes", "float64", "--budget", "20s")


@pytest.fixture
def crosscheck(capsys, tmp_path, monkeypatch):
    """Return a function: arguments -> exit code, data of --json, printed text."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, tmp_path / "mine.py")

    def call(command, *arguments):
        code = main([command, *arguments, "--json", "out.json"])
        printed = capsys.readouterr()
        assert printed.err == ""
        return code, json.loads(Path("out.json").read_text()), printed.out

    yield call
    sys.modules.pop("mine", None)


def rows_of(data):
    return {row["relation"]: row for row in data["rows"]}


def test_a_right_model_passes_and_each_relation_could_have_failed(crosscheck):
    code, data, text = crosscheck(
        "run", "mine.py:right", "--relations", "cache.full,cache.rollback", *QUICK
    )

    assert (code, data["verdict"]) == (0, "pass")
    assert data["schema_version"] == 1
    for row in data["rows"]:
        assert {"relation", "verdict", "worst", "required_tolerance", "diagnosis"} <= row.keys()
        assert row["required_tolerance"] < 1e-12
        assert row["kills"]
    assert text.splitlines()[-1].startswith("PASS: every relation that ran agrees")
    assert not Path("crosscheck-failures").exists()


def test_a_faulty_model_fails_with_a_report_a_file_and_a_program(crosscheck):
    code, data, text = crosscheck(
        "run", "mine.py:restarted", "--relations", "cache.full,cache.partition", *QUICK
    )

    rows = rows_of(data)
    assert (code, data["verdict"]) == (1, "fail")
    assert (rows["cache.full"]["verdict"], rows["cache.partition"]["verdict"]) == ("pass", "fail")
    assert rows["cache.partition"]["comparison"]["first"]["position"] > 0
    block = text[text.index("DISAGREE") :].splitlines()[:7]
    assert [line.split()[0] for line in block[:4]] == ["DISAGREE", "worst", "count", "first"]
    assert "  repeat  crosscheck replay crosscheck-failures/cache-partition-float64.json" in text


def test_the_program_of_a_failure_runs_without_crosscheck_and_follows_the_model(crosscheck):
    crosscheck("run", "mine.py:restarted", "--relations", "cache.partition", *QUICK)
    program = Path("crosscheck-failures/repro_cache_partition_float64.py")
    command = [sys.executable, "-I", str(program)]

    failing = subprocess.run(command, capture_output=True, text=True, check=False)
    Path("mine.py").write_text(MODEL.read_text().replace('"restarted")', "None)"))
    mended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "crosscheck" not in "".join(
        line for line in program.read_text().splitlines() if "import" in line
    )
    assert (failing.returncode, mended.returncode) == (1, 0)


def test_replay_fails_until_the_model_is_mended(crosscheck):
    crosscheck("run", "mine.py:restarted", "--relations", "cache.partition", *QUICK)
    file = "crosscheck-failures/cache-partition-float64.json"

    code, row, text = crosscheck("replay", file)
    assert (code, row["verdict"], row["relation"]) == (1, "fail", "cache.partition")
    assert text.startswith("DISAGREE")

    Path("mine.py").write_text(MODEL.read_text().replace('"restarted")', "None)"))
    sys.modules.pop("mine", None)
    code, row, text = crosscheck("replay", file)
    assert (code, row["verdict"]) == (0, "pass")
    assert text == "PASS cache.partition, float64: the saved case no longer fails\n"


def test_nowhere_to_save_saves_nothing(crosscheck):
    code, _, text = crosscheck(
        "run", "mine.py:restarted", "--relations", "cache.partition", "--save", "", *QUICK
    )

    assert code == 1
    assert "repeat" not in text
    kept = {path.name for path in Path().iterdir()} - {"__pycache__"}  # of mine.py, if at all
    assert kept == {"mine.py", "out.json"}


def test_a_model_that_raises_is_told_in_a_sentence(crosscheck):
    code, data, text = crosscheck("run", "mine.py:raises", "--relations", "cache.partition", *QUICK)

    row = rows_of(data)["cache.partition"]
    assert (code, data["verdict"], row["verdict"]) == (4, "error", "error")
    assert "IndexError: index 4 is out of bounds" in row["reason"]
    assert "Traceback" not in text
    assert "ERROR cache.partition: " in text


@pytest.mark.parametrize("relations", ["window.ring", "window.ring,page.permute"])
def test_a_run_that_compares_nothing_says_so_and_exits_with_5(crosscheck, relations):
    """KV-77: a check that nothing reaches is no green light."""
    code, data, text = crosscheck("run", "mine.py:right", "--relations", relations, *QUICK)

    assert (code, data["verdict"]) == (5, "unsupported")
    assert all(row["verdict"] == "unsupported" and row["reason"] for row in data["rows"])
    assert text.splitlines()[-1].startswith("UNSUPPORTED: nothing was compared")


def test_blind_is_no_pass_and_allowing_it_changes_the_exit_code_alone(crosscheck):
    """KV-77: all logits of this model are zero, so no fault could have moved them."""
    arguments = ("run", "mine.py:mute", "--relations", "cache.full,cache.partition", *QUICK)

    code, _, text = crosscheck(*arguments)
    allowed, data, _ = crosscheck(*arguments, "--allow-blind")

    assert (code, allowed, data["verdict"]) == (3, 0, "blind")
    assert "BLIND cache.full" in text


def test_localize_says_where_it_begins(crosscheck):
    code, data, text = crosscheck(
        "localize", "mine.py:restarted", "--relations", "cache.partition", "--budget", "20s"
    )

    assert code == 1
    assert data.keys() >= {"relation", "row", "position", "chunk", "layer", "point", "inherited"}
    assert data["inherited"] is None
    assert data["isolated"] == "the subject captures no intermediate results"
    assert data["relation"] == "cache.partition"
    assert data["position"] > 0
    assert text.startswith(f"begins at row {data['row']}, position {data['position']}")


def test_diagnose_names_the_fault_first(crosscheck):
    code, data, text = crosscheck(
        "diagnose", "mine.py:restarted", "--relations", "cache.partition", "--budget", "20s"
    )

    assert code == 1
    assert all(each.keys() == {"fault", "score", "evidence", "exact"} for each in data)
    assert [each["score"] for each in data] == sorted((e["score"] for e in data), reverse=True)
    assert data[0]["fault"] == "pos.reset"
    assert text.startswith("cache.partition fails on chunks ")
    assert "pos.reset" in text


@pytest.mark.parametrize("command", ["localize", "diagnose"])
def test_where_nothing_fails_there_is_nothing_to_find(crosscheck, command):
    code, data, text = crosscheck(
        command, "mine.py:right", "--relations", "cache.full", "--budget", "20s"
    )

    assert code == 0
    assert not data or data["relation"] is None
    assert text.startswith("PASS")


def test_selftest_counts_what_is_killed(crosscheck):
    code, data, text = crosscheck(
        "selftest", "mine.py:right", "--relations", "cache.partition,cache.rollback", *QUICK[2:]
    )

    assert data.keys() >= {"killed", "planted", "blind"}
    assert 0 < data["killed"] <= data["planted"]
    assert code == (3 if data["blind"] or data["survivors"] else 0)
    assert f"{data['killed']} of {data['planted']} faults killed" in text


def test_calibrate_measures_each_dtype(crosscheck):
    code, data, text = crosscheck("calibrate", "mine.py:right")

    assert code == 0
    assert [noise["dtype"] for noise in data["noise"]] == ["float64", "float32"]
    assert text.splitlines()[2].split() == ["dtype", "float64", "float32"]


def test_the_same_two_ways_of_one_model_agree(crosscheck):
    code, data, _ = crosscheck(
        "run", "mine.py:right", "--against", "mine.py:right", "--relations", "cache.full", *QUICK
    )

    assert code == 0
    assert {row["axis"] for row in data["rows"]} == {"self", "parity"}


def test_json_alone_goes_to_stdout(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = [f"{MODEL}:right", "--relations", "cache.full", *QUICK]

    assert main(["run", *arguments, "--json", "-"]) == 0

    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"


def test_a_call_that_never_answers_leaves_the_command_its_exit_code(tmp_path):
    """The model would abort the process when Python ends, as a framework that computes does."""
    shutil.copy(MODEL, tmp_path / "mine.py")
    options = ("--relations", "cache.partition", "--dtypes", "float64", "--budget", "3s")

    done = subprocess.run(
        [sys.executable, "-m", "crosscheck", "run", "mine.py:hangs", *options, "--save", ""],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert done.returncode == 3, done.stderr
    assert "INCONCLUSIVE cache.partition: the budget ended while it ran: " in done.stdout
    assert "Give a larger --budget" in done.stdout


@pytest.mark.parametrize("met", [True, False], ids=["met", "not met"])
def test_a_framework_that_aborts_pythons_end_does_not_take_the_exit_code(monkeypatch, met):
    def leave(code):
        raise LookupError(code)

    monkeypatch.setattr("crosscheck.cli.main", lambda: 3)
    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("crosscheck.cli.has_left_calls_behind", lambda: False)
    if met:
        monkeypatch.setitem(sys.modules, "mlx.core", sys)

    with pytest.raises(LookupError if met else SystemExit, match=r"^3$"):
        command()
