"""What the `config.json` of well-known checkpoints says: every key there, and what it stands for.

Keys and values are those of the files on the Hugging Face hub; a list of a number a rotary pair
stands in as long as the file's. Beside each: how many parameters its model card or index names.
"""

from typing import Any

Json = dict[str, Any]


def _saved(version: str, torch_dtype: str | None = "bfloat16", **more: Any) -> Json:
    """Return what the library writes in every file of those years."""
    written: Json = {"initializer_range": 0.02, "transformers_version": version, "use_cache": True}
    kept = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
    return written | kept | more


def _sizes(width: int, hidden: int, layers: int, heads: int, kv_heads: int | None = None) -> Json:
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers}
    sizes["num_attention_heads"] = heads
    return sizes | ({} if kv_heads is None else {"num_key_value_heads": kv_heads})


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
    **_sizes(4096, 14336, 32, 32, 8),
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
    **_sizes(3072, 8192, 32, 32, 32),
}
_NEOX: Json = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
}
_DEEPSEEK: Json = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM"},
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
}
_YARN: Json = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
_T5: Json = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    "vocab_size": 32128,
}


def _long(pairs: int, key: str = "type") -> Json:
    ones, more = [1.0] * pairs, [1.0 + i / 8 for i in range(pairs)]
    return {"long_factor": more, "short_factor": ones, key: "longrope"}


CONFIGS: dict[str, tuple[Json, int]] = {
    "Llama-2-7b": (
        _LLAMA
        | _saved("4.31.0.dev0", "float16", bos_token_id=1, eos_token_id=2, vocab_size=32000)
        | _sizes(4096, 11008, 32, 32, 32)
        | {"max_position_embeddings": 4096},
        6_738_415_616,
    ),
    "Llama-3.2-1B": (
        _LLAMA
        | _saved("4.45.0.dev0", bos_token_id=128000, eos_token_id=128001, vocab_size=128256)
        | _sizes(2048, 8192, 16, 32, 8)
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
        | _saved("4.42.3", bos_token_id=1, eos_token_id=2, pad_token_id=2, vocab_size=49152)
        | _sizes(576, 1536, 30, 9, 3)
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
        | _saved("4.35.0", bos_token_id=1, eos_token_id=2, vocab_size=32000)
        | _sizes(2048, 5632, 22, 32, 4)
        | {"max_position_embeddings": 2048, "rope_theta": 10000.0},
        1_100_048_384,
    ),
    "Mistral-7B-v0.1": (
        _MISTRAL
        | _saved("4.34.0.dev0", vocab_size=32000)
        | {"rope_theta": 10000.0, "sliding_window": 4096},
        7_241_732_096,
    ),
    "Mistral-7B-v0.3": (
        _MISTRAL
        | _saved("4.42.0.dev0", vocab_size=32768, attention_dropout=0.0)
        | {"rope_theta": 1000000.0, "sliding_window": None},
        7_248_023_552,
    ),
    "Mixtral-8x7B-v0.1": (
        _MISTRAL
        | _saved("4.36.0.dev0", vocab_size=32000, attention_dropout=0.0)
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
        | _saved("4.40.1", vocab_size=151936)
        | _sizes(896, 4864, 24, 14, 2)
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
        | _saved("5.17.0", None, vocab_size=152064, dtype="bfloat16")
        | _sizes(3584, 18944, 28, 28, 4)
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
        | _saved("4.51.0")
        | _sizes(1024, 3072, 28, 16, 8)
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
        | _saved("4.51.0")
        | _sizes(2048, 6144, 48, 32, 4)
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
        | _saved("4.42.4", "float32", vocab_size=256000)
        | _sizes(2304, 9216, 26, 8, 4)
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
        | _saved("4.50.0.dev0", sliding_window_pattern=6)
        | {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26},
        999_885_952,
    ),
    "gemma-3-270m": (
        {key: value for key, value in _GEMMA3.items() if key != "cache_implementation"}
        | _saved("4.55.0.dev0", _sliding_window_pattern=6, use_bidirectional_attention=False)
        | {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18}
        | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3},
        268_098_176,
    ),
    "Phi-3-mini-4k-instruct": (
        _PHI3
        | _saved("4.40.2", _name_or_path="Phi-3-mini-4k-instruct")
        | {"max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047},
        3_821_079_552,
    ),
    "Phi-3-mini-128k-instruct": (
        _PHI3
        | _saved("4.40.2", _name_or_path="Phi-3-mini-128k-instruct")
        | {
            "max_position_embeddings": 131072,
            "rope_scaling": _long(48),
            "sliding_window": 262144,
        },
        3_821_079_552,
    ),
    "Phi-4-mini-instruct": (
        _PHI
        | _saved("4.45.0", _name_or_path="Phi-4-mini-instruct", vocab_size=200064)
        | _sizes(3072, 8192, 32, 24, 8)
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
    "pythia-70m": (
        _NEOX
        | _saved("4.24.0", "float16", vocab_size=50304, use_parallel_residual=True)
        | _sizes(512, 2048, 6, 8)
        | {"hidden_act": "gelu"},
        70_426_624,
    ),
    "gpt-neox-20b": (
        _NEOX
        | _saved("4.19.0.dev0", "float16", vocab_size=50432)
        | _sizes(6144, 24576, 44, 64)
        | {
            "attention_probs_dropout_prob": 0,
            "hidden_act": "gelu_fast",
            "hidden_dropout_prob": 0,
        },
        20_554_567_680,
    ),
    "gpt2": (
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": 50256,
            "embd_pdrop": 0.1,
            "eos_token_id": 50256,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "summary_activation": None,
            "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    "DeepSeek-V2-Lite": (
        _DEEPSEEK
        | _saved("4.33.1", vocab_size=102400, bos_token_id=100000, eos_token_id=100001)
        | _sizes(2048, 10944, 27, 16, 16)
        | {
            "architectures": ["DeepseekV2ForCausalLM"],
            "aux_loss_alpha": 0.001,
            "first_k_dense_replace": 1,
            "model_type": "deepseek_v2",
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_experts_per_tok": 6,
            "pretraining_tp": 1,
            "q_lora_rank": None,
            "rope_scaling": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
            "seq_aux": True,
            "topk_group": 1,
            "topk_method": "greedy",
        },
        15_706_484_224,
    ),
    # Without the published file's quantization_config: as converted to bfloat16.
    "DeepSeek-V3": (
        _DEEPSEEK
        | _saved("4.33.1", vocab_size=129280, bos_token_id=0, eos_token_id=1)
        | _sizes(7168, 18432, 61, 128, 128)
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "ep_size": 1,
            "first_k_dense_replace": 3,
            "model_type": "deepseek_v3",
            "moe_intermediate_size": 2048,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 8,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 1536,
            "rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_group": 4,
            "topk_method": "noaux_tc",
        },
        671_026_419_200,
    ),
    "t5-small": (_T5 | {"d_ff": 2048, "num_heads": 8, "num_layers": 6}, 60_506_624),
    "flan-t5-small": (
        _T5
        | {
            "d_ff": 1024,
            "feed_forward_proj": "gated-gelu",
            "num_decoder_layers": 8,
            "num_heads": 6,
            "num_layers": 8,
            "relative_attention_max_distance": 128,
            "tie_word_embeddings": False,
            "transformers_version": "4.23.1",
            "use_cache": True,
        },
        76_961_152,
    ),
    "bart-base": (
        {
            "_name_or_path": "bart-base",
            "activation_dropout": 0.1,
            "activation_function": "gelu",
            "add_bias_logits": False,
            "add_final_layer_norm": False,
            "architectures": ["BartModel"],
            "attention_dropout": 0.1,
            "bos_token_id": 0,
            "classif_dropout": 0.1,
            "classifier_dropout": 0.0,
            "d_model": 768,
            "decoder_attention_heads": 12,
            "decoder_ffn_dim": 3072,
            "decoder_layerdrop": 0.0,
            "decoder_layers": 6,
            "decoder_start_token_id": 2,
            "dropout": 0.1,
            "early_stopping": True,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "encoder_layerdrop": 0.0,
            "encoder_layers": 6,
            "eos_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "gradient_checkpointing": False,
            "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
            "init_std": 0.02,
            "is_encoder_decoder": True,
            "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
            "max_position_embeddings": 1024,
            "model_type": "bart",
            "no_repeat_ngram_size": 3,
            "normalize_before": False,
            "normalize_embedding": True,
            "num_beams": 4,
            "num_hidden_layers": 6,
            "pad_token_id": 1,
            "scale_embedding": False,
            "task_specific_params": {"summarization": {"length_penalty": 1.0, "num_beams": 4}},
            "torch_dtype": "float32",
            "transformers_version": "4.12.0.dev0",
            "use_cache": True,
            "vocab_size": 50265,
        },
        # The bias of the logits is a buffer there and not counted: 50,265 more.
        139_420_416 + 50_265,
    ),
}
"""Name on the hub -> its config.json, and its parameters."""
