"""`memory` and `info`: alike in both programs, one line for wrong input, no framework imported."""

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

from jaxkv.spec.identity import weights_hash
from jaxkv.spec.source import open_source
from tests.tiny import TWINS

HASH = "abedb9b812cf27ec5eac941be527fc32e301a4943a474799c89c9e45f3a2c3d7"


def call(twin: str, *words: str) -> int:
    return importlib.import_module(f"{twin}.cli").main(list(words))


def result(capsys: pytest.CaptureFixture[str], twin: str, *words: str) -> Any:
    assert call(twin, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("twin", TWINS)
def test_info_says_what_a_model_is(twin: str, capsys: pytest.CaptureFixture[str]):
    assert result(capsys, twin, "info", "reference") == {
        "family": "reference",
        "parameters": 19_267,
        "layers": 2,
        "heads": 3,
        "kv_heads": 3,
        "head_dim": 8,
        "dtype": "float64",
        "capacity": 160,
        "weights_hash": HASH,
    }


def test_info_reads_as_lines(capsys: pytest.CaptureFixture[str]):
    assert call("jaxkv", "info", "reference") == 0

    assert capsys.readouterr().out.splitlines()[:2] == [
        "family        reference",
        "parameters    19,267",
    ]


@pytest.mark.parametrize("twin", TWINS)
def test_the_hash_is_that_of_the_weights_in_either_twin(twin: str):
    checkpoint = open_source("reference")
    twins = importlib.import_module(f"{twin}.weights")
    model = twins.from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")

    assert weights_hash(twins.to_arrays(model)) == HASH


@pytest.mark.parametrize("change", ["value", "name", "shape", "dtype"])
def test_every_change_of_a_weight_changes_the_hash(change: str):
    arrays = dict(open_source("reference").weights)
    if change == "value":
        arrays["norm.bias"][3] += 1e-16
    elif change == "name":
        arrays["norm.offset"] = arrays.pop("norm.bias")
    elif change == "shape":
        arrays["norm.bias"] = arrays["norm.bias"].reshape(4, 6)
    else:
        arrays["norm.bias"] = arrays["norm.bias"].view("int64")

    assert weights_hash(arrays) != HASH


@pytest.mark.parametrize("twin", TWINS)
def test_memory_counts_a_models_bytes(twin: str, capsys: pytest.CaptureFixture[str]):
    words = ("memory", "reference", "--batch", "3", "--length", "170", "--dtype", "bfloat16")

    report = result(capsys, twin, *words, "--memory", "1MB", "--workspace", "1KiB", "--reserve=9")

    each = 2 * 170 * 3 * 16 * 2
    left = 10**6 - 2 * 19_267 - 1024 - 9
    assert report == {
        "model": "reference",
        "dtype": "bfloat16",
        "layout": "contiguous",
        "batch": 3,
        "length": 170,
        "parameters": 19_267,
        "weights_bytes": 2 * 19_267,
        "request_bytes": each,
        "cache_bytes": 3 * each + 36,
        # 576 bytes a token of three rows: 38,534 are reached at 67.
        "equal_length": 67,
        "equal_note": "",
        "note": "beyond the model's 160 positions: storage only",
        "baseline": "",
        "saving": "",
        "payload_ratio": "",
        "total_ratio": "",
        "scores": {
            "cached": 14_535,
            "uncached, full squares": 1_652_145,
            "uncached, causal pairs": 833_340,
        },
        "usable_bytes": 10**6,
        "workspace_bytes": 1024,
        "reserve_bytes": 9,
        "left_bytes": left,
        "requests": left // each,
        "fault": None,
    }


def test_memory_shows_every_term_and_says_when_nothing_fits(capsys: pytest.CaptureFixture[str]):
    assert call("jaxkv", "memory", "reference", "--length", "5", "--memory", "1kB") == 0

    assert capsys.readouterr().out.splitlines()[-2:] == [
        "requests                         0 = (1,000 usable - 77,068 weights - 0 workspace - "
        "0 reserve) / 1,920, at least 0",
        "nothing fits: the weights alone, 77,068 bytes, exceed the usable memory, 1,000",
    ]


def test_memory_names_the_baseline_of_grouped_heads(
    smollm2: Any, capsys: pytest.CaptureFixture[str]
):
    report = result(capsys, "jaxkv", "memory", "smollm2", "--length", "8192")

    assert report["request_bytes"] == 30 * 8192 * 3 * 128 * 4
    assert (report["saving"], report["baseline"]) == (
        "~66.6667 %",
        "the same model with as many KV heads as query heads",
    )


def test_info_of_the_real_checkpoint(smollm2: Any, capsys: pytest.CaptureFixture[str]):
    facts = result(capsys, "jaxkv", "info", "smollm2")

    assert facts["parameters"] == 134_515_008
    assert (facts["heads"], facts["kv_heads"], facts["head_dim"]) == (9, 3, 64)
    assert facts["weights_hash"] == (
        "bd66f935de3560379e3ed01e0b56782a3b50b885d3e2398ac369e2bfc66092bb"
    )


def test_examples_need_no_model(capsys: pytest.CaptureFixture[str]):
    report = result(capsys, "torchkv", "memory", "--examples")

    assert report["examples"][0]["size_bytes"] == 536_870_912
    assert report["scores"]["2048"]["cached"] == 2_098_176
    assert call("jaxkv", "memory", "--examples") == 0
    assert len(capsys.readouterr().out.splitlines()) == 15


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["info", "refernce"], "open_source: name is 'refernce', expected one of "),
        (["memory"], "memory: model is missing. Name one, or ask for --examples."),
        (
            ["memory", "reference"],
            "memory: --length is missing, expected at least 1. Give --length.",
        ),
        (
            ["memory", "reference", "--length", "0"],
            "memory: --length is 0, expected 1 to 1099511627776.",
        ),
        (
            ["memory", "reference", "--length", "4", "--batch", "-1"],
            "memory: --batch is -1, expected 1 to 1099511627776.",
        ),
        (
            ["memory", "reference", "--length", "4", "--memory", "4 giga"],
            "memory: --memory is '4 giga', expected bytes such as 40GiB, 512MiB or 80e9.",
        ),
    ],
)
@pytest.mark.parametrize("twin", TWINS)
def test_wrong_input_gives_one_line_and_exit_code_2(
    twin: str, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
):
    assert call(twin, *words) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{twin}: {line}")
    assert shown.err.count("\n") == 1


def test_neither_command_imports_a_framework():
    program = (
        "import sys, jaxkv.cli as c; c.main(['info', 'reference']);"
        "c.main(['memory', 'reference', '--length', '9']);"
        "print('FRAMEWORKS', *{'jax', 'flax', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "FRAMEWORKS"
