"""Flags of what a token is taken from, where the text ends, and what is told of it."""

import importlib
import json

import pytest

from tests.tiny import TWINS

ARGUMENTS = ["generate", "reference", "--prompt", "3 1 4 1 5", "--max-new-tokens", "6"]
pytestmark = pytest.mark.parametrize("twin", TWINS)


def main(twin, *arguments):
    return importlib.import_module(f"{twin}.cli").main([*arguments, "--dtype", "float64"])


def found(twin, capsys, *arguments):
    assert main(twin, *ARGUMENTS, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


PENALTIES = ["--repetition-penalty", "3", "--presence-penalty", "1", "--frequency-penalty", "0.5"]


def test_penalties_and_biases_change_the_text_alike_in_both_twins(twin, capsys):
    plain = found(twin, capsys)["ids"]
    asked = [*PENALTIES, "--logit-bias", f"{plain[0]}=-inf", "--logit-bias", "7=0.25"]

    ids = found(twin, capsys, *asked)["ids"]

    assert plain[0] not in ids
    assert len(set(ids)) == 6 != len(set(plain))
    other = next(name for name in TWINS if name != twin)
    assert found(other, capsys, *asked)["ids"] == ids
    main(twin, *ARGUMENTS, *asked)
    assert capsys.readouterr().out == f"3 1 4 1 5 {' '.join(map(str, ids))}\n"


def test_a_text_ends_before_its_stop_string(twin, capsys, tmp_path):
    """Streamed, kept in a file, and as JSON: the same text, to the letter."""
    words = found(twin, capsys)["text"].split()
    stop = f"{words[2][-1]} {words[3]} {words[4][0]}"
    whole = " ".join(words)
    left = whole[: whole.index(stop)]

    told = found(twin, capsys, "--stop", stop, "--stop", "x")
    main(twin, *ARGUMENTS, "--stop", stop)
    streamed = capsys.readouterr()
    main(twin, *ARGUMENTS, "--stop", stop, "--save-cache", str(tmp_path / "c"))

    assert (told["text"], told["stopped"]) == (left, stop)
    assert left.startswith(" ".join(map(str, told["ids"])))
    assert streamed.out == capsys.readouterr().out == f"3 1 4 1 5 {left}\n"
    assert streamed.err.startswith(f"{len(told['ids'])} tokens in ")
    assert found(twin, capsys, "--stop", "x")["stopped"] is None


def test_log_probabilities_are_told_with_the_likeliest_tokens(twin, capsys):
    told = found(twin, capsys, "--logprobs", "2", "--logit-bias", "9=-inf")

    for entry in told["logprobs"]:
        first, second = entry["top"]
        assert first["logprob"] > second["logprob"]
        assert entry["text"] == str(entry["id"])
        assert {"id": entry["id"], "text": entry["text"], "logprob": entry["logprob"]} in entry[
            "top"
        ] or entry["logprob"] < second["logprob"]
    assert [entry["id"] for entry in told["logprobs"]] == told["ids"]
    alone = found(twin, capsys, "--logprobs", "0")["logprobs"]
    assert all(set(entry) == {"id", "text", "logprob"} for entry in alone)


WRONG = {
    "minimum": (
        ["--min-new-tokens", "7"],
        "--min-new-tokens is 7, expected at most --max-new-tokens 6. Lower it, or raise",
    ),
    "penalty": (
        ["--repetition-penalty", "0"],
        "--repetition-penalty is 0.0, expected a number",
    ),
    "presence": (
        ["--presence-penalty", "nan"],
        "--presence-penalty is nan, expected a number",
    ),
    "bias without number": (
        ["--logit-bias", "3"],
        "--logit-bias is '3', expected an id and a number such as 13=-2.5 or 13=-inf.",
    ),
    "bias of no id": (["--logit-bias", "19=1"], "--logit-bias names the id 19, expected 0 to 18."),
    "no stop": (["--stop", ""], "--stop is '', expected at least 1 character."),
    "stop without cache": (["--stop", "3", "--no-cache"], "--stop needs a cache to go on from"),
    "logprobs below 0": (["--logprobs", "-1", "--json"], "--logprobs is -1, expected at least 0."),
    "logprobs above all": (
        ["--logprobs", "20", "--json"],
        "--logprobs is 20, expected at most 19, the model's vocabulary.",
    ),
    "logprobs unseen": (["--logprobs", "2"], "--logprobs is 2, and only --json prints them."),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line_and_exit_code_2(twin, case, capsys):
    options, message = WRONG[case]

    code = main(twin, *ARGUMENTS, *options)

    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_penalties_and_log_probabilities_are_told_beside_drafts_as_without(twin, capsys):
    asked = [*PENALTIES, "--logprobs", "2"]
    plain = found(twin, capsys, *asked)

    drafted = found(twin, capsys, *asked, "--draft", "reference", "--k", "2")

    assert drafted["ids"] == plain["ids"]
    assert [entry["id"] for entry in drafted["logprobs"]] == plain["ids"]
    assert drafted["accepted"] == drafted["drafted"] > 0


def test_a_stop_string_beside_drafts_ends_the_text_where_it_ends_without(twin, capsys):
    words = found(twin, capsys)["text"].split()
    asked = ["--stop", f" {words[3]} {words[4][0]}"]
    plain = found(twin, capsys, *asked)

    drafted = found(twin, capsys, *asked, "--draft", "reference", "--k", "2")

    assert drafted["text"] == plain["text"]
    assert drafted["stopped"] == plain["stopped"] == asked[1]
    main(twin, *ARGUMENTS, *asked, "--prompt-lookup", "2")
    assert capsys.readouterr().out.rstrip().endswith(plain["text"])
