"""Rotary scalings as GGUF files say them; that they compute the right thing is shown in parity/."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxkv.spec.config import Rope
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.scaling import LinearScaling, LongScaling, Scaling, YarnScaling

WriteGguf = Callable[..., Path]
FACTORS = tuple(float(i) for i in range(1, 10))
OTHERS = tuple(2 * factor for factor in FACTORS)


def keys(**given: Any) -> dict[str, Any]:
    return {f"llama.rope.scaling.{key}": value for key, value in given.items()}


def tensors(**given: Any) -> dict[str, np.ndarray]:
    return {f"rope_{key}.weight": np.array(each, np.float32) for key, each in given.items()}


BOTH = tensors(factors_long=OTHERS, factors_short=FACTORS)


@pytest.mark.parametrize(
    ("metadata", "more", "expected"),
    [
        (keys(type="none", factor=4.0), {}, None),
        (keys(type="linear", factor=4.0), {}, LinearScaling(4.0)),
        (keys(factor=4.0), {}, LinearScaling(4.0)),
        ({"llama.rope.scale_linear": 4.0}, {}, LinearScaling(4.0)),
        (keys(type="yarn", factor=4.0), {}, YarnScaling(4.0, 211)),
        (
            keys(type="yarn", factor=1.0, original_context_length=64, attn_factor=1.5),
            {},
            YarnScaling(1.0, 64, attention_factor=1.5),
        ),
        (
            keys(type="yarn", factor=4.0, yarn_beta_fast=8.0, yarn_beta_slow=0.5),
            {},
            YarnScaling(4.0, 211, beta_fast=8.0, beta_slow=0.5),
        ),
        ({}, tensors(freqs=FACTORS), LongScaling(FACTORS, FACTORS, 211, 1.0, 1.0)),
        (
            keys(original_context_length=64, attn_factor=1.5),
            BOTH,
            LongScaling(FACTORS, OTHERS, 64, 211 / 64, 1.5),
        ),
        (keys(type="longrope"), BOTH, LongScaling(FACTORS, OTHERS, 211, 1.0, 1.0)),
    ],
    ids=[
        *("none", "linear", "no-type", "old-name", "yarn", "yarn-attention", "yarn-ends"),
        *("one-list", "two-lists", "two-lists-named"),
    ],
)
def test_a_scaling_is_read_in_each_form(
    write_gguf: WriteGguf, metadata: Mapping[str, Any], more: Any, expected: Scaling | None
):
    config = read_gguf(write_gguf(metadata, more)).config

    assert config.layers[0].attention.rope == Rope(500.0, 18, expected)
    assert config.follows_length == (more == BOTH)


@pytest.mark.parametrize(
    ("metadata", "more", "fact"),
    [
        (
            keys(type="dynamic", factor=2.0),
            {},
            "llama.rope.scaling.type is 'dynamic', expected 'linear' or 'longrope' or 'none' or "
            "'yarn'. Take another checkpoint.",
        ),
        (
            keys(type="yarm", factor=2.0),
            {},
            "llama.rope.scaling.type is 'yarm', expected 'linear' or 'longrope' or 'none' or "
            "'yarn'. Did you mean 'yarn'?",
        ),
        (
            keys(type="yarn"),
            {},
            "llama.rope.scaling.factor is missing, expected a number. Is the file complete?",
        ),
        (keys(type="linear", factor=0.5), {}, "LinearScaling: factor is 0.5, expected at least 1."),
        (
            keys(factor=2.0, attn_factor=1.5),
            {},
            "llama.rope.scaling.attn_factor is 1.5, expected 1.0 with the scaling 'linear'. Is "
            "the file complete?",
        ),
        (
            keys(factor=2.0, yarn_beta_fast=32.0),
            {},
            "llama.rope.scaling.yarn_beta_fast is 32.0, expected no such key with the scaling "
            "'linear'. Is the file complete?",
        ),
        (
            keys(type="yarn", factor=2.0, yarn_ext_factor=0.5),
            {},
            "llama.rope.scaling.yarn_ext_factor is 0.5, expected 1.0 (the only supported value). "
            "Take a checkpoint without it.",
        ),
        (
            keys(type="yarn", factor=2.0, orginal_context_length=16),
            {},
            "llama.rope.scaling.orginal_context_length is 16, expected no such key (it may change "
            "the function). Did you mean 'rope.scaling.original_context_length'?",
        ),
        (
            keys(type="yarn", factor=2.0),
            BOTH,
            "llama.rope.scaling.type is 'yarn', expected 'longrope' beside tensor "
            "'rope_factors_long.weight'. Is the file complete?",
        ),
        (
            keys(type="longrope", factor=2.0),
            BOTH,
            "llama.rope.scaling.factor is 2.0, expected 1.0 with the scaling 'longrope'. Is the "
            "file complete?",
        ),
        (
            {},
            tensors(factors_long=FACTORS),
            "config_from_gguf: tensor 'rope_factors_short.weight' is missing, expected the "
            "factors of longrope. Is the file complete?",
        ),
        (
            {},
            tensors(freqs=FACTORS[:8]),
            "config_from_gguf: tensor 'rope_freqs.weight' has shape (8,), expected (9,), one "
            "factor a rotary pair. Is the file complete?",
        ),
        (
            keys(factor=2.0),
            tensors(freqs=FACTORS),
            "config_from_gguf: tensor 'rope_freqs.weight' is present, expected none beside the "
            "scaling 'linear' (one at a time is supported). Take another checkpoint.",
        ),
        ({}, tensors(freqs=[0.0] * 9), "LongScaling: factor is 0.0, expected above 0."),
    ],
)
def test_a_scaling_that_is_not_computed_is_refused_by_name(
    write_gguf: WriteGguf, metadata: Mapping[str, Any], more: Any, fact: str
):
    path = write_gguf(metadata, more)

    with pytest.raises(ConfigError) as error:
        read_gguf(path)

    assert str(error.value) == f"read_gguf: {path}: {fact.removeprefix('config_from_gguf: ')}"


def test_factors_that_are_not_finite_are_refused(write_gguf: WriteGguf):
    with pytest.raises(WeightError, match=r"rope_freqs\.weight"):
        read_gguf(write_gguf(tensors=tensors(freqs=[np.nan] * 9)))
