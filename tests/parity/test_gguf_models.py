"""GGUF files of each architecture, written by the gguf package: the logits of transformers.

The numbers are exact in float32, so that a file of F32 tensors is the same model.
"""

import importlib
from functools import cache

import numpy as np
import pytest

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.scaling import YarnScaling
from tests.parity.gguf_files import write
from tests.parity.peers import IDS, ORIGINAL, fed, peer_logits, peer_steps
from tests.tiny import DEEP, TWINS, Cell, new_subject

# Name of the model -> architecture and what its file says more.
FILES = {
    "llama-plain": ("llama", {}),
    "llama-tied": ("llama", {}),
    "qwen2-plain": ("qwen2", {}),
    "qwen3-plain": ("qwen3", {}),
    # The base of windowed layers and which layers have none are left out, as published files do.
    "gemma3-gguf": ("gemma3", {"attention.sliding_window": 5}),
    "phi3": ("phi3", {"attention.sliding_window": 5}),
    "phi3-plain": ("phi3", {}),
    "gpt2-plain": ("gpt2", {}),
    "deepseek_v2-gguf": ("deepseek2", {}),
    "deepseek_v3-gguf": ("deepseek2", {}),
    "linear": ("llama", {}),
    "yarn": ("llama", {}),
    "llama3": ("llama", {}),
    "qwen2-yarn": ("qwen2", {}),
    "qwen3-yarn": ("qwen3", {}),
    "gemma3-yarn": ("gemma3", {"attention.sliding_window": 5}),
    "phi3-longrope-gguf": ("phi3", {}),
}
# A file holds factors in float32.
ROUNDED = {"llama3": 2e-6, "yarn": 1e-7, "qwen3-yarn": 1e-7}

# What the twins owe is to undo llama's rows; the rest is one mapping for both.
CASES = [
    (name, twin)
    for name in FILES
    for twin in TWINS
    if DEEP or twin == "torchkv" or name == "llama-plain"
]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return a function: name -> the checkpoint in the file of that model."""

    @cache
    def read(name: str):
        arch, more = FILES[name]
        return read_gguf(write(tmp_path_factory.mktemp("gguf") / "m.gguf", name, arch, **more))

    return read


@pytest.mark.parametrize(("name", "twin"), CASES)
def test_a_gguf_file_equals_transformers(name, twin, load):
    checkpoint = load(name)
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    model = from_arrays(
        checkpoint.config,
        checkpoint.weights,
        dtype="float64",
        interleaved_qk=checkpoint.interleaved_qk,
    )

    logits = new_subject(model, Cell(twin, name, "contiguous"), slack=0).full(IDS)

    assert checkpoint.interleaved_qk is (FILES[name][0] == "llama")
    tolerance = semantic(rtol=ROUNDED[name]) if name in ROUNDED else semantic()
    assert_agree(logits, peer_logits(name), tolerance, name="logits", names=(twin, name))


@pytest.mark.parametrize("name", ["qwen3-plain", "gemma3-gguf", "gpt2-plain"])
def test_rows_are_as_the_config_says_where_no_architecture_permutes_them(name, load):
    checkpoint = load(name)

    oracle = decode(
        checkpoint.config.to_dict(),
        {key: array.astype("float64") for key, array in checkpoint.weights.items()},
        IDS,
    )

    assert_agree(oracle, peer_logits(name), semantic(), name="logits", names=("numpy", name))


def test_the_gemma3_file_leaves_out_pattern_and_base_and_holds_one_plus_weight(load):
    config = load("gemma3-gguf").config

    ropes = [layer.attention.rope for layer in config.layers]
    assert [layer.attention.window for layer in config.layers] == [5, 5, 5, 5, 5, None]
    assert [rope.theta for rope in ropes if rope] == [10_000.0] * 5 + [100.0]
    assert (config.norm.plus_one, config.tied_head, config.scaled_embedding) == (False, True, True)


def test_a_scaling_of_gemma3_holds_for_layers_without_a_window(load):
    layers = load("gemma3-yarn").config.layers

    ropes = [layer.attention.rope for layer in layers]
    assert [rope.scaling for rope in ropes if rope] == [None] * 5 + [YarnScaling(2.0, ORIGINAL)]


@pytest.mark.parametrize("twin", TWINS)
def test_the_factors_of_phi3_follow_the_length_as_in_the_models_own_code(twin, load):
    """Not the room made for a text, as in llama.cpp: steps equal those of transformers."""
    checkpoint, sizes = load("phi3-longrope-gguf"), [8, 8, 1, 6]
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    model = from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")
    subject = new_subject(model, Cell(twin, "phi3", "contiguous"), slack=0)

    logits = fed(subject, sizes)

    assert_agree(logits, peer_steps("phi3-longrope-gguf", sizes), semantic(), name="logits")


@pytest.mark.parametrize(("arch", "name"), [("qwen2", "qwen2-plain"), ("gemma3", "gemma3-gguf")])
def test_factors_on_speeds_are_refused_where_the_architecture_has_none(arch, name, tmp_path):
    path = write(tmp_path / "m.gguf", name, arch, factors={"freqs": np.ones(4)}, **FILES[name][1])

    with pytest.raises(ConfigError) as error:
        read_gguf(path)

    assert str(error.value) == (
        f"read_gguf: {path}: tensor 'rope_freqs.weight' is present, expected none (factors on "
        f"rotary speeds, not supported in {arch}). Take a checkpoint without it."
    )


@pytest.mark.parametrize(
    ("name", "more", "fact"),
    [
        (
            "qwen2-plain",
            {"attention.sliding_window": 5},
            "qwen2.attention.sliding_window is 5, expected no such key (it may change the "
            "function). Take a checkpoint without it.",
        ),
        (
            "gemma3-gguf",
            {"attention.sliding_window": 5, "rope.scaling.attn_factor": 2.0},
            "gemma3.rope.scaling.attn_factor is 2.0, expected 1.0 with the scaling 'linear'. Is "
            "the file complete?",
        ),
        (
            "gpt2-plain",
            {"attention.head_count_kv": 2},
            "gpt2.attention.head_count_kv is 2, expected 4 (as many as heads). Is the file "
            "complete?",
        ),
        (
            "phi3",
            {"attention.sliding_windo": 5},
            "phi3.attention.sliding_windo is 5, expected no such key (it may change the "
            "function). Did you mean 'attention.sliding_window'?",
        ),
    ],
    ids=["qwen2", "gemma3", "gpt2", "misspelled"],
)
def test_what_a_file_asks_for_and_is_not_computed_is_refused_by_name(name, more, fact, tmp_path):
    path = write(tmp_path / "m.gguf", name, FILES[name][0], **more)

    with pytest.raises(ConfigError) as error:
        read_gguf(path)

    assert str(error.value) == f"read_gguf: {path}: {fact}"


def test_a_file_of_another_architecture_is_not_read_as_this_one(tmp_path):
    path = write(tmp_path / "m.gguf", "qwen3-plain", "qwen3")
    data = path.read_bytes().replace(b"qwen3", b"qwen2")
    path.write_bytes(data)

    with pytest.raises(WeightError, match=r"attn_q\.bias"):
        read_gguf(path)
