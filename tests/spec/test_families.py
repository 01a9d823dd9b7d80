"""The registry of families, and what the llama family makes of GGUF metadata."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxkv.spec import families
from jaxkv.spec.config import Mlp, ModelConfig, Rope
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.gguf_file import read_gguf

WriteGguf = Callable[..., Path]
ALL = (
    "bart, deepseek_v2, deepseek_v3, gemma2, gemma3, gpt2, gpt_neox, llama, mistral, mixtral, "
    "phi3, qwen2, qwen3, qwen3_moe, reference, t5"
)
NEXT = "Write a file for it in jaxkv/spec/families and add it to the table there."


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        pytest.param(
            lambda: families.family("lama"),
            f"family: name is 'lama', expected one of {ALL}. {NEXT}",
            id="family",
        ),
        pytest.param(
            lambda: families.gguf_family("reference"),
            f"gguf_family: architecture is 'reference', expected one of deepseek2, gemma3, gpt2, "
            f"llama, phi3, qwen2, qwen3. {NEXT}",
            id="gguf",
        ),
        pytest.param(
            lambda: families.preset("llama"),
            f"preset: name is 'llama', expected one of reference. {NEXT}",
            id="preset",
        ),
    ],
)
def test_unknown_name_lists_the_known_ones(look_up: Callable[[], Any], message: str):
    with pytest.raises(ConfigError) as error:
        look_up()

    assert str(error.value) == message


def test_every_preset_is_of_the_family_that_bears_it():
    assert {name: families.preset(name).family for name in families.presets()} == {
        "reference": "reference"
    }


def test_registry_imports_no_family_until_asked():
    code = "import sys, jaxkv.spec.families as f; f.family('llama'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "jaxkv.spec.families.llama" in run.stdout.split()
    assert "jaxkv.spec.families.reference" not in run.stdout.split()


def test_importing_spec_loads_only_numpy():
    modules = "checkpoint, config, families, random_weights, source, tokenizer"
    code = f"import sys; from jaxkv.spec import {modules}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "numpy" in loaded
    assert not loaded & {"gguf", "tokenizers", "jax", "torch", "transformers", "safetensors"}


def test_sizes_come_from_the_metadata(tiny_gguf: Path):
    config: ModelConfig = read_gguf(tiny_gguf).config
    layer = config.layers[1]

    assert (config.vocab_size, config.width, config.max_positions, config.num_layers) == (
        97,
        64,
        211,
        2,
    )
    assert (layer.attention.num_heads, layer.attention.num_kv_heads, layer.attention.head_dim) == (
        6,
        3,
        18,
    )
    assert layer.attention.rope == Rope(theta=500.0, rotary_dim=18)
    assert layer.mlp == Mlp(52, "silu", gated=True, bias=False)
    assert (config.norm.kind, config.norm.eps) == ("rms", 0.25)


@pytest.mark.parametrize(("output", "tied"), [("present", False), ("absent", True)])
def test_head_is_tied_exactly_when_output_weight_is_absent(
    write_gguf: WriteGguf, output: str, tied: bool
):
    path = write_gguf(tensors={} if output == "present" else {"output.weight": None})
    checkpoint = read_gguf(path)

    assert checkpoint.config.tied_head is tied
    assert ("head.weight" in checkpoint.weights) is not tied


def test_absent_optional_keys_have_the_defaults_of_the_format(write_gguf: WriteGguf):
    absent = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
    absent += ("rope.dimension_count", "rope.freq_base", "vocab_size")
    metadata: dict[str, Any] = {f"llama.{key}": None for key in absent}
    metadata |= {"llama.attention.head_count": 4}
    metadata |= {"tokenizer.ggml.tokens": [f"t{i}" for i in range(97)]}
    square = np.ones((64, 64), np.float32)
    parts = ("attn_q", "attn_k", "attn_v", "attn_output")
    tensors = {f"blk.{i}.{part}.weight": square for i in range(2) for part in parts}

    config = read_gguf(write_gguf(metadata, tensors)).config

    attention = config.layers[0].attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (4, 4, 16)
    assert attention.rope == Rope(theta=10_000.0, rotary_dim=16)
    assert config.vocab_size == 97


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.rope.scaling.type": "none"},
        {"llama.rope.scaling.factor": 1.0},
        {"llama.expert_count": 0},
        {"llama.attention.causal": True},
        {"llama.rope.scaling.original_context_length": 64},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_key_that_changes_nothing_is_accepted(
    write_gguf: WriteGguf, tiny_gguf: Path, metadata: Mapping[str, Any]
):
    assert read_gguf(write_gguf(metadata)).config == read_gguf(tiny_gguf).config


REFUSED = [
    (
        {"llama.expert_count": 8},
        "llama.expert_count is 8, expected 0 (the only supported value). "
        "Take a checkpoint without it.",
    ),
    (
        {"llama.attention.sliding_window": 64},
        "llama.attention.sliding_window is 64, expected no such key (it may change the function). "
        "Take a checkpoint without it.",
    ),
    (
        {"llama.block_count": None},
        "llama.block_count is missing, expected a number. Is the file complete?",
    ),
    (
        {"llama.block_count": 3},
        "llama.block_count is 3, expected at most 2 with 21 tensors (9 a layer). Is the "
        "file complete?",
    ),
    (
        {"llama.attention.head_count_kv": [3, 3]},
        "llama.attention.head_count_kv is [3, 3], expected a whole number of at least 1. "
        "Is the file complete?",
    ),
    (
        {"llama.attention.head_count_kv": 4},
        "Attention: num_heads 6 must be a multiple of num_kv_heads 4.",
    ),
    (
        {"llama.rope.freq_base": -1.0},
        "llama.rope.freq_base is -1.0, expected a number above 0. Is the file complete?",
    ),
    (
        {"llama.rope.dimension_count": 8},
        "llama.rope.dimension_count is 8, expected 18 (the whole head, whose rows this format "
        "permutes). "
        "Take a checkpoint that turns whole heads.",
    ),
    (
        {"llama.attention.value_length": 16},
        "llama.attention.value_length is 16, expected 18 (as wide as keys). "
        "Take a checkpoint whose keys and values are equally wide.",
    ),
    (
        {"llama.attention.key_length": None},
        "llama.embedding_length is 64, expected a multiple of llama.attention.head_count 6. "
        "Set llama.attention.key_length.",
    ),
]


@pytest.mark.parametrize(
    ("metadata", "fact"), REFUSED, ids=[f"{k}={v}" for m, _ in REFUSED for k, v in m.items()]
)
def test_metadata_that_changes_the_function_is_refused_by_name(
    write_gguf: WriteGguf, metadata: Mapping[str, Any], fact: str
):
    path = write_gguf(metadata)

    with pytest.raises(ConfigError) as error:
        read_gguf(path)

    assert str(error.value) == f"read_gguf: {path}: {fact}"
