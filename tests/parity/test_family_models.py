"""Each family and each rotary scaling: saved by transformers, loaded here, the same logits.

In float64, within 1e-9 of the largest |logit|, on both twins and the numpy decoder: whole texts
without a cache, and ragged steps with one, past every window and every original length.
"""

import importlib
from collections.abc import Iterable
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.huggingface import read_huggingface
from tests.parity.peers import (
    FOLLOWING,
    IDS,
    MODELS,
    fed,
    peer,
    peer_logits,
    peer_steps,
    released,
    released_steps,
)
from tests.tiny import DEEP, TWINS, Cell, new_subject

# Tokens of each row in steps of at most 8: rows end apart, and one takes none in the last step.
RAGGED = ((8, 8, 7, 0), (1, 8, 8, 6))
# One by one, one apart at either end, and chunks around the windows of 5; each fills the cache.
PARTITIONS = {
    "ones": [1] * 23,
    "one-first": [1, 22],
    "one-last": [22, 1],
    "window-less-one": [4] * 5 + [3],
    "window-and-one": [6] * 3 + [5],
}
LAYOUTS = ("contiguous", "window", "paged")


def cuts(models: Iterable[str]) -> list[Any]:
    """Return model, twin, layout and partition of each case.

    On torchkv every partition. On jaxkv, which compiles for each model, one a model, and every
    partition on every layout; the whole product when deep.
    """
    found = [(n, "torchkv", "contiguous", part) for n in models for part in PARTITIONS]
    shared = zip(models, cycle(sorted(product(PARTITIONS, LAYOUTS), key=_spread)), strict=False)
    found += [(name, "jaxkv", layout, part) for name, (part, layout) in shared]
    if DEEP:
        found = list(product(models, TWINS, LAYOUTS, PARTITIONS))
    return [pytest.param(*each[:3], PARTITIONS[each[3]], id="-".join(each)) for each in found]


def _spread(pair: tuple[str, str]) -> int:
    """Return a place in an order whose neighbors differ in both."""
    part, layout = [*PARTITIONS].index(pair[0]), LAYOUTS.index(pair[1])
    return next(i for i in range(15) if (i % 5, i % 3) == (part, layout))


EACH_LAYOUT = LAYOUTS if DEEP else ("contiguous",)
# jaxkv compiles a program for each model and kind of step: the rest of the product when deep. The
# formulas of the scalings have tests of their own; what ragged steps owe does not depend on them.
_SECOND = {"gpt_neox-serial", "linear", "llama3", "yarn-mscale"}
_SECOND |= {"deepseek_v2-greedy", "deepseek_v3-halves"}
_STATIC = {*_SECOND, "qwen2", "yarn"}


def cases(left_out: set[str]) -> list[tuple[str, str]]:
    """Return the models and twins of a property."""
    pairs = [(name, twin) for name in MODELS for twin in TWINS]
    return [pair for pair in pairs if DEEP or pair[1] == "torchkv" or pair[0] not in left_out]


twins = pytest.mark.parametrize("twin", TWINS)
# transformers computes norms, angles and softmax in float32 whatever the dtype; where experts are
# chosen, a rounded share is a factor on all that an expert gives; longrope rounds its factor on cos
# and sin as well.
ROUNDED = {"mixtral": 2e-5, "qwen3_moe": 2e-5, "phi3-longrope": 4e-6}
ROUNDED |= dict.fromkeys(("deepseek_v2", "deepseek_v2-greedy", "deepseek_v3"), 2e-5)
ROUNDED |= {"deepseek_v3-halves": 2e-5}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return a function: name -> the checkpoint that transformers saved."""

    @cache
    def read(name: str) -> Checkpoint:
        path: Path = tmp_path_factory.mktemp(name)
        peer(name).save_pretrained(path)
        return read_huggingface(path)

    return read


@pytest.fixture(scope="module")
def subject(load):
    """Return a function: name, twin, layout -> a subject, made once."""

    @cache
    def make(name: str, twin: str, layout: str) -> Any:
        checkpoint = load(name)
        from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
        model = from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")
        return new_subject(model, Cell(twin, name, layout), slack=0)

    return make


@pytest.fixture(scope="module")
def whole(subject):
    """Return a function: name, twin -> logits of whole texts without a cache, computed once."""
    return cache(lambda name, twin: subject(name, twin, "contiguous").full(IDS))


def ragged(subject: Any) -> np.ndarray:
    """Return the logits of the texts fed in ragged steps."""
    state, at = subject.init(2, 40), np.zeros(2, int)
    logits = np.zeros((2, 23, 97))
    for counts in zip(*RAGGED, strict=True):
        ids = np.zeros((2, 8), int)
        for row, count in enumerate(counts):
            ids[row, :count] = IDS[row, at[row] : at[row] + count]
        out, state = subject.step(state, ids, count=np.array(counts))
        for row, count in enumerate(counts):
            logits[row, at[row] : at[row] + count] = out[row, :count]
        at += counts
    assert at.tolist() == [23, 23]
    return logits


@pytest.mark.parametrize(("name", "twin"), cases(_SECOND))
def test_whole_texts_equal_transformers(name, twin, whole):
    expected = peer_logits(name)

    assert_agree(whole(name, twin), expected, semantic(), name="logits", names=(twin, name))


@pytest.mark.parametrize("layout", EACH_LAYOUT)
@pytest.mark.parametrize(("name", "twin"), cases(_STATIC))
def test_ragged_steps_equal_transformers(name, twin, layout, subject):
    logits = ragged(subject(name, twin, layout))

    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, name))


@pytest.mark.parametrize(("name", "twin"), cases(_SECOND))
def test_whole_texts_equal_transformers_as_released(name, twin, whole):
    with torch.no_grad():
        expected = released(name)(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()

    tolerance = semantic(rtol=ROUNDED.get(name, 2e-6))
    assert_agree(whole(name, twin), expected, tolerance, name="logits", names=(twin, name))


@pytest.mark.parametrize("name", MODELS | FOLLOWING)
def test_the_numpy_decoder_equals_transformers(name, load):
    checkpoint = load(name)

    oracle = decode(checkpoint.config.to_dict(), dict(checkpoint.weights), IDS)

    assert_agree(oracle, peer_logits(name), semantic(), name="logits", names=("numpy", name))


@pytest.mark.parametrize(("name", "twin", "layout", "sizes"), cuts(MODELS))
def test_a_text_cut_anywhere_equals_transformers(name, twin, layout, sizes, subject):
    logits = fed(subject(name, twin, layout), sizes)

    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, name))


@pytest.mark.parametrize(("name", "twin", "layout", "sizes"), cuts(FOLLOWING))
def test_where_speeds_follow_the_length_each_partition_is_that_of_transformers(
    name, twin, layout, sizes, subject
):
    logits = fed(subject(name, twin, layout), sizes)

    assert_agree(logits, peer_steps(name, sizes), semantic(), name="logits", names=(twin, name))


@pytest.mark.parametrize("sizes", [[23], [8, 8, 1, 6]], ids=["whole", "steps"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_where_speeds_follow_the_length_steps_equal_transformers_as_released(name, sizes, subject):
    logits = fed(subject(name, "torchkv", "contiguous"), sizes)

    tolerance = semantic(rtol=ROUNDED.get(name, 2e-6))
    assert_agree(logits, released_steps(name, sizes), tolerance, name="logits")


@twins
@pytest.mark.parametrize("name", FOLLOWING)
def test_where_speeds_follow_the_length_steps_equal_those_of_transformers(name, twin, subject):
    """KV-52: early keys keep the speeds of their time, on both sides; past the original length."""
    cell, sizes = subject(name, twin, "contiguous"), [8, 8, 1, 6]
    got, expected = fed(cell, sizes), peer_steps(name, sizes)

    assert cell.model.config.follows_length
    assert_agree(got, expected, semantic(), name="logits", names=(twin, name))
    with pytest.raises(AssertionError, match="DISAGREE"):
        assert_agree(got, peer_logits(name), semantic(), name="logits")


@twins
@pytest.mark.parametrize("name", FOLLOWING)
def test_where_speeds_follow_the_length_a_short_text_after_a_long_one_is_as_in_a_new_process(
    name, twin, subject, whole
):
    """KV-52: nothing of the long text stays behind, and rows of a batch do not mix."""
    cell = subject(name, twin, "contiguous")
    long = whole(name, twin)

    both = cell.full(IDS, count=np.array([23, 9]))

    short = np.pad(IDS[:, :9], ((0, 0), (0, 14)))
    alone = cell.full(short, count=np.array([9, 9]))
    assert_agree(long[:1], both[:1], semantic(), name="logits")
    assert_agree(alone[1:, :9], both[1:, :9], semantic(), name="logits")
    assert_agree(long, peer_logits(name), semantic(), name="logits")
