"""A tiny decoder of every family, as the `config.json` by which the family's own reader makes it.

Sizes are pairwise distinct, query heads share key/value heads so that repeating them and tiling
them differ, windows and the lengths from which a scaling starts are shorter than a tester's texts,
and where a family can have both, one layer slides and one sees everything.

A family to come adds its `config.json` here; its reader must be one of `jaxkv.spec.families`.
"""

from typing import Any

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.families import huggingface_family

Json = dict[str, Any]

_SIZES: Json = {
    "vocab_size": 97,
    "hidden_size": 40,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 18,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
}
_WINDOW: Json = {"sliding_window": 5}
_MIXED: Json = {"layer_types": ["sliding_attention", "full_attention"]}
_UPPER: Json = {"use_sliding_window": True, "max_window_layers": 1, **_WINDOW}
_ORIGINAL: Json = {"original_max_position_embeddings": 12}
_FACTORS: Json = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8],
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0],
}
_NEOX: Json = {
    "model_type": "gpt_neox",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rotary_emb_base": 100.0,
    "rotary_pct": 0.5,
}


_T5: Json = {
    "model_type": "t5",
    "vocab_size": 97,
    "d_model": 40,
    "d_kv": 9,
    "d_ff": 52,
    "num_heads": 6,
    "num_layers": 2,
    # Few buckets, the last of them within a tester's texts.
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
    "is_encoder_decoder": True,
}
_BART: Json = {
    "model_type": "bart",
    "vocab_size": 97,
    "d_model": 28,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 52,
    "max_position_embeddings": 128,
    "scale_embedding": True,
    "decoder_start_token_id": 2,
    "is_encoder_decoder": True,
}


def _like(model_type: str, *parts: Json, **more: Any) -> Json:
    """Return llama's sizes as another model type, with some keys of its own."""
    merged: Json = {"model_type": model_type, **_SIZES}
    for part in parts:
        merged |= part
    return merged | more


def _scaled(kind: str, **scaling: Any) -> Json:
    return _like("llama", rope_scaling={"rope_type": kind, **scaling})


_DEEPSEEK: Json = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_key_value_heads": 6,
    "q_lora_rank": 15,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 11,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 1.0,
        "beta_slow": 0.05,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        **_ORIGINAL,
    },
}

CONFIG_JSON: dict[str, Json] = {
    "gpt_neox": _NEOX,
    "gpt_neox-serial": _NEOX | {"use_parallel_residual": False},
    "mistral": _like("mistral", _WINDOW),
    "mixtral": _like("mixtral", _WINDOW, num_local_experts=5, num_experts_per_tok=2),
    "qwen2": _like("qwen2", _UPPER),
    "qwen3": _like("qwen3", _UPPER),
    "qwen3_moe": _like(
        "qwen3_moe",
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        mlp_only_layers=[1],
    ),
    "gemma2": _like(
        "gemma2",
        _WINDOW,
        _MIXED,
        query_pre_attn_scalar=30,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": _like(
        "gemma3_text",
        _WINDOW,
        _MIXED,
        query_pre_attn_scalar=30,
        rope_theta=1000.0,
        rope_local_base_freq=100.0,
    ),
    # Queries straight from the stream in the one, through a latent of their own in the other.
    "deepseek_v2": _like(
        "deepseek_v2", _DEEPSEEK, q_lora_rank=None, topk_method="group_limited_greedy"
    ),
    "deepseek_v3": _like("deepseek_v3", _DEEPSEEK),
    "phi3": _like("phi3", _WINDOW),
    "t5": _T5,
    "flan-t5": _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": _BART,
    "phi3-longrope": _like("phi3", _ORIGINAL, rope_scaling={"rope_type": "longrope", **_FACTORS}),
    "llama-linear": _scaled("linear", factor=4.0),
    # The length that it was trained at is the config's own; the model has eight times as many.
    "llama-dynamic": _scaled("dynamic", factor=8.0) | {"max_position_embeddings": 12},
    "llama-llama3": _scaled(
        "llama3", factor=8.0, low_freq_factor=0.1, high_freq_factor=1.0, **_ORIGINAL
    ),
    "llama-yarn": _scaled("yarn", factor=4.0, beta_fast=1.0, beta_slow=0.05, **_ORIGINAL),
}
"""Name -> config.json."""


def tiny_family(name: str) -> ModelConfig:
    """Return the tiny config of a name in `CONFIG_JSON`.

    Raises:
        ConfigError: The family's reader refuses its `config.json`.
    """
    data = CONFIG_JSON[name]
    return huggingface_family(data["model_type"]).config_from_huggingface(ConfigJson(data))
