"""Every key that a family reads changes what it reads: none is parsed and then forgotten."""

from typing import Any

import pytest

from jaxkv.spec import families
from jaxkv.spec.errors import ConfigError
from tests.spec.test_family_configs import FACTORS, SLIDES, read

LONG = {"rope_type": "longrope", **FACTORS}
# What has to be switched on for a key to be read at all.
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("bart", "activation_function"): {"activation_function": "relu"},
    ("gemma3_text", "rope_parameters"): {"sliding_window_pattern": 2},
    ("gemma3_text", "rope_scaling"): {"sliding_window_pattern": 2},
    ("gemma3_text", "rope_theta"): {"sliding_window_pattern": 2},
    ("gpt_neox", "attention_bias"): {"attention_bias": False},
    ("phi3", "original_max_position_embeddings"): {"rope_parameters": LONG},
    ("qwen2", "sliding_window"): {"use_sliding_window": True, "max_window_layers": 1},
    ("qwen2", "use_sliding_window"): {"sliding_window": 7, "max_window_layers": 1},
    ("qwen2", "max_window_layers"): {"sliding_window": 7, "use_sliding_window": True},
    ("qwen2", "layer_types"): {"sliding_window": 7, "use_sliding_window": True},
    ("qwen3_moe", "sliding_window"): {"use_sliding_window": True},
    ("qwen3_moe", "use_sliding_window"): {"sliding_window": 7},
    ("qwen3_moe", "num_local_experts"): {"num_experts": ..., "num_local_experts": 5},
    ("qwen3_moe", "intermediate_size"): {"mlp_only_layers": [0]},
}
GROUPED = {"topk_method": "group_limited_greedy"}
WITH |= {("deepseek_v2", key): GROUPED for key in ("n_group", "topk_group")}
WITH |= {("qwen3", key): more for (name, key), more in [*WITH.items()] if name == "qwen2"}
# Another value than the base's and the default.
OTHER: dict[str, Any] = {
    "_sliding_window_pattern": 2,
    "activation_function": "gelu",
    "attention_bias": True,
    "attn_logit_softcapping": 5.0,
    "d_ff": 53,
    "d_kv": 10,
    "d_model": 42,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 53,
    "decoder_layers": 3,
    "decoder_sparse_step": 2,
    "decoder_start_token_id": 7,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 53,
    "encoder_layers": 3,
    "feed_forward_proj": "gated-gelu",
    "final_logit_softcapping": 3.0,
    "first_k_dense_replace": 2,
    "forced_bos_token_id": 7,
    "head_dim": 10,
    "hidden_act": "gelu_new",
    "hidden_activation": "silu",
    "hidden_size": 60,
    "intermediate_size": 53,
    "kv_lora_rank": 25,
    "layer_norm_eps": 0.5,
    "layer_norm_epsilon": 0.5,
    "layer_types": SLIDES[::-1],
    "max_position_embeddings": 65,
    "max_window_layers": 2,
    "mlp_bias": True,
    "mlp_only_layers": [1],
    "moe_intermediate_size": 21,
    "n_ctx": 12,
    "n_embd": 24,
    "n_group": 2,
    "n_head": 2,
    "n_inner": 7,
    "n_layer": 3,
    "n_positions": 12,
    "n_routed_experts": 12,
    "n_shared_experts": 3,
    "norm_topk_prob": None,
    "num_attention_heads": 3,
    "num_decoder_layers": 3,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_heads": 5,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_layers": 3,
    "num_local_experts": 6,
    "num_nextn_predict_layers": 1,
    "original_max_position_embeddings": 17,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 10,
    "query_pre_attn_scalar": 30,
    "relative_attention_max_distance": 20,
    "relative_attention_num_buckets": 16,
    "rms_norm_eps": 0.5,
    "rope_interleave": False,
    "rope_local_base_freq": 7.0,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0},
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "rope_theta": 7.0,
    "rotary_emb_base": 7.0,
    "rotary_pct": 0.5,
    "routed_scaling_factor": 3.5,
    "scale_decoder_outputs": False,
    "scale_embedding": True,
    "sliding_window": 7,
    "sliding_window_pattern": 2,
    "tie_word_embeddings": None,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "use_parallel_residual": False,
    "use_sliding_window": True,
    "v_head_dim": 15,
    "vocab_size": 98,
}
CASES = [
    (model_type, key)
    for model_type in families.huggingface_model_types()
    for key in sorted(families.huggingface_family(model_type).HUGGINGFACE_READ)
]


@pytest.mark.parametrize(("model_type", "key"), CASES)
def test_a_key_that_is_read_changes_the_config_or_is_refused(model_type, key):
    more = WITH.get((model_type, key), {})
    before, other = read(model_type, **more), OTHER[key]
    if key == "tie_word_embeddings":
        other = not before.tied_head
    if key == "norm_topk_prob":
        other = not any(getattr(layer.mlp, "normalized", False) for layer in before.layers)
    if (model_type, key) == ("gemma2", "layer_types"):
        more = more | {"sliding_window": 7}

    after = _read_or_refusal(model_type, **{**more, key: other})

    assert after != before
    assert not isinstance(after, str) or key in after


def _read_or_refusal(model_type: str, **changes: Any) -> Any:
    try:
        return read(model_type, **changes)
    except ConfigError as error:
        return str(error)
