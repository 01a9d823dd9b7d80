"""Precision, epsilon and soft cap: kinds E, K and N of the public reports, on both twins."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crosscheck import (
    Disagreement,
    assert_agree,
    assert_greedy_agree,
    close,
    compare_greedy,
    decode,
    semantic,
)
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.source import open_source
from tests.tiny import (
    BATCH,
    CAPACITY,
    CONFIGS,
    TWINS,
    Cell,
    feed,
    ids_of,
    make_subject,
    module,
    new_subject,
    weights,
)

ROOT = Path(__file__).parent.parent.parent
LLAMA = CONFIGS["llama"]
SIZES = {"one-shot": [24], "chunks": [5, 3, 16], "ones": [1] * 24}
twins = pytest.mark.parametrize("twin", TWINS)


def remade(twin, layout, config, seed=7):
    """Return a float64 subject of a changed config with random weights, and the weights."""
    arrays = random_arrays(config, seed=seed)
    cell = Cell(twin, "llama", layout)
    model = module(cell, "weights").from_arrays(config, arrays, dtype="float64")
    return new_subject(model, cell), arrays


def capped(config, soft_cap):
    layers = tuple(
        replace(layer, attention=replace(layer.attention, soft_cap=soft_cap))
        for layer in config.layers
    )
    return replace(config, layers=layers)


@twins
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("layout", ["contiguous", "window", "paged"])
def test_the_soft_cap_holds_on_every_path(twin, layout, sizes):
    """KV-65: one shot, chunks and decode, on each layout, equal the plain computation."""
    config = capped(LLAMA, 1.5)
    subject, arrays = remade(twin, layout, config)
    ids = ids_of(Cell(twin, "llama", layout), 4)

    logits, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, SIZES[sizes])

    oracle = decode(config.to_dict(), arrays, ids)
    assert_agree(logits, oracle, semantic(), name="logits", names=(twin, "numpy"))
    uncapped = decode(LLAMA.to_dict(), arrays, ids)
    with pytest.raises(Disagreement):
        assert_agree(logits, uncapped, semantic(), name="logits")


@twins
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_every_norm_uses_the_epsilon_of_the_config(twin, kind):
    """KV-66: at 1e-2, layer by layer, so that one forgotten norm shows itself."""
    config = replace(
        CONFIGS["reference"], norm=replace(CONFIGS["reference"].norm, kind=kind, eps=0.01)
    )
    subject, arrays = remade(twin, "contiguous", config)
    ids, taps = ids_of(Cell(twin, "reference", "contiguous"), 5), {}
    decode(config.to_dict(), arrays, ids, taps=taps)

    seen = subject.capture(ids)

    norms = [name for name in seen if name.endswith("norm")]
    assert len(norms) == 5
    assert_agree(
        {name: seen[name] for name in seen},
        {name: taps[name] for name in seen},
        semantic(),
        name="captures",
    )


@twins
def test_rounding_in_bfloat16_is_told_from_a_fault(twin):
    """KV-67: ties by the margin, float64 as the judge, and a window off by one is still found."""
    cell = Cell(twin, "llama", "contiguous")
    ids = ids_of(cell, 6)
    half, double = make_subject(cell, dtype="bfloat16"), cell.subject
    oracle = double.full(ids)
    logits, _ = feed(half, half.init(BATCH, CAPACITY), ids, [8, 16])
    logits = np.asarray(logits, np.float64)
    bound = float(np.abs(logits - oracle).max())

    found = compare_greedy(logits, oracle, oracle=oracle, bound=bound, waiver=0.5)

    assert found.divergences == 0
    again, _ = feed(double, double.init(BATCH, CAPACITY), ids, [8, 16])
    assert_agree(again, oracle, close(rtol=1e-10, atol=1e-10), name="float64")
    assert_greedy_agree(again, oracle, bound=1e-9)
    narrow = capped(LLAMA, None)
    layers = (replace(narrow.layers[0], attention=replace(narrow.layers[0].attention, window=4)),)
    wrong = decode(
        replace(narrow, layers=layers + narrow.layers[1:]).to_dict(), weights("llama"), ids
    )
    with pytest.raises(Disagreement):
        assert_agree(double.full(ids), wrong, semantic(), name="logits")


@twins
def test_ids_are_the_same_with_and_without_64_bit_mode(twin):
    """KV-21: and float64 without it is reported, never quietly computed in float32."""
    program = (
        f"import {twin}; c = {twin}.preset('reference'); a = {twin}.random_arrays(c, seed=0)\n"
        f"m = {twin}.from_arrays(c, a)\n"
        f"print({twin}.generate(m, [[3, 1, 4], [1]], max_new_tokens=9).new_tokens)\n"
        f"try:\n    {twin}.from_arrays(c, a, dtype='float64'); print('float64')\n"
        "except ValueError as error:\n    print(error)\n"
    )

    off, on = (_run(program, JAX_ENABLE_X64=flag) for flag in ("0", "1"))

    assert off[0] == on[0]
    assert on[1] == "float64"
    refusal = "from_arrays: dtype is float64, but JAX computes in float32 now. "
    if twin == "jaxkv":
        assert off[1].startswith(refusal)
    else:
        assert off[1] == "float64"


def _run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@twins
@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_a_trained_model_keeps_the_partition(twin, layout):
    """Attention that was trained, not drawn: the package's own byte-level checkpoint in float64."""
    checkpoint = open_source("kjv")
    cell = Cell(twin, "gpt2", layout)
    model = module(cell, "weights").from_arrays(
        checkpoint.config, checkpoint.weights, dtype="float64"
    )
    subject = new_subject(model, cell)
    verse = b"In the beginning God created the heaven and the earth."
    ids = np.frombuffer(verse, np.uint8)[None, :24].astype(int)

    logits, _ = feed(subject, subject.init(1, 44), ids, [8, 1, 1, 8, 6])

    arrays = {name: np.asarray(x, np.float64) for name, x in checkpoint.weights.items()}
    oracle = decode(checkpoint.config.to_dict(), arrays, ids)
    assert_agree(logits, oracle, semantic(), name="logits", names=(twin, "numpy"))
