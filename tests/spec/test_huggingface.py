"""Hugging Face directories: read as written, and every one that is not the model refused by name.

Covers KV-50 (rope spellings), KV-58 (tied head), KV-61 (biases), KV-63 (head width), KV-73 (several
end ids). Files of weights have test_safetensors_files.py. That both twins compute what transformers
computes from such a directory is seen in tests/parity/test_huggingface.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import Llama3Scaling, Rope
from jaxkv.spec.errors import JaxkvError
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.source import open_source

Write = Callable[..., Path]
HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def refusal(path: Path) -> str:
    with pytest.raises(JaxkvError) as error:
        read_huggingface(path)
    message = str(error.value)
    assert message.startswith(f"read_huggingface: {path}: ")
    assert "\n" not in message
    return message.removeprefix(f"read_huggingface: {path}: ")


def rope_of(checkpoint: Checkpoint) -> Rope | None:
    return checkpoint.config.layers[0].attention.rope


def test_written_weights_read_back_in_the_order_and_dtype_of_the_file(
    hf_directory: Write, hf_tensors: dict[str, np.ndarray]
):
    weights = read_huggingface(hf_directory()).weights

    assert len(weights) == len(hf_tensors)
    for ours, theirs in (
        ("embed.weight", EMBED),
        ("head.weight", HEAD),
        ("layers.1.attn.k.weight", "model.layers.1.self_attn.k_proj.weight"),
        ("layers.0.mlp.down.weight", "model.layers.0.mlp.down_proj.weight"),
    ):
        np.testing.assert_array_equal(weights[ours], hf_tensors[theirs], strict=True)


def test_facts_of_the_directory_stand_in_the_checkpoint(hf_directory: Write):
    checkpoint = open_source(hf_directory())

    assert (checkpoint.name, checkpoint.end_ids) == ("tiny-llama", (5,))
    assert (checkpoint.interleaved_qk, checkpoint.tokenizer_data) == (False, None)


def test_each_access_gives_an_array_of_its_own(hf_directory: Write):
    weights = read_huggingface(hf_directory()).weights
    weights["norm.weight"][:] = 0

    assert np.all(weights["norm.weight"] != 0)


def test_a_bare_decoder_without_prefix_is_read_too(
    hf_directory: Write, hf_tensors: dict[str, np.ndarray]
):
    renamed: dict[str, Any] = dict.fromkeys(hf_tensors)
    renamed |= {k.removeprefix("model."): v for k, v in hf_tensors.items() if k != HEAD}
    path = hf_directory({"tie_word_embeddings": True}, renamed)

    np.testing.assert_array_equal(
        read_huggingface(path).weights["embed.weight"], hf_tensors[EMBED], strict=True
    )


@pytest.mark.parametrize(
    ("config", "head_dim"), [({}, 18), ({"head_dim": None, "hidden_size": 64}, 16)]
)
def test_head_width_is_the_stated_one_and_else_width_over_heads(
    hf_directory: Write, config: dict[str, Any], head_dim: int
):
    """KV-63."""
    tensors: dict[str, Any] = {}
    if head_dim == 16:
        config = config | {"num_attention_heads": 4, "num_key_value_heads": 1}
        for i in range(2):
            for part, rows in (("q", 64), ("k", 16), ("v", 16)):
                tensors[f"model.layers.{i}.self_attn.{part}_proj.weight"] = np.ones((rows, 64))
            tensors[f"model.layers.{i}.self_attn.o_proj.weight"] = np.ones((64, 64))

    attention = read_huggingface(hf_directory(config, tensors)).config.layers[0].attention

    assert attention.head_dim == head_dim


def test_head_width_that_cannot_be_derived_is_refused(hf_directory: Write):
    assert refusal(hf_directory({"head_dim": None})) == (
        "config.json: hidden_size is 64, expected a multiple of num_attention_heads 6. "
        "Set head_dim."
    )


def test_tied_head_without_a_tensor_is_the_embedding(hf_directory: Write):
    path = hf_directory({"tie_word_embeddings": True}, {HEAD: None})

    checkpoint = read_huggingface(path)

    assert checkpoint.config.tied_head
    assert "head.weight" not in checkpoint.weights


def test_tied_head_stored_once_more_is_left_out(
    hf_directory: Write, hf_tensors: dict[str, np.ndarray]
):
    path = hf_directory({"tie_word_embeddings": True}, {HEAD: hf_tensors[EMBED].copy()})

    assert "head.weight" not in read_huggingface(path).weights


def test_tied_head_that_differs_from_the_embedding_is_refused(
    hf_directory: Write, hf_tensors: dict[str, np.ndarray]
):
    other = hf_tensors[EMBED].copy()
    other[3, :2] += 1

    assert refusal(hf_directory({"tie_word_embeddings": True}, {HEAD: other})) == (
        "weight 'lm_head.weight' is there though config.json ties the head to "
        "'model.embed_tokens.weight', and differs from it in 2 of 6208 values. "
        "Set tie_word_embeddings to false if the head is its own."
    )


def test_untied_head_without_a_tensor_is_refused_by_name(hf_directory: Write):
    assert refusal(hf_directory({}, {HEAD: None})) == (
        "weight 'lm_head.weight' is missing (1 of 21 are), expected shape (97, 64). Found: 20 "
        "weights; is the file complete, and of family 'llama'?"
    )


@pytest.mark.parametrize(
    ("name", "tensor", "fact"),
    [
        pytest.param(
            "model.layers.0.self_attn.q_proj.bias",
            np.ones(108),
            "weight 'model.layers.0.self_attn.q_proj.bias' is extra (1 are), expected only the 21 "
            "of family 'llama' with this config. Leaving it out would change the function; take "
            "another file.",
            id="bias-that-no-one-reads",
        ),
        pytest.param(
            "model.layers.1.mlp.up_proj.weight",
            np.ones((64, 52)),
            "weight 'model.layers.1.mlp.up_proj.weight' has shape (64, 52), expected (52, 64). "
            "Is it stored (in, out)?",
            id="misshapen",
        ),
        pytest.param(
            "model.norm.weight",
            np.ones(64, np.int8),
            "tensor 'model.norm.weight' of model.safetensors has dtype I8, expected one of BF16, "
            "F16, F32, F64. Take a checkpoint that is not quantized.",
            id="dtype",
        ),
    ],
)
def test_tensor_that_does_not_fit_is_refused_by_name(
    hf_directory: Write, name: str, tensor: np.ndarray, fact: str
):
    assert refusal(hf_directory({}, {name: tensor})) == fact


def test_stored_rotary_frequencies_are_ignored(hf_directory: Write):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"

    assert len(read_huggingface(hf_directory({}, {name: np.ones(9)})).weights) == 21


def test_value_that_is_not_finite_is_refused_when_read(
    hf_directory: Write, hf_tensors: dict[str, np.ndarray]
):
    bad = hf_tensors[EMBED].copy()
    bad[1, 1] = np.nan
    weights = read_huggingface(hf_directory({}, {EMBED: bad})).weights

    with pytest.raises(JaxkvError, match="holds 1 of 6208 values that are not finite"):
        _ = weights["embed.weight"]


ROPES = [
    pytest.param({}, Rope(500.0, 18), id="newer"),
    pytest.param({"rope_parameters": None}, Rope(10_000.0, 18), id="absent"),
    pytest.param({"rope_parameters": None, "rope_theta": 70.0}, Rope(70.0, 18), id="older"),
    pytest.param(
        {"rope_parameters": LLAMA3},
        Rope(500.0, 18, Llama3Scaling(32.0, 1.0, 4.0, 64)),
        id="newer-llama3",
    ),
    pytest.param(
        {"rope_parameters": None, "rope_theta": 7, "rope_scaling": LLAMA3 | {"rope_theta": None}},
        Rope(7.0, 18, Llama3Scaling(32.0, 1.0, 4.0, 64)),
        id="older-llama3",
    ),
    pytest.param(
        {
            "rope_parameters": None,
            "rope_theta": 7,
            "rope_scaling": LLAMA3 | {"rope_theta": None, "rope_type": None, "type": "llama3"},
        },
        Rope(7.0, 18, Llama3Scaling(32.0, 1.0, 4.0, 64)),
        id="oldest-llama3",
    ),
]


@pytest.mark.parametrize(("config", "rope"), ROPES)
def test_every_spelling_of_rotary_positions_is_read(
    hf_directory: Write, config: Mapping[str, Any], rope: Rope
):
    """KV-50."""
    assert rope_of(read_huggingface(hf_directory(config))) == rope


OTHER = "No other is computed here; take another checkpoint."
KINDS = "default, dynamic, linear, llama3, longrope, su, yarn"
REFUSED = [
    (
        {"rope_parameters": {"rope_type": "proportional", "factor": 4.0}},
        f"rope_parameters: rope_type is 'proportional', expected one of {KINDS}. {OTHER}",
    ),
    (
        {"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 2.0}},
        f"rope_scaling: type is 'ntk', expected one of {KINDS}. {OTHER}",
    ),
    (
        {"rope_parameters": LLAMA3 | {"factor": None}},
        "rope_parameters: factor is missing, expected a number above 0. Is the file complete?",
    ),
    (
        {"rope_parameters": LLAMA3 | {"beta_fast": 32}},
        "rope_parameters: beta_fast is 32, expected no such key (it may change the function). "
        "Take a checkpoint without it.",
    ),
    (
        {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}},
        "Llama3Scaling: low_freq_factor is 1.0, expected above 0 and below high_freq_factor 1.0.",
    ),
    (
        {"rope_parameters": LLAMA3 | {"type": "linear"}},
        "rope_parameters: rope_type is 'llama3', expected the same as type 'linear'. Remove the "
        "one that does not hold.",
    ),
    (
        {"rope_theta": 3.0},
        "config.json: rope_theta is 3.0, expected 500.0 as in rope_parameters. Remove the one "
        "that does not hold.",
    ),
    (
        {"sliding_window": 64},
        "config.json: sliding_window is 64, expected no such key (it may change the function). "
        "Take a checkpoint without it.",
    ),
    (
        {"num_key_value_head": 3},
        "config.json: num_key_value_head is 3, expected no such key (it may change the function). "
        "Did you mean 'num_key_value_heads'?",
    ),
    (
        {"is_encoder_decoder": True},
        "config.json: is_encoder_decoder is True, expected False (the only supported value). "
        "Take a checkpoint without it.",
    ),
    (
        {"hidden_act": "mish"},
        "config.json: hidden_act is 'mish', expected one of gelu, gelu_fast, gelu_new, "
        f"gelu_pytorch_tanh, relu, silu, swish. {OTHER}",
    ),
    (
        {"num_attention_heads": "6"},
        "config.json: num_attention_heads is '6', expected a whole number of at least 1. "
        "Is the file complete?",
    ),
    (
        {"vocab_size": None},
        "config.json: vocab_size is missing, expected a whole number of at least 1. "
        "Is the file complete?",
    ),
    (
        {"num_hidden_layers": 10**12},
        "config.json: num_hidden_layers is 1000000000000, expected at most 10000 layers. "
        "Is the file complete?",
    ),
    (
        {"attention_bias": 1},
        "config.json: attention_bias is 1, expected true or false. Is the file complete?",
    ),
    ({"num_key_value_heads": 4}, "Attention: num_heads 6 must be a multiple of num_kv_heads 4."),
    (
        {"model_type": None},
        "config.json: model_type is None, expected the name of a family. Is it the config of a "
        "model?",
    ),
    (
        {"model_type": "mamba"},
        "model_type is 'mamba', expected one of bart, deepseek_v2, deepseek_v3, gemma2, "
        "gemma3_text, gpt2, gpt_neox, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen3_moe, t5. "
        "Write a file for it in jaxkv/spec/families and add it to the table there.",
    ),
    (
        {"eos_token_id": [5, 97]},
        "config.json: eos_token_id is [5, 97], expected ids below 97 (vocab_size). "
        "Download it again.",
    ),
]


@pytest.mark.parametrize(("config", "fact"), REFUSED, ids=[fact[:60] for _, fact in REFUSED])
def test_config_that_changes_the_function_is_refused_before_any_weight(
    hf_directory: Write, config: Mapping[str, Any], fact: str
):
    path = hf_directory(config)
    (path / "model.safetensors").write_bytes(b"")

    assert refusal(path) == fact


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        (5, {}, (5,)),
        ([5, 6], {}, (5, 6)),
        (None, None, ()),
        (5, {"eos_token_id": [7, 8]}, (7, 8)),
        (5, {"eos_token_id": 0}, (0,)),
        (5, {"eos_token_id": []}, ()),
        (5, {"eos_token_id": None}, (5,)),
        (None, {"eos_token_id": 9}, (9,)),
    ],
)
def test_end_ids_are_the_generation_configs_and_else_the_configs(
    hf_directory: Write, config: Any, generation: Any, ids: tuple[int, ...]
):
    files = {} if generation is None else {"generation_config.json": generation}

    assert read_huggingface(hf_directory({"eos_token_id": config}, files=files)).end_ids == ids


def test_absent_directory_and_config_are_named(hf_directory: Write, tmp_path: Path):
    path = hf_directory()
    (path / "config.json").unlink()

    assert refusal(path) == (
        "config.json is missing, expected it beside the weights. Is the download complete?"
    )
    assert refusal(tmp_path / "absent") == "there is no such directory. Check the path."


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[]", "config.json holds a list, expected an object. Download it again."),
        (
            '{"a"',
            "config.json is no JSON: Expecting ':' delimiter: line 1 column 5 (char 4). "
            "Download it again.",
        ),
        (
            "version https://git-lfs.github.com/spec/v1\n",
            "config.json is a Git LFS pointer. Run `git lfs pull` where it was cloned.",
        ),
    ],
)
def test_config_that_is_no_json_object_is_refused(hf_directory: Write, text: str, fact: str):
    assert refusal(hf_directory(files={"config.json": text})) == fact


def test_another_number_of_kv_heads_than_the_weights_have_is_refused(hf_directory: Write):
    assert refusal(hf_directory({"num_key_value_heads": 6})) == (
        "weight 'model.layers.0.self_attn.k_proj.weight' has shape (54, 64), expected (108, 64). "
        "Do config and weights belong together? A checkpoint's number of KV heads cannot be "
        "overridden: another one needs conversion and training."
    )
