"""Both command lines: the same object, one-line errors, exit codes."""

import importlib
import json
import subprocess
import sys

import jax
import pytest

from tests.children import ROOT, environment, run_python
from tests.tiny import TWINS

ARGUMENTS = ["generate", "reference", "--prompt", "3 1 4 1 5", "--max-new-tokens", "6"]
DRAWN = [*ARGUMENTS, "--temperature", "1"]
FIELDS = {
    "prompt_ids",
    "ids",
    "text",
    "first_call_seconds",
    "ttft_seconds",
    "decode_tokens_per_second",
    "compilations",
    "forwarded_positions",
    "layout",
    "reused_positions",
}
pytestmark = pytest.mark.parametrize("twin", TWINS)


def run(twin, *arguments):
    return run_python("-m", twin, *arguments)


def main(twin, *arguments):
    return importlib.import_module(f"{twin}.cli").main(list(arguments))


def test_json_is_one_object_with_the_promised_fields(twin):
    done = run(twin, *ARGUMENTS, "--json", "--device", "cpu")

    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(found) >= FIELDS
    assert found["prompt_ids"] == [3, 1, 4, 1, 5]
    assert len(found["ids"]) == 6
    assert found["text"].split() == [str(token) for token in found["ids"]]
    assert found["forwarded_positions"] == 5 + 6 - 1
    assert found["compilations"] == (1 if twin == "jaxkv" else None)
    assert found["first_call_seconds"] > 0
    assert found["ttft_seconds"] > 0


def test_without_cache_the_ids_are_the_same_and_the_work_is_more(twin, capsys):
    main(twin, *ARGUMENTS, "--json", "--dtype", "float64")
    cached = json.loads(capsys.readouterr().out)

    main(twin, *ARGUMENTS, "--json", "--dtype", "float64", "--no-cache")
    uncached = json.loads(capsys.readouterr().out)

    assert cached["ids"] == uncached["ids"]
    assert cached["forwarded_positions"] == 10
    assert uncached["forwarded_positions"] == 5 + 6 + 7 + 8 + 9 + 10


def test_both_twins_print_the_same_ids(twin, capsys):
    main(twin, *ARGUMENTS, "--json", "--dtype", "float64")
    ids = json.loads(capsys.readouterr().out)["ids"]

    other = next(name for name in TWINS if name != twin)
    main(other, *ARGUMENTS, "--json", "--dtype", "float64")

    assert json.loads(capsys.readouterr().out)["ids"] == ids


def test_the_text_streamed_is_the_text_of_the_json(twin, capsys):
    drawn = ["--temperature", "0.9", "--top-k", "9", "--top-p", "0.95", "--seed", "4"]
    main(twin, *ARGUMENTS, *drawn, "--json")
    text = json.loads(capsys.readouterr().out)["text"]

    main(twin, *ARGUMENTS, *drawn)

    printed = capsys.readouterr()
    assert printed.out == f"{ARGUMENTS[3]} {text}\n"
    assert printed.err.startswith("6 tokens in ")
    assert ", the first after " in printed.err
    assert "(any compiling included, opening the model not)" in " ".join(printed.err.split())


def test_another_seed_draws_another_text(twin, capsys):
    texts = []
    for seed in ("0", "1", "0"):
        main(twin, *ARGUMENTS, "--temperature", "1.5", "--seed", seed, "--json")
        texts.append(json.loads(capsys.readouterr().out)["ids"])

    assert texts[0] == texts[2] != texts[1]


def test_a_score_is_loss_and_predictions(twin, capsys, tmp_path):
    (tmp_path / "ids.txt").write_text("3 1 4 1 5 9 2 6")

    main(twin, "score", "reference", "--text-file", str(tmp_path / "ids.txt"), "--json")
    found = json.loads(capsys.readouterr().out)
    main(twin, "score", "reference", "--text-file", str(tmp_path / "ids.txt"))

    assert set(found) == {"loss", "predictions"}
    assert found["predictions"] == 7
    assert capsys.readouterr().out == f"{found['loss']:.6f} nats per token over 7 predictions\n"


def test_an_option_that_is_no_number_is_one_line_and_exit_code_2(twin, capsys):
    with pytest.raises(SystemExit) as error:
        main(twin, *ARGUMENTS, "--temperature", "warm")

    lines = capsys.readouterr().err.strip().splitlines()
    assert error.value.code == 2
    assert len(lines) == 1
    assert "argument --temperature: invalid float value: 'warm'" in lines[0]


def test_zero_tokens_print_no_times(twin, capsys):
    main(twin, *ARGUMENTS[:-1], "0", "--json")

    found = json.loads(capsys.readouterr().out)
    assert found["ids"] == []
    assert found["ttft_seconds"] is found["decode_tokens_per_second"] is None
    assert found["forwarded_positions"] == 0


WRONG = {
    "unknown model": (
        ["generate", "gpt5", "--prompt", "x"],
        "open_source: name is 'gpt5', expected one of 'smollm2', 'kjv', 'reference'",
    ),
    "no number": (
        ["generate", "reference", "--prompt", "3 x"],
        "'x'",
    ),
    "id outside": (["generate", "reference", "--prompt", "3 19"], "expected ids from 0 to 18"),
    "empty prompt": (["generate", "reference", "--prompt", ""], "expected at least 1 token"),
    "negative count": (
        ["generate", "reference", "--prompt", "3", "--max-new-tokens", "-1"],
        "generate: --max-new-tokens is -1, expected a whole number of at least 0",
    ),
    "over capacity": (
        ["generate", "reference", "--prompt", "3 1 4", "--capacity", "8"],
        "generate: prompt 3 + --max-new-tokens 32 - 1 = 34 slots (the last token is never fed "
        "back), --capacity 8. Raise --capacity or lower --max-new-tokens by 26.",
    ),
    "negative temperature": (
        [*ARGUMENTS, "--temperature", "-1"],
        "generate: --temperature is -1.0, expected a finite number of at least 0 (0 is greedy)",
    ),
    "top-k of 0": (
        [*DRAWN, "--top-k", "0"],
        "generate: --top-k is 0, expected a whole number from 1 to 19",
    ),
    "top-k above the vocabulary": ([*DRAWN, "--top-k", "20"], "--top-k is 20, expected"),
    "top-p of 0": ([*DRAWN, "--top-p", "0"], "--top-p is 0.0, expected a number above 0"),
    "codes without a layout of codes": (
        [*ARGUMENTS, "--bits", "4"],
        "--bits is 4, which --layout contiguous does not have. Leave it out.",
    ),
    "pages without paging": (
        [*ARGUMENTS, "--page-size", "4"],
        "--page-size is 4, but layout is 'contiguous'. Leave it out, or set --layout paged.",
    ),
    "a page of terabytes": (
        [*ARGUMENTS, "--layout", "paged", "--page-size", "100000000000"],
        "generate: --page-size is 100000000000, expected at most 160, the model's positions.",
    ),
    "more samples than memory": (
        [*DRAWN, "--samples", "100000000"],
        "generate: --samples is 100000000: keys, values and logits of 100,000,000 rows of 128 ",
    ),
    "sinks without rotary positions": (
        [*ARGUMENTS, "--layout", "sinks"],
        "but the attention has no rotary positions. Use --layout sinks_absolute.",
    ),
    "more last tokens than memory": (
        [*ARGUMENTS, "--layout", "quantized", "--residual-length", "100000000000"],
        "the memory. Lower --capacity, --max-new-tokens or the layout's own sizes, or",
    ),
    "a seed below 0": ([*DRAWN, "--seed", "-1"], "generate: --seed is -1, expected a whole number"),
    "samples of one text": (
        [*ARGUMENTS, "--samples", "3"],
        "--samples is 3 at --temperature 0, which gives one text as often.",
    ),
    "no template": ([*ARGUMENTS, "--chat"], "--chat needs a chat template, 'reference' has none"),
    "no text": (["score", "reference", "--text-file", "none.txt"], "No such file or directory"),
    "no such file": (["generate", "none.gguf", "--prompt", "x"], "none.gguf"),
}
IGNORED = {
    "--top-k 3": "--temperature 0",
    "--top-p 0.5": "--temperature 0",
    "--min-p 0.5": "--temperature 0",
    "--seed 3": "--temperature 0",
    "--no-cache --capacity 50": "--no-cache",
    "--no-cache --layout paged": "--no-cache",
    "--no-cache --layout paged --page-size 4": "--no-cache",
    "--no-cache --bits 4": "--no-cache",
}


def test_an_option_of_no_command_sends_to_the_help_of_the_one_given(twin, capsys):
    with pytest.raises(SystemExit) as error:
        main(twin, *ARGUMENTS, "--cases", "3")

    line = f"{twin} generate: unrecognized arguments: --cases 3. See {twin} generate --help.\n"
    assert (error.value.code, capsys.readouterr().err) == (2, line)


@pytest.mark.parametrize("flags", IGNORED)
def test_an_option_that_would_be_ignored_is_refused_with_what_makes_it_so(twin, flags, capsys):
    code = main(twin, *ARGUMENTS, *flags.split())

    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith(f"{twin}: generate: --")
    assert IGNORED[flags] in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(twin, case, capsys):
    arguments, fragment = WRONG[case]

    code = main(twin, *arguments)

    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"{twin}: ")
    assert fragment in lines[0]


def test_a_truncated_file_is_one_line_and_exit_code_2(twin, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\x01")

    done = run(twin, "generate", str(tmp_path / "cut.gguf"), "--prompt", "x")

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "cut or damaged" in done.stderr


def test_an_error_that_is_not_ours_keeps_its_traceback(twin, monkeypatch):
    from jaxkv.spec import command_generate

    def broken(name, **options):
        return {}[name]

    monkeypatch.setattr(command_generate, "open_source", broken)

    with pytest.raises(KeyError):
        main(twin, *ARGUMENTS)


def test_the_help_names_every_option(twin, capsys):
    with pytest.raises(SystemExit) as error:
        main(twin, "generate", "--help")

    text = capsys.readouterr().out
    assert error.value.code == 0
    options = (
        "prompt max-new-tokens dtype capacity no-cache json temperature top-k top-p min-p seed"
    )
    kept = ["save-cache", "load-cache", "tenant"]
    for option in [*options.split(), "chat", "layout", "page-size", *kept]:
        assert f"--{option}" in text


def test_output_that_nobody_reads_any_more_is_no_traceback(twin):
    """As behind `| head`: the reading end is closed before anything is printed."""
    child = subprocess.Popen(
        [sys.executable, "-m", twin, "info", "kjv", "--json"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child.stdout.close()

    told = child.stderr.read()
    child.stderr.close()

    assert (child.wait(), told) == (141, "")


def test_a_device_that_is_not_there_is_told(twin, capsys, monkeypatch):
    def none_there(backend=None):
        if backend == "cuda":
            raise RuntimeError("Unknown backend cuda")
        return there()

    there = jax.devices
    monkeypatch.setattr("jax.devices", none_there)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    assert main(twin, *ARGUMENTS, "--device", "cuda") == 2

    told = capsys.readouterr().err
    assert "device is 'cuda', expected one that" in told
    assert "cpu" in told
