"""What the `config.json` of well-known checkpoints says, of families that do not follow llama."""

from tests.spec.published import Json, saved, sizes

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


OTHERS: dict[str, tuple[Json, int]] = {
    "pythia-70m": (
        _NEOX
        | saved("4.24.0", "float16", vocab_size=50304, use_parallel_residual=True)
        | sizes(512, 2048, 6, 8)
        | {"hidden_act": "gelu"},
        70_426_624,
    ),
    "gpt-neox-20b": (
        _NEOX
        | saved("4.19.0.dev0", "float16", vocab_size=50432)
        | sizes(6144, 24576, 44, 64)
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
        | saved("4.33.1", vocab_size=102400, bos_token_id=100000, eos_token_id=100001)
        | sizes(2048, 10944, 27, 16, 16)
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
        | saved("4.33.1", vocab_size=129280, bos_token_id=0, eos_token_id=1)
        | sizes(7168, 18432, 61, 128, 128)
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
