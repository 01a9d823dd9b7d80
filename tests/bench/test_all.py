"""The page of a whole run: each benchmark by its own command, failures and all."""

import json

import pytest

from bench import all as whole
from bench.__main__ import BENCHES, main
from bench.book import Chapter, book
from bench.environment import environment
from bench.rows import Row


@pytest.fixture
def folder(tmp_path):
    rows = [
        {**Row("writes", "b1", "a|b", "write_us", "us", 2.0, 1.0, 3.0).__dict__},
        {**Row("writes", "b8", "a|b", "write_us", "us", None, None, None, note="no room").__dict__},
    ]
    first = {"environment": environment(), "about": "a table", "says": "No number is universal."}
    text = "".join(json.dumps(line) + "\n" for line in (first, *rows))
    (tmp_path / "writes.jsonl").write_text(text)
    Chapter.keep("writes", tmp_path, whole.Outcome("python -m bench writes", 7.0))
    return tmp_path


def test_every_benchmark_of_a_whole_run_is_one():
    assert set(whole.RUNS) < set(BENCHES)


def test_a_chapter_has_its_command_its_table_its_notes_and_what_it_says(folder):
    found = Chapter.read("writes", folder)
    assert found is not None

    page = book([found])

    assert "`python -m bench writes`: 7 s." in page
    assert "| b1 | a\\|b | write_us, us | 2.00 | 1.00 | 3.00 |  |" in page
    assert "| b8 | a\\|b | write_us, us |  |  |  | 1 |" in page
    assert "1. no room" in page
    assert "No number is universal." in page
    assert page.count("Python ") == 1


def test_a_benchmark_that_was_not_run_has_no_chapter(folder):
    assert Chapter.read("decode", folder) is None


@pytest.mark.parametrize(
    ("limit", "told"), [(0.01, "stopped after 0 s"), (60, "ended with 2:")], ids=["time", "code"]
)
def test_a_benchmark_that_fails_is_a_chapter_that_says_so(tmp_path, limit, told):
    outcome = whole.run("decode", ["decode", "--no-such-option"], tmp_path, limit=limit)

    assert told in outcome.fault
    found = Chapter.read("decode", tmp_path)
    assert found is not None
    assert f"**It {outcome.fault}.**" in book([found])


def test_a_page_tells_nothing_of_this_machines_folders(tmp_path):
    outcome = whole.run(
        "decode", ["decode", "--llama-cpp", str(tmp_path / "llama-bench")], tmp_path, limit=0.01
    )

    assert outcome.command == "python -m bench decode --llama-cpp llama-bench"


def test_a_page_is_written_anew_from_the_results_that_are_there(folder):
    page = folder / "page.md"

    assert main(["all", "--render", "--folder", str(folder), "--page", str(page)]) == 0

    assert "## writes" in page.read_text()
