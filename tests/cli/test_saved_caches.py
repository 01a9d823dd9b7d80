"""A command line saves its cache, goes on from it, and refuses what does not belong together."""

import importlib
import json

import pytest

from tests.tiny import TWINS

FIRST = ["generate", "reference", "--prompt", "3 1 4 1 5", "--max-new-tokens", "6", "--json"]
LAYOUTS = {
    "contiguous": [],
    "paged": ["--layout", "paged", "--page-size", "4"],
    "window": ["--layout", "window"],
}
pytestmark = pytest.mark.parametrize("twin", TWINS)


def main(twin, *arguments):
    return importlib.import_module(f"{twin}.cli").main([*arguments, "--dtype", "float64"])


def found(twin, capsys, *arguments):
    code = main(twin, *arguments)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def prompted(ids, *more):
    return ["generate", "reference", "--prompt", " ".join(map(str, ids)), *more, "--json"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_cache_goes_on_where_the_text_ended(twin, layout, capsys, tmp_path):
    options, file = LAYOUTS[layout], str(tmp_path / "c.safetensors")
    first = found(twin, capsys, *FIRST, *options, "--save-cache", file)
    whole = [3, 1, 4, 1, 5, *first["ids"], 7]

    second = found(twin, capsys, *prompted(whole), *options, "--load-cache", file)

    cold = found(twin, capsys, *prompted(whole), *options)
    assert (first["layout"], first["reused_positions"]) == (layout, 0)
    assert second["ids"] == cold["ids"]
    assert second["reused_positions"] == 10
    assert second["forwarded_positions"] == cold["forwarded_positions"] - 10 == 2 + 31


def test_the_saved_text_itself_leaves_one_token_to_compute_and_can_be_saved_on(
    twin, capsys, tmp_path
):
    file, more = str(tmp_path / "c"), str(tmp_path / "d")
    found(twin, capsys, *FIRST, "--max-new-tokens", "1", "--save-cache", file)

    again = found(twin, capsys, *FIRST, "--load-cache", file, "--save-cache", more)
    whole = [3, 1, 4, 1, 5, *again["ids"]]
    third = found(twin, capsys, *prompted(whole), "--load-cache", more)

    assert again["reused_positions"] == 4
    assert third["reused_positions"] == 10
    assert third["ids"] == found(twin, capsys, *prompted(whole))["ids"]


def test_text_printed_beside_a_save_or_after_a_load_is_that_of_the_json(twin, capsys, tmp_path):
    file, plain = str(tmp_path / "c"), FIRST[:-1]
    text = found(twin, capsys, *FIRST)["text"]

    main(twin, *plain, "--save-cache", file)
    saved = capsys.readouterr().out
    main(twin, *plain, "--max-new-tokens", "1", "--save-cache", file)
    capsys.readouterr()
    main(twin, *plain, "--load-cache", file)

    assert saved == capsys.readouterr().out == f"3 1 4 1 5 {text}\n"


REFUSED = {
    "another text": (["--prompt", "3 1 4 2 5 6"], "whose token 3 is 1, 2 in the prompt."),
    "a shorter text": (["--prompt", "3 1"], "whose token 2 is 4, where the prompt has ended."),
    "another tenant": (["--tenant", "b"], "'b', expected the one that saved the file."),
    "another layout": (["--layout", "window"], "--layout is 'paged' in the file, 'window'"),
    "another page size": (["--page-size", "8"], "page_size=4) in the file, "),
    "another dtype": (
        ["--dtype", "float32"],
        "generate: --dtype is 'float64' in the file, 'float32' asked",
    ),
    "another model": (["kjv"], "--load-cache"),
    "no file": (["--load-cache", "none.safetensors"], "none.safetensors does not exist"),
    "a capacity": (["--capacity", "64"], "--capacity is that of the saved cache"),
    "too many tokens": (["--max-new-tokens", "130"], "slots (the last token is never fed back)"),
}


@pytest.fixture
def kept(twin, capsys, tmp_path):
    file = str(tmp_path / "c.safetensors")
    one = [*FIRST, "--max-new-tokens", "1"]
    found(twin, capsys, *one, *LAYOUTS["paged"], "--tenant", "a", "--save-cache", file)
    return file


@pytest.mark.parametrize("case", REFUSED)
def test_a_cache_of_something_else_is_refused_in_one_line(twin, case, kept, capsys):
    options, message = REFUSED[case]
    paged = [] if "--layout" in options else LAYOUTS["paged"]
    right = [*FIRST, *paged, "--tenant", "a", "--load-cache", kept]
    if options == ["kjv"]:
        right[1], options = "kjv", []

    code = importlib.import_module(f"{twin}.cli").main([*right, "--dtype", "float64", *options])

    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


GUESSES = {
    "right text": [],
    "wrong text": ["--prompt", "9 9 9 9 9 9"],
    "short text": ["--prompt", "9"],
    "another layout": ["--layout", "window"],
    "another dtype": ["--dtype", "float32"],
    "no name": ["--tenant", ""],
}


def test_whatever_another_tenant_tries_the_answer_tells_nothing_of_the_file(twin, kept, capsys):
    """Told of the first other token, a loop over prompts would read the whole text."""
    told = set()

    for guess in GUESSES.values():
        code = main(twin, *FIRST, "--load-cache", kept, "--tenant", "mallory", *guess)
        told.add((code, capsys.readouterr().err.replace("''", "'mallory'")))

    ((code, line),) = told
    assert code == 2
    assert "tenant is 'mallory', expected the one that saved the file." in line


def test_a_model_with_an_encoder_keeps_no_file(twin):
    """Its keys and values depend on the source too, which no prompt names."""
    from argparse import Namespace
    from types import SimpleNamespace

    from jaxkv.spec.command_cache import check_model
    from jaxkv.spec.errors import Unsupported

    options = Namespace(save_cache="f", load_cache=None)

    with pytest.raises(Unsupported, match="know the decoder's text alone"):
        check_model(options, SimpleNamespace(encoder=object()))


TOGETHER = {
    "tenant alone": (["--tenant", "a"], "--tenant says whose file is saved or loaded"),
    "no cache": (["--no-cache", "--save-cache", "f"], "--no-cache keeps nothing to save"),
    "no token": (["--max-new-tokens", "0", "--save-cache", "f"], "--save-cache has nothing to"),
    "a folder": (["--save-cache", "."], "--save-cache . cannot be written: it is a folder."),
    "no place": (
        ["--save-cache", "none/c"],
        "none/c cannot be written: there is no folder none.",
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_options_that_contradict_each_other_are_one_line(twin, case, capsys):
    options, message = TOGETHER[case]

    code = main(twin, *FIRST, *options)

    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]
