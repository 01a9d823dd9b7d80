"""Families of other packages with tiny sizes, by name: `tests.wild.families:litgpt?of=mqa`.

A constructor takes those of SIZES that it names, and what a family says besides. The hunt runs them
all.
"""

import inspect

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, WINDOW, POSITIONS, VOCAB = 32, 48, 3, 4, 2, 5, 64, 97
SIZES = {
    **dict.fromkeys(("vocabulary_size", "vocab_size", "padded_vocab_size"), VOCAB),
    **dict.fromkeys(("hidden_dim", "hidden_size", "n_embd"), WIDTH),
    **dict.fromkeys(("intermediate_dim", "intermediate_size", "n_inner"), HIDDEN),
    **dict.fromkeys(("moe_intermediate_dim", "moe_intermediate_size"), HIDDEN // 2),
    **dict.fromkeys(("shared_expert_intermediate_dim", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer"), LAYERS),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_query_heads", "n_head"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "n_query_groups"), KV_HEADS),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), WINDOW),
    **dict.fromkeys(("max_sequence_length", "max_position_embeddings", "n_positions"), POSITIONS),
    **dict.fromkeys(("block_size", "n_ctx"), POSITIONS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_expert"), 4),
    **dict.fromkeys(("top_k", "num_experts_per_tok", "n_expert_per_token"), 2),
    **dict.fromkeys(("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps"), 1e-5),
    **dict.fromkeys(("dropout", "attention_dropout"), 0.0),
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
    **dict.fromkeys(("rope_theta", "rotary_emb_base"), 10000.0),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rotary_percentage"), 0.5),
    "head_dim": WIDTH // HEADS,
    **dict.fromkeys(("use_qkv_bias", "use_bias", "use_conv_bias"), True),
    "time_step_rank": 4,
    "conv_kernel": 4,
    "state_size": 8,
    "image_size": 16,
    "layer_types": ["full_attention"] * LAYERS,
    "rope_layer_enabled_list": [1, 1, 0],
}
PRE_NORM = {"norm_class_name": "RMSNorm", "bias": False, "parallel_residual": False}
LLAMA = PRE_NORM | {"mlp_class_name": "LLaMAMLP", "rotary_percentage": 1.0}
POST_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
KERAS_HUB = {
    name: (name, {})
    for name in (
        *("Llama", "Llama3", "Mistral", "Mixtral", "Gemma", "Qwen", "Qwen3", "QwenMoe", "Falcon"),
        *("Qwen3Moe", "SmolLM3", "Bloom", "OPT", "Phi3", "GptOss", "GPT2", "GPTNeoX", "Gemma3"),
    )
} | {
    "Gemma2": ("Gemma", POST_NORMS | {"use_sliding_window_attention": True}),
    "Gemma2Capped": ("Gemma", POST_NORMS | {"attention_logit_soft_cap": 5.0}),
    "QwenSliding": ("Qwen", {"use_sliding_window_attention": True}),
}
LITGPT = {
    "llama": LLAMA,
    "mqa": LLAMA | {"n_query_groups": 1},
    "qk_norm": LLAMA | {"norm_qk": True},
    "neox": {"mlp_class_name": "GptNeoxMLP", "n_query_groups": HEADS, "bias": True},
    "phi": {"mlp_class_name": "GptNeoxMLP", "shared_attention_norm": True, "lm_head_bias": True},
    "gemma": LLAMA | {"mlp_class_name": "GemmaMLP", "scale_embeddings": True},
    "sliding": LLAMA | {"sliding_window_size": WINDOW, "sliding_window_indices": [1, 0, 1]},
    "post_norm": LLAMA | {"post_attention_norm": True, "post_mlp_norm": True},
    "final_cap": LLAMA | {"final_logit_softcapping": 5.0},
    "moe": LLAMA | {"mlp_class_name": "LLaMAMoE"},
    "softcap": LLAMA | {"attention_logit_softcapping": 5.0},
}
# Switches, but for those that have a value here; `wrapper.` belongs to TransformerWrapper.
X_TRANSFORMERS = """
    plain use_rmsnorm use_scalenorm use_simple_rmsnorm use_dynamic_tanh alibi_pos_bias rel_pos_bias
    dynamic_pos_bias rotary_pos_emb rotary_xpos polar_pos_emb weight_tie_layers residual_attn
    macaron pre_norm=False pre_and_post_norm gate_residual scale_residual sandwich_norm
    softclamp_output use_layerscale unet_skips integrate_layers reinject_input add_value_residual
    num_residual_streams=2 attn_qk_norm attn_qk_rmsnorm attn_k_rmsnorm attn_value_rmsnorm
    attn_l2_distance attn_sigmoid attn_one_kv_head attn_kv_heads=2 attn_head_scale
    attn_pre_talking_heads attn_post_talking_heads attn_sparse_topk=2 attn_num_mem_kv=2 attn_on_attn
    attn_gate_value_heads attn_gate_values attn_swiglu_values attn_output_gate attn_hard
    attn_max_attend_past=5 attn_selective attn_cog_signed attn_add_zero_kv attn_head_learned_sink
    attn_data_dependent_alibi attn_use_rel_proj_pos_bias attn_use_cope attn_softclamp_logits
    attn_orthog_projected_values attn_laser ff_glu ff_swish ff_relu_squared ff_post_act_ln
    ff_no_bias wrapper.post_emb_norm wrapper.num_memory_tokens=2 wrapper.tie_embedding
    wrapper.use_abs_pos_emb=False wrapper.scaled_sinu_pos_emb wrapper.l2norm_embed shift_tokens=1
"""
MLX_LM = """
    llama qwen2 qwen3 gemma gemma2 phi phi3 mixtral olmo2 gpt_neox gpt2 gpt_bigcode starcoder2
    cohere stablelm helium mamba
"""
FLAX = ("nnx", "nnx_without_mask", "linen")
FAMILIES = {
    "keras-hub": tuple(KERAS_HUB),
    "litgpt": tuple(LITGPT),
    "x-transformers": tuple(X_TRANSFORMERS.split()),
    "mlx-lm": tuple(MLX_LM.split()),
    "flax": FLAX,
}


def taken(maker, **given):
    """Return the sizes that a constructor names, and what is given besides."""
    named = inspect.signature(maker).parameters
    return {k: v for k, v in SIZES.items() if k in named} | given


def keras_hub(of, backend="torch"):
    """A CausalLM of keras-hub."""
    import os

    os.environ["KERAS_BACKEND"] = backend
    import keras
    import keras_hub.models as models

    keras.utils.set_random_seed(0)
    family, options = KERAS_HUB[of]
    maker = getattr(models, f"{family}Backbone")
    # A backbone's own maker hides its parameters behind a wrapper.
    backbone = maker(**taken(maker.__init__, **options))
    task = getattr(models, f"{family}CausalLM")
    return task(backbone=backbone, preprocessor=None), {"amplify": True}


def litgpt(of):
    """A GPT of litgpt."""
    import torch
    from litgpt import GPT, Config

    torch.manual_seed(0)
    sizes = taken(Config) | {"n_expert": 0, "n_expert_per_token": 0, "sliding_window_size": None}
    experts = {"n_expert": 4, "n_expert_per_token": 2} if of == "moe" else {}
    return GPT(Config(**(sizes | experts | LITGPT[of]))).double().eval(), {"amplify": True}


def x_transformers(of):
    """A decoder of x-transformers with one option set."""
    import ast

    import torch
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    name, _, value = of.partition("=")
    option = {} if of == "plain" else {name: ast.literal_eval(value or "True")}
    wrapper = {k.removeprefix("wrapper."): v for k, v in option.items() if k.startswith("wrapper.")}
    inside = {} if wrapper else option
    layers = Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=8, **inside)
    model = TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=POSITIONS, attn_layers=layers, **wrapper
    )
    return model.double().eval(), {"amplify": True}


def mlx_lm(of):
    """A model of mlx-lm."""
    from importlib import import_module

    import mlx.core as mx

    mx.random.seed(0)
    home = import_module(f"mlx_lm.models.{of}")
    return home.Model(home.ModelArgs(**taken(home.ModelArgs, model_type=of))), {"amplify": True}


def flax(of):
    """A decoder around an attention of flax, with nnx's or Linen's own cache."""
    from tests.wild.models import flax_attention

    if of == "linen":
        return linen_decoder(), {"amplify": True}
    return flax_attention(is_causal=of == "nnx")


def linen_decoder():
    """Two of Linen's attentions with their own cache, which takes one token a step."""
    import jax.numpy as jnp
    from flax import linen

    wide = {"dtype": jnp.float64, "param_dtype": jnp.float64}

    class Decoder(linen.Module):
        decode: bool = False

        @linen.compact
        def __call__(self, ids):
            mask = None if self.decode else linen.make_causal_mask(ids)
            x = linen.Embed(VOCAB, WIDTH, **wide)(ids)
            for _ in range(2):
                attend = linen.MultiHeadDotProductAttention(HEADS, decode=self.decode, **wide)
                x = x + attend(linen.LayerNorm(**wide)(x), mask=mask)
            return linen.Dense(VOCAB, **wide)(x)

    return Decoder()
