"""Wrong usage is one line with the next step and exit code 2; no traceback, ever."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crosscheck.cli import READER_LEFT, main
from crosscheck.commands.options import seconds
from tests.slips import refusal

MODEL = f"{Path(__file__).parent / 'user_model.py'}"
RIGHT = f"{MODEL}:right"
LAYOUTS = "contiguous, paged, window, quantized, sinks, sinks_absolute, uncached"


def refused(capsys, *argv):
    return refusal(capsys, main, *argv)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ((), "crosscheck: the following arguments are required: command. See crosscheck --help."),
        (
            ("run",),
            "crosscheck run: the following arguments are required: SUBJECT. See crosscheck run "
            "--help.",
        ),
        (
            ("run", RIGHT, "--budget", "soon"),
            "crosscheck run: argument --budget: 'soon' is no time, expected 60s, 2m or the like. "
            "See crosscheck run --help.",
        ),
        (
            ("run", RIGHT, "--budget", "0s"),
            "crosscheck run: argument --budget: '0s' is no time, expected 60s, 2m or the like. "
            "See crosscheck run --help.",
        ),
        (
            ("run", RIGHT, "--dtypes", "float46"),
            "crosscheck run: argument --dtypes: 'float46' is unknown, expected some of "
            "float64,float32,float16,bfloat16. See crosscheck run --help.",
        ),
        (
            ("run", RIGHT, "--relations", "cache.fulll"),
            "crosscheck: select: relation 'cache.fulll' is none of {n} known ones. Did you mean "
            "'cache.full'?",
        ),
        (
            ("replay", "no-such.json"),
            "crosscheck: replay: no-such.json: No such file or directory. Expected the .json that "
            "`crosscheck run` saved.",
        ),
        # Before the work whose result they would hold: these models can't even be made.
        (
            ("run", "no.py:f", "--json", "/none/a.json"),
            "crosscheck: --json /none/a.json: no folder /none. Make it first.",
        ),
        (
            ("selftest", "no.py:f", "--html", "/none/a.html"),
            "crosscheck: --html /none/a.html: no folder /none. Make it first.",
        ),
        (
            ("run", "no.py:f", "--html", "/"),
            "crosscheck: --html /: a folder, expected the name of a file.",
        ),
        (
            ("run", "no.py:f", "--json", "tests_none/"),
            "crosscheck: --json tests_none/: a folder, expected the name of a file.",
        ),
        (
            ("run", "no.py:f", "--save", f"{MODEL}/failures"),
            f"crosscheck: --save {MODEL}/failures: {MODEL} is no folder. Give another place.",
        ),
        (
            ("run", RIGHT, "--cases", "3"),
            "crosscheck run: unrecognized arguments: --cases 3. See crosscheck run --help.",
        ),
        (
            ("diagnose", RIGHT, "--html", "x.html"),
            "crosscheck diagnose: unrecognized arguments: --html x.html. See crosscheck diagnose "
            "--help.",
        ),
        (
            ("selftest", RIGHT, "--seed", "-1"),
            "crosscheck selftest: argument --seed: '-1' is no seed, expected 0, 1, 2 or the like. "
            "See crosscheck selftest --help.",
        ),
        (
            ("calibrate", RIGHT, "--seed", "x"),
            "crosscheck calibrate: argument --seed: 'x' is no seed, expected 0, 1, 2 or the like. "
            "See crosscheck calibrate --help.",
        ),
    ],
    ids=[
        *("nothing", "no-subject", "time", "no-time", "dtype", "relation", "file"),
        *("json", "html", "no-file", "slash", "save", "option", "of-another", "seed", "word"),
    ],
)
def test_a_slip_says_what_was_expected(capsys, argv, line):
    from crosscheck.select import select

    assert refused(capsys, *argv) == (2, line.format(n=len(select("all"))))


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("no_such_file.py:make", "no_such_file.py"),
        (f"{MODEL}:no_such_factory", "no_such_factory"),
        ("no_such_package.module:make", "no_such_package"),
        ("hf-tiny:no-such-family", "no-such-family"),
        ("hf:no-such-directory", "no-such-directory"),
        ("neither", "file.py:factory"),
    ],
    ids=["file", "factory", "module", "family", "directory", "form"],
)
def test_a_subject_that_is_not_there_is_wrong_usage(capsys, spec, word):
    code, line = refused(capsys, "run", spec, "--budget", "1s")

    assert code == 2
    assert line.startswith("crosscheck: ")
    assert word in line


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "none.py:make",
            "none.py does not exist, seen from {here}. Give the path of a Python file.",
        ),
        (f"{MODEL}", f"Did you mean '{MODEL}:NAME', with a function of that file?"),
        (f"{MODEL}:np", f"{MODEL}:np is of type module, expected a function that returns a model."),
        (
            f"{MODEL}:nothing",
            f"{MODEL}:nothing returned None, expected a model. Does it end in a return?",
        ),
        (
            f"{MODEL}:wanting",
            "wanting: missing a required argument: 'size'. It takes (size); give arguments as "
            f"{MODEL}:wanting?name=value.",
        ),
        (
            "hf-tiny:gpt2?layers=two",
            "hf-tiny: gpt2: layers is 'two', expected a whole number of at least 1.",
        ),
        (
            "hf-tiny:gpt2?seed=x",
            "hf-tiny: gpt2: seed is 'x', expected a whole number of at least 0.",
        ),
        (
            "hf-tiny:gpt2?dtype=int8",
            "hf-tiny:gpt2: dtype is 'int8', expected float64, float32, bfloat16 or float16.",
        ),
        (
            "hf-tiny:gpt2?gather=crop",
            "adapt: gather is 'crop', expected one of reorder_cache, batch_select_indices.",
        ),
        (
            "hf:no-such-directory",
            "hf:no-such-directory: no such folder, nor a model that was downloaded before. Give "
            "the folder of a checkpoint, with its config.json.",
        ),
        ("jaxkv.subject:llama?layout=page", f"layout is 'page', expected one of {LAYOUTS}."),
        ("torchkv.subject:llama?layout=page", f"layout is 'page', expected one of {LAYOUTS}."),
    ],
    ids=[
        *("file", "no-name", "value", "none", "argument", "layers", "seed", "dtype"),
        *("gather", "directory", "jaxkv", "torchkv"),
    ],
)
def test_what_makes_no_subject_says_what_would(capsys, spec, words):
    code, line = refused(capsys, "run", spec, "--budget", "1s")

    assert code == 2
    assert line.endswith(words.format(here=Path.cwd()))


def test_a_factory_that_raises_is_the_subjects_fault(capsys):
    code, line = refused(capsys, "run", f"{MODEL}:unmade", "--budget", "1s")

    assert code == 4
    assert "RuntimeError" in line
    assert "no weights here" in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no json", "it is no JSON"),
        ("[]", "is no saved failure"),
        ('{"kind": "crosscheck failure", "schema_version": 9}', "has schema_version 9, expected 1"),
        ('{"kind": "crosscheck failure", "schema_version": 1}', "is damaged: missing 5 required"),
    ],
    ids=["text", "other", "version", "cut"],
)
def test_a_file_that_is_no_failure_is_refused(capsys, tmp_path, text, complaint):
    file = tmp_path / "x.json"
    file.write_text(text)

    code, line = refused(capsys, "replay", str(file))

    assert code == 2
    assert complaint in line


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("1.5m", 90), (".5s", 0.5), ("1h", 3600)]
)
def test_times_are_read(text, value):
    assert seconds(text) == value


def test_python_m_crosscheck_is_the_command_and_help_names_the_exit_codes():
    done = subprocess.run(
        [sys.executable, "-m", "crosscheck", "--help"],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )

    words = " ".join(done.stdout.split())
    assert words.startswith("usage: crosscheck [-h]")
    assert "Exit codes: 0 every relation that ran agrees" in words
    assert "5 nothing was compared" in words


def shell(command, **settings):
    return subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m crosscheck list faults {command}"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=os.environ | settings,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_is_no_divergence(unbuffered):
    done = shell("| true; exit ${PIPESTATUS[0]}", PYTHONUNBUFFERED=unbuffered)

    assert (done.returncode, done.stderr, done.stdout) == (READER_LEFT, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("form", ["", "--json -"], ids=["text", "json"])
def test_a_full_disk_is_one_line(form):
    done = shell(f"{form} > /dev/full")

    assert done.returncode == 2
    assert done.stderr == ("crosscheck: the output can't be written: No space left on device.\n")


@pytest.mark.parametrize(
    ("what", "keys"),
    [
        ("relations", {"relation", "holds", "level", "needs", "catches"}),
        ("faults", {"fault", "wrong", "shows", "kinds", "needs", "advice"}),
        ("adapters", {"subject", "is"}),
    ],
)
def test_what_there_is_can_be_listed(capsys, what, keys):
    assert main(["list", what, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["list", what]) == 0
    shown = capsys.readouterr().out

    assert len(rows) >= 5
    assert all(set(row) == keys for row in rows)
    assert all(next(iter(row.values())) in shown for row in rows)
