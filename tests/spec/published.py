"""What the `config.json` of well-known checkpoints says: every key there, and what it stands for.

Keys and values are those of the files on the Hugging Face hub; a list of a number a rotary pair
stands in as long as the file's. Beside each: how many parameters its model card or index names.
"""

from typing import Any

Json = dict[str, Any]


def saved(version: str, torch_dtype: str | None = "bfloat16", **more: Any) -> Json:
    """Return what the library writes in every file of those years."""
    written: Json = {"initializer_range": 0.02, "transformers_version": version, "use_cache": True}
    kept = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
    return written | kept | more


def sizes(width: int, hidden: int, layers: int, heads: int, kv_heads: int | None = None) -> Json:
    found = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers}
    found["num_attention_heads"] = heads
    return found | ({} if kv_heads is None else {"num_key_value_heads": kv_heads})


_LLAMA3: Json = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA: Json = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
_MISTRAL: Json = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    **sizes(4096, 14336, 32, 32, 8),
}
_QWEN: Json = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}
_QWEN3: Json = _QWEN | {
    "attention_bias": False,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_scaling": None,
    "sliding_window": None,
    "vocab_size": 151936,
}
_GEMMA: Json = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
}
_GEMMA3: Json = _GEMMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "vocab_size": 262144,
}
_PHI: Json = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "model_type": "phi3",
    "original_max_position_embeddings": 4096,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}
_PHI3: Json = _PHI | {
    "bos_token_id": 1,
    "eos_token_id": 32000,
    "pad_token_id": 32000,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
    **sizes(3072, 8192, 32, 32, 32),
}


def _long(pairs: int, key: str = "type") -> Json:
    ones, more = [1.0] * pairs, [1.0 + i / 8 for i in range(pairs)]
    return {"long_factor": more, "short_factor": ones, key: "longrope"}


LLAMAS: dict[str, tuple[Json, int]] = {
    "Llama-2-7b": (
        _LLAMA
        | saved("4.31.0.dev0", "float16", bos_token_id=1, eos_token_id=2, vocab_size=32000)
        | sizes(4096, 11008, 32, 32, 32)
        | {"max_position_embeddings": 4096},
        6_738_415_616,
    ),
    "Llama-3.2-1B": (
        _LLAMA
        | saved("4.45.0.dev0", bos_token_id=128000, eos_token_id=128001, vocab_size=128256)
        | sizes(2048, 8192, 16, 32, 8)
        | {
            "attention_dropout": 0.0,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "rope_scaling": _LLAMA3,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "SmolLM2-135M-Instruct": (
        _LLAMA
        | saved("4.42.3", bos_token_id=1, eos_token_id=2, pad_token_id=2, vocab_size=49152)
        | sizes(576, 1536, 30, 9, 3)
        | {
            "attention_dropout": 0.0,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"}},
        },
        134_515_008,
    ),
    "TinyLlama-1.1B": (
        _LLAMA
        | saved("4.35.0", bos_token_id=1, eos_token_id=2, vocab_size=32000)
        | sizes(2048, 5632, 22, 32, 4)
        | {"max_position_embeddings": 2048, "rope_theta": 10000.0},
        1_100_048_384,
    ),
    "Mistral-7B-v0.1": (
        _MISTRAL
        | saved("4.34.0.dev0", vocab_size=32000)
        | {"rope_theta": 10000.0, "sliding_window": 4096},
        7_241_732_096,
    ),
    "Mistral-7B-v0.3": (
        _MISTRAL
        | saved("4.42.0.dev0", vocab_size=32768, attention_dropout=0.0)
        | {"rope_theta": 1000000.0, "sliding_window": None},
        7_248_023_552,
    ),
    "Mixtral-8x7B-v0.1": (
        _MISTRAL
        | saved("4.36.0.dev0", vocab_size=32000, attention_dropout=0.0)
        | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "output_router_logits": False,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.02,
            "sliding_window": None,
        },
        46_702_792_704,
    ),
    "Qwen2.5-0.5B": (
        _QWEN
        | saved("4.40.1", vocab_size=151936)
        | sizes(896, 4864, 24, 14, 2)
        | {
            "architectures": ["Qwen2ForCausalLM"],
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "model_type": "qwen2",
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "use_mrope": False,
        },
        494_032_768,
    ),
    # As the library's fifth version saves it again.
    "Qwen2.5-7B-Instruct": (
        {key: value for key, value in _QWEN.items() if key != "rope_theta"}
        | saved("5.17.0", None, vocab_size=152064, dtype="bfloat16")
        | sizes(3584, 18944, 28, 28, 4)
        | {
            "architectures": ["Qwen2ForCausalLM"],
            "layer_types": ["full_attention"] * 28,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "model_type": "qwen2",
            "pad_token_id": None,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
        7_615_616_512,
    ),
    "Qwen3-0.6B": (
        _QWEN3
        | saved("4.51.0")
        | sizes(1024, 3072, 28, 16, 8)
        | {
            "architectures": ["Qwen3ForCausalLM"],
            "max_window_layers": 28,
            "model_type": "qwen3",
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "Qwen3-30B-A3B": (
        _QWEN3
        | saved("4.51.0")
        | sizes(2048, 6144, 48, 32, 4)
        | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "max_window_layers": 48,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": False,
        },
        30_532_122_624,
    ),
    "gemma-2-2b": (
        _GEMMA
        | saved("4.42.4", "float32", vocab_size=256000)
        | sizes(2304, 9216, 26, 8, 4)
        | {
            "architectures": ["Gemma2ForCausalLM"],
            "attn_logit_softcapping": 50.0,
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "rope_theta": 10000.0,
            "sliding_window": 4096,
        },
        2_614_341_888,
    ),
    "gemma-3-1b-it": (
        _GEMMA3
        | saved("4.50.0.dev0", sliding_window_pattern=6)
        | {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26},
        999_885_952,
    ),
    "gemma-3-270m": (
        {key: value for key, value in _GEMMA3.items() if key != "cache_implementation"}
        | saved("4.55.0.dev0", _sliding_window_pattern=6, use_bidirectional_attention=False)
        | {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18}
        | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3},
        268_098_176,
    ),
    "Phi-3-mini-4k-instruct": (
        _PHI3
        | saved("4.40.2", _name_or_path="Phi-3-mini-4k-instruct")
        | {"max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047},
        3_821_079_552,
    ),
    "Phi-3-mini-128k-instruct": (
        _PHI3
        | saved("4.40.2", _name_or_path="Phi-3-mini-128k-instruct")
        | {
            "max_position_embeddings": 131072,
            "rope_scaling": _long(48),
            "sliding_window": 262144,
        },
        3_821_079_552,
    ),
    "Phi-4-mini-instruct": (
        _PHI
        | saved("4.45.0", _name_or_path="Phi-4-mini-instruct", vocab_size=200064)
        | sizes(3072, 8192, 32, 24, 8)
        | {
            "bos_token_id": 199999,
            "eos_token_id": 199999,
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "pad_token_id": 199999,
            "partial_rotary_factor": 0.75,
            "rope_scaling": _long(48),
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
        3_836_021_760,
    ),
}
"""Name on the hub -> its config.json, and its parameters."""
