"""The pytest plugin, in child processes: what it collects, marks, refuses and reports."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from crosscheck.cli import main

ROOT = Path(__file__).parents[2]
MODEL = Path(__file__).parent / "user_model.py"
OWN = """
from mine import Decoder

def test_mine(crosscheck):
    report = crosscheck(Decoder(), relations="cache.full", budget_seconds=9)
    assert report.verdict == "pass"

def test_faulty(crosscheck):
    crosscheck(Decoder("restarted"), relations="cache.partition", budget_seconds=9)

def test_port(crosscheck, oracle):
    wide = oracle(Decoder(dtype="float32"))
    assert wide.info.dtype == "float64"
    crosscheck(Decoder(), wide, relations="cache.full", dtypes=("float64",), budget_seconds=9)
"""

HANGS = """
from mine import Decoder

def test_hangs(crosscheck):
    crosscheck(Decoder("hangs"), relations="cache.partition", budget_seconds=3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("project")
    shutil.copy(MODEL, path / "mine.py")
    (path / "test_own.py").write_text(OWN)
    return path


def run(folder, *arguments):
    """Return exit code and output of pytest in a folder, with this plugin and no other."""
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
    }
    # What this suite was started with is not what the child is asked for.
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "crosscheck.pytest_plugin", "-v", "-rs"]
    done = subprocess.run(
        [*command, "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def subject(name):
    return "--crosscheck-profile", "quick", "--crosscheck-subject", f"mine.py:{name}"


def test_every_relation_is_a_test_of_its_own(folder):
    names = "cache.full or cache.partition or window.ring"

    code, text = run(folder, *subject("restarted"), "-k", f"crosscheck and ({names})")

    assert code == 1
    assert "crosscheck::mine.py:restarted::cache.full PASSED" in text
    assert "crosscheck::mine.py:restarted::cache.partition FAILED" in text
    assert "crosscheck::mine.py:restarted::window.ring SKIPPED" in text
    assert "DISAGREE cache.partition" in text
    assert "no layer is known to have a window" in text
    assert "Traceback" not in text
    assert "3 selected" in text
    assert "crosscheck: mine.py:restarted; profile quick: relations core, float64" in text


def test_listed_tests_are_skipped_and_expected_to_fail(folder):
    (folder / "skips.txt").write_text(
        "# what we do not run\n\ncrosscheck::mine.py:restarted::cache.full # too dull\n"
    )
    (folder / "xfails.txt").write_text("crosscheck::mine.py:restarted::cache.partition # known\n")
    lists = "--crosscheck-skips", "skips.txt", "--crosscheck-xfails", "xfails.txt"

    code, text = run(
        folder, *subject("restarted"), *lists, "-k", "crosscheck and (full or partition)"
    )

    assert code == 0
    assert "too dull" in text
    assert "1 skipped" in text
    assert "1 xfailed" in text


@pytest.mark.parametrize("name", ["skips", "xfails"])
def test_a_listed_id_that_is_no_test_is_an_error(folder, name):
    (folder / "stale.txt").write_text("crosscheck::mine.py:right::cache.fulll\n")

    code, text = run(folder, *subject("right"), f"--crosscheck-{name}", "stale.txt")

    assert code == pytest.ExitCode.USAGE_ERROR
    assert "crosscheck::mine.py:right::cache.fulll is no test of this run" in text


def test_the_fixtures_test_models_as_they_are(folder):
    code, text = run(folder, "test_own.py")

    assert code == 1
    assert "test_mine PASSED" in text
    assert "test_faulty FAILED" in text
    assert "test_port PASSED" in text
    assert "DISAGREE cache.partition" in text


def test_a_saved_failure_is_a_test_until_it_is_mended(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = ["--relations", "cache.partition", "--dtypes", "float64", "--save", "saved"]
    assert main(["run", "mine.py:restarted", *arguments]) == 1
    capsys.readouterr()
    replay = "--crosscheck-replay", "saved/cache-partition-float64.json"

    failing, text = run(folder, *replay, "-k", "replay")
    source = (folder / "mine.py").read_text()
    (folder / "mine.py").write_text(source.replace('"restarted")', "None)"))
    mended, _ = run(folder, *replay, "-k", "replay")
    (folder / "mine.py").write_text(source)

    assert "crosscheck::replay::cache-partition-float64.json FAILED" in text
    assert (failing, mended) == (1, 0)


def test_a_call_that_never_answers_leaves_pytest_its_exit_code(folder):
    """The model would abort the process when Python ends, as a framework that computes does."""
    (folder / "test_hangs.py").write_text(HANGS)

    code, text = run(folder, "test_hangs.py")

    assert code == 1, text
    assert "1 failed" in text
    assert "INCONCLUSIVE cache.partition: the budget ended while it ran" in text


def test_without_a_subject_nothing_is_added(folder):
    code, text = run(folder, "--collect-only", "test_own.py")

    assert code == 0
    assert "crosscheck" not in text.replace("crosscheck.pytest_plugin", "")
    assert "3 tests collected" in text


def test_the_entry_point_is_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"crosscheck": "crosscheck.pytest_plugin"}
    assert project["scripts"]["crosscheck"] == "crosscheck.cli:command"
