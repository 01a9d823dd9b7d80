"""llama.cpp as a subject: its file of weights, its program's words, and how a failure is told."""

import stat
import sys
from dataclasses import replace

import numpy as np
import pytest

from bench.cases import Case
from bench.gpu_shapes import random_checkpoint
from bench.llama_cpp import LlamaBench, llama_bench, read_milliseconds, write_f32
from jaxkv.spec.errors import SourceError, Unsupported
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.source import open_source

ONE_ROW = Case("b1", batch=1, prompt=12, new=5)
# A program of ours that speaks as llama-bench does, and like it knows no keys in float32: a token
# takes 2 ms, a prompt's 0.5 ms.
PROGRAM = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-o"] == "json" and given["-r"] == "1" and given.get("-ctk") != "f32"
open(given["-m"], "rb").close()
prompt, new = int(given["-p"]), int(given["-n"])
assert given.get("-d", "12") == "12"
ns = 500_000 * prompt + 2_000_000 * new
print(json.dumps([{{"n_prompt": prompt, "n_gen": new, "avg_ns": ns, "samples_ns": [ns]}}]))
"""


@pytest.fixture
def program(tmp_path):
    return _script(tmp_path, PROGRAM.format(python=sys.executable))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "f32.gguf"
    path.touch()
    return path


def _script(folder, text):
    path = folder / "llama-bench"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_step_is_the_new_tokens_time_over_their_number(program, weights):
    assert LlamaBench(program, weights).per_step(ONE_ROW)() == pytest.approx(2.0)


def test_the_first_token_is_the_prompts_time(program, weights):
    assert LlamaBench(program, weights).first_token(ONE_ROW)() == pytest.approx(6.0)


def test_several_rows_are_unsupported(program, weights):
    with pytest.raises(Unsupported, match="2 rows"):
        LlamaBench(program, weights).per_step(Case("b2", batch=2, prompt=12, new=5))


@pytest.mark.parametrize(
    "printed",
    ["", "| model | t/s |", "[]", '[{"samples_ns": [1, 2]}]', '[{"avg_ns": 3}]', "{}"],
    ids=["nothing", "table", "no-test", "two-repeats", "no-samples", "no-list"],
)
def test_other_words_are_refused(printed):
    with pytest.raises(SourceError, match="Is it llama-bench"):
        read_milliseconds(printed)


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path, weights):
    failing = _script(tmp_path, f"#!{sys.executable}\nraise SystemExit('no such tensor')\n")

    with pytest.raises(SourceError, match="ended with 1: no such tensor"):
        LlamaBench(failing, weights).first_token(ONE_ROW)()


def test_a_program_that_is_not_there_is_told(tmp_path, weights):
    with pytest.raises(SourceError, match="cannot be run"):
        LlamaBench(str(tmp_path / "none"), weights).first_token(ONE_ROW)()


def test_without_a_program_there_is_no_subject():
    with llama_bench(open_source("reference"), None) as found:
        assert found == []


def test_weights_of_no_gguf_file_are_refused(tmp_path):
    with pytest.raises(Unsupported, match="rotary pairs"):
        write_f32(open_source("reference"), tmp_path / "f32.gguf")


def test_the_file_of_weights_holds_the_model(tmp_path):
    """Written, and read by this project's own reader: the same sizes and numbers."""
    tiny = replace(random_checkpoint("tiny"), interleaved_qk=True)
    write_f32(tiny, tmp_path / "f32.gguf")

    found = read_gguf(tmp_path / "f32.gguf")

    assert found.config.layers == tiny.config.layers
    assert found.config.vocab_size == tiny.config.vocab_size
    for name in tiny.weights:
        np.testing.assert_array_equal(found.weights[name], tiny.weights[name])
