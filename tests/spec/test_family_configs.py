"""What each family makes of a config.json: defaults, switches, spellings, refusals by name."""

from typing import Any

import pytest

from jaxkv.spec import families
from jaxkv.spec.config import Experts, ModelConfig, Rope
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.scaling import DynamicScaling, LinearScaling, LongScaling, YarnScaling

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
}
NEOX = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
MOE = BASE | {"moe_intermediate_size": 20, "num_experts": 5, "num_experts_per_tok": 2}
SLIDES = ["sliding_attention", "full_attention"] * 2
GPT2 = {"vocab_size": 97, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 11}
T5 = {"vocab_size": 97, "d_model": 40, "d_kv": 9, "d_ff": 52, "num_heads": 6, "num_layers": 2}
BART = {"vocab_size": 97, "d_model": 24} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in (("layers", 2), ("attention_heads", 3), ("ffn_dim", 52))
}
DEEPSEEK = BASE | {
    "num_key_value_heads": 6,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 15,
    "qk_nope_head_dim": 11,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
}
OF_TYPE = {"gpt2": GPT2, "gpt_neox": NEOX, "qwen3_moe": MOE, "t5": T5, "bart": BART}
OF_TYPE |= {"deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}


def read(model_type: str, **changes: Any) -> ModelConfig:
    """Return the config of the smallest file of a family, some keys changed; ... leaves one out."""
    data = OF_TYPE.get(model_type, BASE) | changes
    data = {key: value for key, value in data.items() if value is not ...}
    return families.huggingface_family(model_type).config_from_huggingface(ConfigJson(data))


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.attention.window for layer in config.layers]


def rope(config: ModelConfig, layer: int = 0) -> Rope:
    found = config.layers[layer].attention.rope
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("mistral", {}, [4096] * 4),
        ("mistral", {"sliding_window": None}, [None] * 4),
        ("mistral", {"sliding_window": 7}, [7] * 4),
        ("mixtral", {}, [None] * 4),
        ("mixtral", {"sliding_window": 7}, [7] * 4),
        ("qwen2", {"sliding_window": 7, "max_window_layers": 2}, [None] * 4),
        ("qwen2", {"use_sliding_window": True}, [None] * 4),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3},
            [None, None, None, 7],
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
            [7] * 4,
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 7, "layer_types": SLIDES},
            [7, None, 7, None],
        ),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 7}, [7] * 4),
        ("qwen3_moe", {"sliding_window": 7}, [None] * 4),
        ("gemma2", {}, [4096, None, 4096, None]),
        ("gemma2", {"sliding_window": 7, "layer_types": SLIDES[::-1]}, [None, 7, None, 7]),
        ("gemma3_text", {"sliding_window": 7}, [7] * 4),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 3}, [7, 7, None, 7]),
        ("gemma3_text", {"sliding_window": 7, "_sliding_window_pattern": 2}, [7, None, 7, None]),
        ("phi3", {}, [None] * 4),
        ("phi3", {"sliding_window": 7}, [7] * 4),
    ],
)
def test_windows_are_those_of_the_layers_that_the_file_names(model_type, changes, expected):
    assert windows(read(model_type, **changes)) == expected


@pytest.mark.parametrize(
    ("changes", "caps"),
    [
        ({}, (50.0, 30.0)),
        ({"attn_logit_softcapping": None, "final_logit_softcapping": None}, (None, None)),
        ({"attn_logit_softcapping": 0, "final_logit_softcapping": 0.0}, (None, None)),
        ({"attn_logit_softcapping": 5, "final_logit_softcapping": 3.5}, (5.0, 3.5)),
    ],
    ids=["absent", "null", "zero", "stated"],
)
def test_soft_caps_of_gemma2_are_off_at_null_and_0_and_have_defaults(changes, caps):
    config = read("gemma2", **changes)

    assert (config.layers[0].attention.soft_cap, config.logit_soft_cap) == caps


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("gpt_neox", {}, Rope(10_000.0, 2)),
        ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 100}, Rope(100.0, 4)),
        (
            "gpt_neox",
            {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 7.0}},
            Rope(7.0, 8),
        ),
        ("phi3", {"partial_rotary_factor": 0.75}, Rope(10_000.0, 6)),
        (
            "phi3",
            {
                "rope_scaling": {"type": "su", **FACTORS},
                "original_max_position_embeddings": 16,
                "rope_theta": 100.0,
            },
            Rope(
                100.0,
                8,
                LongScaling((1.0, 1.1, 1.2, 1.3), (2.0, 3.0, 4.0, 5.0), 16, factor=4.0),
            ),
        ),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 4}},
            Rope(10_000.0, 8, LinearScaling(4.0)),
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}},
            Rope(10_000.0, 8, DynamicScaling(2.5, 64)),
        ),
        (
            "qwen2",
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                    "mscale": 0.7,
                }
            },
            Rope(10_000.0, 8, YarnScaling(4.0, 16)),
        ),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "original_max_position_embeddings": 16,
                    "attention_factor": 1.5,
                    "beta_fast": 8,
                    "truncate": False,
                }
            },
            Rope(
                10_000.0,
                8,
                YarnScaling(4.0, 16, attention_factor=1.5, beta_fast=8.0, truncate=False),
            ),
        ),
        ("mixtral", {}, Rope(1_000_000.0, 8)),
    ],
)
def test_rotary_positions_are_read_in_every_spelling(model_type, changes, expected):
    """KV-50."""
    assert rope(read(model_type, **changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_theta": 1000.0,
            "rope_local_base_freq": 100.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ],
    ids=["older", "newer"],
)
def test_gemma3_has_a_base_for_each_kind_of_layer_and_a_scaling_for_one(changes):
    config = read("gemma3_text", sliding_window_pattern=2, head_dim=18, **changes)

    assert rope(config, 0) == Rope(100.0, 18)
    assert rope(config, 1) == Rope(1000.0, 18, LinearScaling(8.0))


def test_a_dynamic_base_reaches_past_the_positions_that_the_model_was_trained_at():
    config = read("llama", rope_scaling={"type": "dynamic", "factor": 2.5})

    assert (config.max_positions, config.follows_length) == (160, True)
    assert not read("llama").follows_length


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, [False] * 4),
        ({"mlp_only_layers": [0, 2]}, [True, False, True, False]),
        ({"decoder_sparse_step": 2}, [True, False, True, False]),
        ({"num_experts": ..., "num_local_experts": 5}, [False] * 4),
    ],
)
def test_experts_stand_in_the_layers_that_the_file_names(changes, dense):
    config = read("qwen3_moe", **changes)

    assert [not isinstance(layer.mlp, Experts) for layer in config.layers] == dense
    experts = [each.mlp for each in config.layers if isinstance(each.mlp, Experts)]
    assert {(each.num_experts, each.top_k, each.expert.width) for each in experts} == {(5, 2, 20)}


@pytest.mark.parametrize(
    ("model_type", "head_dim"),
    [("llama", 8), ("qwen2", 8), ("qwen3", 128), ("gemma2", 256), ("gemma3_text", 256)],
)
def test_heads_are_as_wide_as_the_family_has_them_where_the_file_does_not_say(model_type, head_dim):
    """KV-63."""
    assert read(model_type).layers[0].attention.head_dim == head_dim
    assert read(model_type, head_dim=10).layers[0].attention.head_dim == 10


REFUSED = [
    (
        "mistral",
        {"layer_types": SLIDES},
        "config.json: layer_types is ['sliding_attention', 'full_attention', "
        "'sliding_attention', 'full_attention'], expected no such key (it may change the "
        "function). Take a checkpoint without it.",
    ),
    (
        "qwen2",
        {"layer_types": SLIDES},
        "config.json: sliding_window is None, expected a number, as layer_types asks for it. "
        "Add it.",
    ),
    (
        "qwen3",
        {"layer_types": ["chunked_attention"] * 4},
        "config.json: layer_types is ['chunked_attention', 'chunked_attention', "
        "'chunked_attention', 'chunked_attention'], expected a list of full_attention and "
        "sliding_attention. No other is computed here.",
    ),
    (
        "gemma2",
        {"layer_types": SLIDES[:3]},
        "config.json: layer_types is ['sliding_attention', 'full_attention', "
        "'sliding_attention'], expected 4 names, one a layer. Is the file complete?",
    ),
    (
        "gemma2",
        {"use_bidirectional_attention": True},
        "config.json: use_bidirectional_attention is True, expected False (the only supported "
        "value). Take a checkpoint without it.",
    ),
    (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "config.json: attn_logit_softcapping is 50.0, expected None (the only supported value). "
        "Take a checkpoint without it.",
    ),
    (
        "gemma3_text",
        {"query_pre_attn_scaler": 30},
        "config.json: query_pre_attn_scaler is 30, expected no such key (it may change the "
        "function). Did you mean 'query_pre_attn_scalar'?",
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", **FACTORS, "short_factor": [1.0]}},
        "rope_scaling: short_factor is [1.0], expected 4 numbers above 0. Is the file complete?",
    ),
    (
        "phi3",
        {"attention_bias": True},
        "config.json: attention_bias is True, expected False (the only supported value). Take a "
        "checkpoint without it.",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_parameters: partial_rotary_factor is 0.5, expected 1.0 (the only supported value). "
        "Take a checkpoint without it.",
    ),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        "LinearScaling: factor is 0.5, expected at least 1.",
    ),
    (
        "qwen2",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_slow": 33}},
        "YarnScaling: beta_slow is 33.0, expected above 0 and below beta_fast 32.0.",
    ),
    (
        "mixtral",
        {"num_experts_per_tok": 9},
        "Experts: top_k is 9, expected at most num_experts 8.",
    ),
    (
        "qwen3_moe",
        {"mlp_only_layers": [4]},
        "config.json: mlp_only_layers is [4], expected numbers of layers below 4. Correct it.",
    ),
    (
        "qwen3_moe",
        {"shared_expert_intermediate_size": 20},
        "config.json: shared_expert_intermediate_size is 20, expected no such key (it may change "
        "the function). Did you mean 'moe_intermediate_size'?",
    ),
    (
        "gpt_neox",
        {"rotary_pct": 1.5},
        "rope_parameters: partial_rotary_factor is None, expected at most 1. Is the file complete?",
    ),
    (
        "gpt_neox",
        {"hidden_size": 50},
        "config.json: hidden_size is 50, expected a multiple of num_attention_heads 6. Is the "
        "file complete?",
    ),
]


@pytest.mark.parametrize(
    ("model_type", "changes", "message"), REFUSED, ids=[each[2][:50] for each in REFUSED]
)
def test_what_is_not_computed_is_refused_by_name(model_type, changes, message):
    with pytest.raises(ConfigError) as error:
        read(model_type, **changes)

    assert str(error.value) == message


OF_EPSILON = {
    "gpt2": "layer_norm_epsilon",
    "gpt_neox": "layer_norm_eps",
    "t5": "layer_norm_epsilon",
}


@pytest.mark.parametrize("model_type", [*families.huggingface_model_types()])
def test_every_norm_has_the_epsilon_of_the_file(model_type):
    """KV-66: those of queries and keys too; bart states none."""
    stated = {} if model_type == "bart" else {OF_EPSILON.get(model_type, "rms_norm_eps"): 0.01}

    config = read(model_type, **stated)

    heads = [layer.attention.qk_norm for layer in config.layers if layer.attention.qk_norm]
    found = {norm.eps for norm in (config.norm, *heads)}
    assert found == ({1e-5} if model_type == "bart" else {0.01})
