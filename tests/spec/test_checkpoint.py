"""GGUF files read back as written, and every file that is not the model refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from jaxkv.spec import families
from jaxkv.spec.checkpoint import Checkpoint, Weights, check_weights
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import ConfigError, JaxkvError, SourceError, WeightError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.source import open_source
from jaxkv.spec.weight_shapes import weight_shapes

WriteGguf = Callable[..., Path]
Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return families.preset("reference")


def canonical_names(checkpoint):
    """Return GGUF's name of each tensor -> ours."""
    places = families.family("llama").places_from_gguf(checkpoint.config)
    return {place.name: name for name, place in places.items()}


def test_written_weights_read_back_equal_under_canonical_names(
    tiny_gguf: Path, tiny_tensors: dict[str, np.ndarray]
):
    checkpoint = read_gguf(tiny_gguf)

    names = canonical_names(checkpoint)
    assert set(checkpoint.weights) == {names[given] for given in tiny_tensors}
    for given, tensor in tiny_tensors.items():
        np.testing.assert_array_equal(checkpoint.weights[names[given]], tensor, strict=True)


def test_same_fields_as_the_reader_of_the_gguf_package(tiny_gguf: Path):
    checkpoint = read_gguf(tiny_gguf)
    reader = gguf.GGUFReader(tiny_gguf)

    names = canonical_names(checkpoint)
    theirs = {names[t.name]: tuple(int(n) for n in t.shape[::-1]) for t in reader.tensors}
    assert checkpoint.weights.shapes == theirs
    for tensor in reader.tensors:
        np.testing.assert_array_equal(
            checkpoint.weights[names[tensor.name]],
            gguf.dequantize(tensor.data, tensor.tensor_type),
        )


def test_facts_of_the_file_stand_in_the_checkpoint(tiny_gguf: Path):
    checkpoint = read_gguf(str(tiny_gguf))

    assert checkpoint.name == "tiny"
    assert checkpoint.end_ids == (5,)
    assert checkpoint.interleaved_qk is True
    assert checkpoint.tokenizer_data is None


def test_a_checkpoint_prints_without_its_vocabulary(tiny_gguf: Path):
    checkpoint = replace(read_gguf(tiny_gguf), tokenizer_data={"tokens": ["a"] * 50_000})

    assert "tokens" not in repr(checkpoint)


def test_no_end_id_in_the_file_means_none(write_gguf: WriteGguf):
    assert read_gguf(write_gguf({"tokenizer.ggml.eos_token_id": None})).end_ids == ()


def test_the_ends_of_a_turn_and_of_a_message_end_a_text_too(write_gguf: WriteGguf):
    more = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 5}

    assert read_gguf(write_gguf(more)).end_ids == (5, 7)


@pytest.mark.parametrize(
    ("name", "canonical", "kind"),
    [
        pytest.param("token_embd.weight", "embed.weight", Q8_0, id="q8_0"),
        pytest.param(
            "blk.1.ffn_up.weight",
            "layers.1.mlp.up.weight",
            gguf.GGMLQuantizationType.Q4_1,
            id="q4_1",
        ),
        pytest.param(
            "blk.1.ffn_up.weight",
            "layers.1.mlp.up.weight",
            gguf.GGMLQuantizationType.Q4_0,
            id="q4_0",
        ),
        pytest.param(
            "blk.1.ffn_up.weight",
            "layers.1.mlp.up.weight",
            gguf.GGMLQuantizationType.Q5_0,
            id="q5_0",
        ),
        pytest.param(
            "blk.0.attn_k.weight", "layers.0.attn.k.weight", gguf.GGMLQuantizationType.F16, id="f16"
        ),
        pytest.param("output.weight", "head.weight", gguf.GGMLQuantizationType.BF16, id="bf16"),
    ],
)
def test_stored_types_come_back_as_float32(
    write_gguf: WriteGguf,
    tiny_tensors: dict[str, np.ndarray],
    name: str,
    canonical: str,
    kind: gguf.GGMLQuantizationType,
):
    stored = gguf.quantize(tiny_tensors[name], kind)
    path = write_gguf(tensors={name: (stored, kind)})

    array = read_gguf(path).weights[canonical]

    np.testing.assert_array_equal(array, gguf.dequantize(stored, kind), strict=True)
    assert array.dtype == np.float32
    assert np.abs(array - tiny_tensors[name]).max() < 0.5


def test_each_access_gives_an_array_of_its_own(tiny_gguf: Path):
    weights = read_gguf(tiny_gguf).weights
    weights["norm.weight"][:] = 0

    assert np.all(weights["norm.weight"] != 0)


def test_arrays_in_memory_keep_their_dtype_and_are_not_shared():
    array = np.ones((2, 3))
    weights = Weights.from_arrays({"a": array})
    weights["a"][:] = 0

    assert weights.shapes == {"a": (2, 3)}
    np.testing.assert_array_equal(weights["a"], np.ones((2, 3)), strict=True)


def test_preset_is_a_checkpoint_like_any_other(config: ModelConfig):
    checkpoint: Checkpoint = open_source("reference")

    check_weights(config, checkpoint.weights.shapes)
    assert checkpoint.config == config


def test_missing_weight_offers_the_nearest_found(config: ModelConfig):
    shapes = weight_shapes(config)
    shapes["layers.1.attn.k_proj.weight"] = shapes.pop("layers.1.attn.k.weight")

    with pytest.raises(WeightError) as error:
        check_weights(config, shapes)

    assert str(error.value) == (
        "check_weights: weight 'layers.1.attn.k.weight' is missing (1 of 38 are), expected shape "
        "(24, 24). "
        "The nearest found is 'layers.1.attn.k_proj.weight'; "
        "is the file complete, and of family 'reference'?"
    )


def test_missing_weight_with_nothing_near_counts_what_was_found(config: ModelConfig):
    with pytest.raises(WeightError) as error:
        check_weights(config, {})

    assert str(error.value) == (
        "check_weights: weight 'embed.weight' is missing (38 of 38 are), expected shape (19, 24). "
        "Found: 0 weights; is the file complete, and of family 'reference'?"
    )


def test_extra_weight_is_refused(config: ModelConfig):
    with pytest.raises(WeightError) as error:
        check_weights(config, weight_shapes(config) | {"layers.0.attn.q_norm.weight": (8,)})

    assert str(error.value) == (
        "check_weights: weight 'layers.0.attn.q_norm.weight' is extra (1 are), expected only the "
        "38 of family "
        "'reference' with this config. Leaving it out would change the function; take another file."
    )


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        pytest.param((24, 96), "Is it stored (in, out)?", id="turned"),
        pytest.param((96, 23), "Do config and weights belong together?", id="too-narrow"),
    ],
)
def test_misshapen_weight_is_refused_with_both_shapes(
    config: ModelConfig, shape: tuple[int, ...], hint: str
):
    with pytest.raises(WeightError) as error:
        check_weights(config, weight_shapes(config) | {"layers.0.mlp.up.weight": shape})

    assert str(error.value) == (
        f"check_weights: weight 'layers.0.mlp.up.weight' has shape {shape}, expected (96, 24). "
        f"{hint}"
    )


FILES = [
    pytest.param(
        b"", "the file holds 0 bytes, expected a GGUF file. Download it again.", id="empty"
    ),
    pytest.param(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "the file is a Git LFS pointer. Run `git lfs pull` where it was cloned.",
        id="git-lfs-pointer",
    ),
    pytest.param(
        b"PK\x03\x04 and more",
        "the file is a zip archive. Unpack it and give the .gguf file inside.",
        id="zip",
    ),
    pytest.param(
        b"\x93NUMPY and more",
        r"the file starts with b'\x93NUM', expected b'GGUF'. Give a file in GGUF format.",
        id="another-magic",
    ),
    pytest.param(
        b"GG", "the file starts with b'GG', expected b'GGUF'. Give a file in GGUF format.", id="cut"
    ),
]


@pytest.mark.parametrize(("content", "fact"), FILES)
def test_file_that_is_not_gguf_is_named(tmp_path: Path, content: bytes, fact: str):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(SourceError) as error:
        read_gguf(path)

    assert str(error.value) == f"read_gguf: {path}: {fact}"


@pytest.mark.parametrize(
    ("path", "what"), [("absent.gguf", "does not exist"), (".", "is a directory")]
)
def test_path_without_a_file_is_named(tmp_path: Path, path: str, what: str):
    with pytest.raises(SourceError) as error:
        read_gguf(tmp_path / path)

    assert str(error.value) == (
        f"read_gguf: {tmp_path / path}: the path {what}, expected a GGUF file. Check the path."
    )


WRONG_MODELS = [
    pytest.param(
        {},
        {"blk.1.ffn_up.weight": None},
        WeightError,
        "weight 'blk.1.ffn_up.weight' is missing (1 of 21 are), expected shape (52, 64). "
        "Found: 20 weights; is the file complete, and of family 'llama'?",
        id="missing-tensor",
    ),
    pytest.param(
        {},
        {"blk.1.attn_q.bias": np.ones(108, np.float32)},
        WeightError,
        "weight 'blk.1.attn_q.bias' is extra (1 are), expected only the 21 of family 'llama' with "
        "this config. "
        "Leaving it out would change the function; take another file.",
        id="extra-tensor",
    ),
    pytest.param(
        {},
        {"layers.0.attn.q.weight": np.ones((108, 64), np.float32), "blk.0.attn_q.weight": None},
        WeightError,
        "weight 'blk.0.attn_q.weight' is missing (1 of 21 are), expected shape (108, 64). "
        "The nearest found is 'layers.0.attn.q.weight'; is the file complete, and of "
        "family 'llama'?",
        id="canonical-name-in-a-file",
    ),
    pytest.param(
        {},
        {"blk.0.ffn_down.weight": np.ones((52, 64), np.float32)},
        WeightError,
        "weight 'blk.0.ffn_down.weight' has shape (52, 64), expected (64, 52). Is it stored "
        "(in, out)?",
        id="misshapen-tensor",
    ),
    pytest.param(
        {"llama.attention.head_count_kv": 6},
        {},
        WeightError,
        "weight 'blk.0.attn_k.weight' has shape (54, 64), expected (108, 64). Do config and "
        "weights belong together? A checkpoint's number of KV heads cannot be overridden: another "
        "one needs conversion and training.",
        id="kv-heads",
    ),
    pytest.param(
        {},
        {"output_norm.weight": np.ones(64, np.int32)},
        WeightError,
        "tensor 'output_norm.weight' has type I32, expected one that gguf can dequantize. "
        "Take a file of another quantization.",
        id="tensor-type",
    ),
    pytest.param(
        {"split.count": 3},
        {},
        SourceError,
        "the file is one of 3 parts, expected the whole model. "
        "Merge them with `llama-gguf-split --merge`.",
        id="split",
    ),
    pytest.param(
        {"tokenizer.ggml.eos_token_id": 97},
        {},
        ConfigError,
        "tokenizer.ggml.eos_token_id is 97, expected an id below 97. Download it again.",
        id="end-id",
    ),
]


@pytest.mark.parametrize(("metadata", "tensors", "kind", "fact"), WRONG_MODELS)
def test_file_of_another_model_is_refused_before_a_weight_is_read(
    write_gguf: WriteGguf,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    kind: type[JaxkvError],
    fact: str,
):
    path = write_gguf(metadata, tensors)

    with pytest.raises(kind) as error:
        read_gguf(path)

    assert str(error.value) == f"read_gguf: {path}: {fact}"


def test_weight_that_is_not_finite_is_refused_when_accessed(write_gguf: WriteGguf):
    values = np.ones(64, np.float32)
    values[[3, 5]] = np.inf, np.nan
    weights = read_gguf(write_gguf(tensors={"output_norm.weight": values})).weights

    with pytest.raises(WeightError) as error:
        weights["norm.weight"]

    assert str(error.value) == (
        "read_gguf: tensor 'output_norm.weight' holds 2 of 64 values that are not finite, "
        "expected none. Download the file again."
    )


def test_quantized_block_with_an_infinite_scale_is_refused_when_accessed(
    write_gguf: WriteGguf, tiny_tensors: dict[str, np.ndarray]
):
    stored = gguf.quantize(tiny_tensors["token_embd.weight"], Q8_0)
    stored[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    weights = read_gguf(write_gguf(tensors={"token_embd.weight": (stored, Q8_0)})).weights

    with pytest.raises(WeightError, match=r"'token_embd\.weight' holds 32 of 6208 values"):
        weights["embed.weight"]


def test_unknown_architecture_names_the_known_ones(write_gguf: WriteGguf):
    path = write_gguf(arch="mamba")

    with pytest.raises(ConfigError) as error:
        read_gguf(path)

    assert str(error.value) == (
        f"read_gguf: {path}: gguf_family: architecture is 'mamba', expected one of deepseek2, "
        "gemma3, gpt2, llama, phi3, qwen2, qwen3. "
        "Write a file for it in jaxkv/spec/families and add it to the table there."
    )
