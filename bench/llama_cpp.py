"""llama.cpp with F32 weights as a subject: `--llama-cpp PATH`, its program llama-bench.

The program draws its own prompts and tokens, one row at a time, so its ids cannot be compared; its
times are those that it measures inside, without its start. It is started anew for every repeat, in
turn with the others, on a file of the same weights in F32. Its keys and values are in float16, the
widest that the program takes: fewer bytes than the others read, which is in its favor.

The program is built from llama.cpp's sources, the target `llama-bench`. A binding's package has the
compiled libraries without it: then only its two files need to be compiled, against the headers of
the same version, and put beside the libraries.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import Case
from jaxkv.spec import llama_gguf
from jaxkv.spec.checkpoint import Checkpoint, stored_parts
from jaxkv.spec.config import Mlp
from jaxkv.spec.errors import SourceError, Unsupported

NAME = "llama.cpp"
ADVICE = "Give the path of llama.cpp's program llama-bench."
SAYS = (
    "by llama-bench, which draws its prompts and tokens: ids are not compared; its keys and values "
    "are in float16"
)


class LlamaBench:
    """The program on one file of weights, with as many threads as this process has cores."""

    def __init__(self, program: str, weights: Path):
        self.name, self._program, self._weights = NAME, program, weights
        has_set = hasattr(os, "sched_getaffinity")
        self._threads = len(os.sched_getaffinity(0)) if has_set else os.cpu_count() or 1

    def per_step(self, case: Case) -> Callable[[], float]:
        """Return a measure, in ms, of one step of decode after the case's prompt.

        Raises:
            Unsupported: The case has several rows.
        """
        self._check(case)
        steps = case.new - 1
        return lambda: self._run("-p", 0, "-n", steps, "-d", case.prompt) / steps

    def first_token(self, case: Case) -> Callable[[], float]:
        """Return a measure, in ms, of the case's prompt.

        Raises:
            Unsupported: The case has several rows.
        """
        self._check(case)
        return lambda: self._run("-p", case.prompt, "-n", 0)

    def _check(self, case: Case) -> None:
        if case.batch != 1:
            raise Unsupported(f"llama-bench: the case has {case.batch} rows, expected 1. Leave it.")

    def _run(self, *what: object) -> float:
        """Return the milliseconds of one repeat."""
        fixed = ("-m", self._weights, "-t", self._threads, "-r", 1, "-o", "json")
        command = [str(each) for each in (self._program, *fixed, *what)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SourceError(
                f"--llama-cpp: {self._program} cannot be run: {error.strerror}. {ADVICE}"
            ) from None
        if done.returncode:
            words = (done.stderr.strip().splitlines() or ["no words"])[-1][:160]
            raise SourceError(
                f"--llama-cpp: {self._program} ended with {done.returncode}: {words}. Does "
                f"{' '.join(command[1:])} run by hand?"
            )
        return read_milliseconds(done.stdout)


def read_milliseconds(printed: str) -> float:
    """Return the milliseconds of the one test of one repeat that `llama-bench -o json` printed.

    Raises:
        SourceError: It printed something else.
    """
    try:
        (test,) = json.loads(printed)
        (nanoseconds,) = test["samples_ns"]
        return float(nanoseconds) / 1e6
    except (ValueError, KeyError, TypeError):
        raise SourceError(
            f"--llama-cpp: the program printed {printed[:80]!r}, expected JSON: one test with one "
            "number in samples_ns. Is it llama-bench?"
        ) from None


@contextmanager
def llama_bench(checkpoint: Checkpoint, program: str | None) -> Iterator[list[LlamaBench]]:
    """Yield the program on the checkpoint's weights, as a list of one; an empty one without it.

    Raises:
        SourceError: There is no such program; told before minutes of other measurements.
    """
    if program is None:
        yield []
        return
    if shutil.which(program) is None:
        raise SourceError(f"--llama-cpp: {program} is no program. {ADVICE}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        weights = Path(folder) / "f32.gguf"
        write_f32(checkpoint, weights)
        yield [LlamaBench(program, weights)]


def write_f32(checkpoint: Checkpoint, path: Path) -> None:
    """Write a llama from a GGUF file as a GGUF file in F32, without its vocabulary.

    Raises:
        Unsupported: The rows of q and k are not in the order of GGUF files.
    """
    import gguf

    if not checkpoint.interleaved_qk:
        raise Unsupported(
            f"write_f32: {checkpoint.name} is no GGUF file, whose order of rotary pairs llama.cpp "
            "expects. Take a GGUF file of the architecture llama."
        )
    writer = gguf.GGUFWriter(path, "llama")
    _write_sizes(writer, checkpoint)
    for name, place in llama_gguf.places(checkpoint.config).items():
        if name in checkpoint.weights:
            (part,) = stored_parts(place)
            writer.add_tensor(part.name, np.asarray(checkpoint.weights[name], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: Any, checkpoint: Checkpoint) -> None:
    config, layer = checkpoint.config, checkpoint.config.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert attention.rope is not None  # a llama checkpoint
    assert isinstance(mlp, Mlp)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(mlp.width)
    writer.add_head_count(attention.num_heads)
    writer.add_head_count_kv(attention.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm.eps)
    writer.add_rope_freq_base(attention.rope.theta)
    writer.add_rope_dimension_count(attention.head_dim)
