"""`--beams` and `--samples` of both command lines."""

import importlib
import json

import pytest

from tests.tiny import TWINS

ASKED = ("generate", "reference", "--prompt", "3 1 4", "--max-new-tokens", "6")
twins = pytest.mark.parametrize("twin", TWINS)


def model_of(twin: str):
    """Return what the command line calls `reference`."""
    from jaxkv.spec.source import open_source

    checkpoint = open_source("reference")
    weights = importlib.import_module(f"{twin}.weights")
    return weights.from_arrays(checkpoint.config, checkpoint.weights, dtype="float32")


@pytest.fixture
def run(capsys):
    """Return a function: twin, flags -> exit code, what was printed, and the errors."""

    def call(twin: str, *flags: str):
        code = importlib.import_module(f"{twin}.cli").main([*ASKED, *flags])
        return code, *capsys.readouterr()

    return call


@twins
def test_beams_are_printed_with_ids_text_and_score(twin, run):
    flags = ("--beams", "3", "--n-best", "2", "--length-penalty", "0.5", "--early-stopping")
    code, out, _ = run(twin, *flags, "--json")

    found = importlib.import_module(f"{twin}.searching").beam_search(
        model_of(twin),
        [[3, 1, 4]],
        beams=3,
        n_best=2,
        max_new_tokens=6,
        length_penalty=0.5,
        early_stopping=True,
    )
    report = json.loads(out)
    assert code == 0
    assert [beam["ids"] for beam in report["beams"]] == found.best[0]
    assert [beam["score"] for beam in report["beams"]] == found.score_BM[0].tolist()
    assert report["ids"] == found.new_tokens[0] == found.best[0][0]
    assert report["beams"][0]["text"] == report["text"]
    assert report["forwarded_positions"] == int(found.forwarded_positions_B[0])
    _, printed, note = run(twin, *flags)
    assert "the first after" not in note  # all texts came at once
    first, second = report["beams"]
    assert printed.splitlines() == [
        f"3 1 4 {report['text']}",
        f"[score {first['score']:.4f}] the text above",
        f"[score {second['score']:.4f}] {second['text']}",
    ]


@twins
def test_samples_are_printed_with_ids_text_and_seed(twin, run):
    flags = ("--samples", "3", "--temperature", "2", "--seed", "5", "--json")
    code, out, _ = run(twin, *flags)

    drawn = importlib.import_module(f"{twin}.samples").sample_many(
        model_of(twin), [[3, 1, 4]], samples=3, max_new_tokens=6, temperature=2.0, seeds=5
    )
    report = json.loads(out)
    assert code == 0
    assert [each["ids"] for each in report["samples"]] == drawn.samples[0]
    assert [each["seed"] for each in report["samples"]] == [5, 6, 7]
    assert report["forwarded_positions"] == 3 + 3 * 5


@twins
def test_beams_tell_log_probabilities_and_end_before_a_stop_string(twin, run):
    _, plain, _ = run(twin, "--beams", "3", "--json")
    words = json.loads(plain)["text"].split()
    stop = f"{words[1]} {words[2]}"
    flags = ("--beams", "3", "--n-best", "2", "--stop", stop, "--logprobs", "2")

    _, out, _ = run(twin, *flags, "--json")
    code, printed, _ = run(twin, *flags[:-2])

    report = json.loads(out)
    first, second = report["beams"]
    assert (code, report["stopped"]) == (0, stop)
    assert report["text"] == first["text"] == f"{words[0]} "
    assert [each["id"] for each in report["logprobs"]] == report["ids"] == [int(words[0])]
    assert first["logprobs"] == report["logprobs"]
    assert [each["id"] for each in second["logprobs"]] == second["ids"]
    assert {len(each["top"]) for each in second["logprobs"]} == {2}
    assert printed.splitlines()[2] == f"[score {second['score']:.4f}] {second['text']}"


@twins
def test_samples_end_before_a_stop_string(twin, run):
    flags = ("--samples", "2", "--temperature", "2", "--seed", "5", "--json")
    _, plain, _ = run(twin, *flags)
    words = [each["text"].split() for each in json.loads(plain)["samples"]]

    code, out, _ = run(twin, *flags, "--stop", f"{words[1][1]} {words[1][2]}")

    report = json.loads(out)
    first, second = report["samples"]
    assert (code, second["text"]) == (0, f"{words[1][0]} ")
    assert second["ids"] == [int(words[1][0])]
    assert (report["text"], report["stopped"]) == (first["text"], None)


@twins
def test_samples_take_penalties_and_tell_log_probabilities(twin, run):
    flags = ("--samples", "2", "--temperature", "2", "--repetition-penalty", "1.5", "--json")

    _, out, _ = run(twin, *flags, "--logprobs", "0")

    drawn = importlib.import_module(f"{twin}.samples").sample_many(
        model_of(twin),
        [[3, 1, 4]],
        samples=2,
        max_new_tokens=6,
        temperature=2.0,
        repetition_penalty=1.5,
        logprobs=True,
    )
    report = json.loads(out)
    assert [each["ids"] for each in report["samples"]] == drawn.samples[0]
    for each, logprobs in zip(report["samples"], drawn.logprobs[0], strict=True):
        assert [token["logprob"] for token in each["logprobs"]] == logprobs.tolist()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--beams", "3", "--samples", "2"),
            "generate: --beams is 3 and --samples 2, expected one of them: beams draw nothing. "
            "Leave out the other.",
        ),
        (
            ("--beams", "3", "--temperature", "0.5"),
            "generate: --temperature 0.5 is given, but --beams draws nothing. Leave out one of "
            "them.",
        ),
        (
            ("--beams", "3", "--no-cache"),
            "generate: --no-cache is given, but --beams keeps one cache of its own. Leave out one "
            "of them.",
        ),
        (
            ("--samples", "3", "--n-best", "2"),
            "generate: --n-best 2 is given, which belongs to a beam search. Give --beams too, or "
            "leave it out.",
        ),
        (
            ("--beams", "2", "--n-best", "3"),
            "generate: --n-best is 3, expected at most 2, the beams. Raise --beams, or lower "
            "--n-best.",
        ),
        (
            ("--beams", "0"),
            "generate: --beams is 0, expected a whole number of at least 1. `generate` gives one "
            "text a prompt.",
        ),
    ],
    ids=lambda x: "-".join(x).replace("--", "") if isinstance(x, tuple) else "",
)
@twins
def test_flags_that_contradict_each_other_are_refused(twin, run, flags, message):
    code, _, err = run(twin, *flags)

    assert code == 2
    assert err == f"{twin}: {message}\n"
