"""GGUF files of each architecture, written by the gguf package: the logits of transformers.

The numbers are exact in float32, so that a file of F32 tensors is the same model.
"""

import importlib
from functools import cache

import pytest

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.scaling import LinearScaling
from tests.parity.gguf_files import write
from tests.parity.peers import IDS, peer_logits
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
}

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
    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, name))


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


def test_a_linear_scaling_of_gemma3_holds_for_layers_without_a_window(tmp_path):
    more = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    path = write(
        tmp_path / "m.gguf", "gemma3-gguf", "gemma3", **{"attention.sliding_window": 5}, **more
    )

    layers = read_gguf(path).config.layers

    scalings = [layer.attention.rope.scaling for layer in layers if layer.attention.rope]
    assert scalings == [None] * 5 + [LinearScaling(8.0)]


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
            {"attention.sliding_window": 5, "rope.scaling.type": "yarn"},
            "gemma3.rope.scaling.type is 'yarn', expected 'none' or 'linear'. Take another "
            "checkpoint.",
        ),
        (
            "gpt2-plain",
            {"attention.head_count_kv": 2},
            "gpt2.attention.head_count is 4, expected a divisor of embedding_length 40, and as "
            "many KV heads. Is the file complete?",
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
