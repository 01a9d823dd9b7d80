"""Wrong usage of the benchmarks is one line with the next step and exit code 2, before any work."""

import importlib

import pytest

from bench.__main__ import BENCHES, main
from bench.usage import check_places
from tests.slips import refusal


def refused(capsys, *argv):
    return refusal(capsys, main, *argv)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ((), "python -m bench: the following arguments are required: name, ..."),
        (("decod",), "python -m bench: argument name: invalid choice: 'decod' (choose from "),
        (
            ("decode", "--dtype", "float46"),
            "python -m bench decode: unrecognized arguments: --dtype float46. "
            "See python -m bench decode --help.",
        ),
        (
            ("decode", "--cases", "b1"),
            "python -m bench decode: argument --cases: invalid choice: 'b1' (choose from ",
        ),
        (
            ("sweep", "--batches", "0"),
            "python -m bench sweep: argument --batches: '0' is no whole number of at least 1. "
            "See python -m bench sweep --help.",
        ),
        (
            ("fragmentation", "--lengths", "none.json"),
            "fragmentation: none.json cannot be read as JSON ",
        ),
        (
            ("scores", "--model", "nonsense"),
            "bench scores: open_source: name is 'nonsense', expected one of ",
        ),
    ],
    ids=[
        *("nothing", "name", "option", "case", "number", "lengths", "model"),
    ],
)
def test_a_slip_says_what_was_expected(capsys, argv, line):
    code, said = refused(capsys, *argv)

    assert code == 2
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ("--against", "no-such-revision"),
            "bench decode: --against: 'no-such-revision' ",
        ),
        (
            ("--llama-cpp", "/none/llama-bench"),
            "bench decode: --llama-cpp: /none/llama-bench is no program. Give the path of "
            "llama.cpp's program llama-bench.",
        ),
    ],
    ids=["revision", "program"],
)
def test_a_peer_that_is_not_there_is_told_before_any_model_runs(
    capsys, monkeypatch, smollm2, argv, line
):
    monkeypatch.setattr("bench.runners.TwinRunner", lambda *_: pytest.fail("it began"))

    code, said = refused(capsys, "decode", *argv)

    assert code == 2
    assert said.startswith(line)


@pytest.mark.parametrize("name", BENCHES)
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_where_nothing_can_be_written_nothing_is_measured(capsys, monkeypatch, name, option):
    module = importlib.import_module(f"bench.{name}")
    monkeypatch.setattr(module, "main", lambda options: pytest.fail("it began"))
    needed = ("--lengths", "x.json") if name == "fragmentation" else ()

    said = refused(capsys, name, *needed, option, "/none/here/x")

    words = f"bench {name}: {option} /none/here/x: no folder /none/here. Make it first."
    assert said == (2, words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"page": "/none/page.md"}, "--page /none/page.md: no folder /none. Make it first."),
        ({"json": "."}, "--json .: a folder, expected the name of a file."),
        ({"html": "new/"}, "--html new/: a folder, expected the name of a file."),
        ({"folder": "file"}, "--folder file: a file, expected a folder. Give another place."),
    ],
    ids=["page", "here", "slash", "file"],
)
def test_a_place_that_is_none_is_told(tmp_path, monkeypatch, given, words):
    from argparse import Namespace

    from jaxkv.spec.errors import SourceError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")

    with pytest.raises(SourceError) as caught:
        check_places(Namespace(**given))

    assert str(caught.value) == words
    check_places(Namespace(json="new.jsonl", html=None, folder="new", page="file"))
