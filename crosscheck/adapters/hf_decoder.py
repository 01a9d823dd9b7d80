"""A transformers model in the words of the independent decoder, where that computes its family."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import hf_facts
from crosscheck.adapters.torch_tools import to_numpy

# Families with plain RMS norms, one block after the other, rotation of half-split pairs.
LLAMA_LIKE = ("llama", "mistral", "qwen2")
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh"}
ACTIVATIONS |= {"gelu_pytorch_tanh": "gelu_tanh"}
Arrays = dict[str, NDArray]


def inputs(model: Any) -> tuple[dict[str, Any], Arrays] | None:
    """Return (config, float64 weights under canonical names), or None for another family."""
    config = hf_facts.text_config(model)
    kind = config.model_type
    if kind == "gpt2" and not getattr(config, "add_cross_attention", False):
        return _gpt2(model, config)
    rope = getattr(config, "rope_parameters", None)
    if rope is None and not getattr(config, "rope_scaling", None):  # transformers 4
        rope = {"rope_theta": getattr(config, "rope_theta", None)}
    if kind in LLAMA_LIKE and rope and rope.get("rope_type", "default") == "default":
        return _llama(model, config, rope)
    return None


def _llama(model: Any, config: Any, rope: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
    held = _state(model)
    width = config.hidden_size // config.num_attention_heads
    width = getattr(config, "head_dim", None) or width
    block = model.model.layers[0].self_attn
    windows = hf_facts.windows(model)
    layers = [
        {
            "attention": _attention(
                config.num_attention_heads,
                config.num_key_value_heads,
                width,
                window=window,
                rope={"theta": float(rope["rope_theta"]), "rotary_dim": width, "scaling": None},
                qkv_bias=block.q_proj.bias is not None,
                out_bias=block.o_proj.bias is not None,
            ),
            "mlp": _mlp(
                config.intermediate_size, config.hidden_act, gated=True, bias=_biased(held)
            ),
        }
        for window in windows
    ]
    names = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    parts = {
        **{f"attn.{p}": f"self_attn.{p}_proj" for p in "qkvo"},
        **{f"mlp.{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }
    for i in range(len(layers)):
        names |= {f"layers.{i}.{ours}": f"model.layers.{i}.{its}" for ours, its in parts.items()}
    arrays = {
        f"{ours}.{end}": held[f"{its}.{end}"]
        for ours, its in names.items()
        for end in ("weight", "bias")
        if f"{its}.{end}" in held
    }
    norm = {"kind": "rms", "eps": float(config.rms_norm_eps)}
    return _config(config, layers, norm, arrays, learned=False), arrays


def _gpt2(model: Any, config: Any) -> tuple[dict[str, Any], Arrays]:
    held, width, heads = _state(model), config.n_embd, config.n_head
    layer = {
        "attention": _attention(heads, heads, width // heads, qkv_bias=True, out_bias=True),
        "mlp": _mlp(
            config.n_inner or 4 * width, config.activation_function, gated=False, bias=True
        ),
    }
    names = {"embed": "wte", "position": "wpe", "norm": "ln_f"}
    arrays: Arrays = {}
    for i in range(config.n_layer):
        names |= {f"layers.{i}.attn_norm": f"h.{i}.ln_1", f"layers.{i}.mlp_norm": f"h.{i}.ln_2"}
        # Conv1D keeps (in, out), and q, k and v in one matrix.
        joined = {e: held[f"transformer.h.{i}.attn.c_attn.{e}"].T for e in ("weight", "bias")}
        for end, array in joined.items():
            for part, piece in zip("qkv", np.split(array, 3), strict=True):
                arrays[f"layers.{i}.attn.{part}.{end}"] = piece
        for ours, its in (
            ("attn.o", "attn.c_proj"),
            ("mlp.up", "mlp.c_fc"),
            ("mlp.down", "mlp.c_proj"),
        ):
            for end in ("weight", "bias"):
                arrays[f"layers.{i}.{ours}.{end}"] = held[f"transformer.h.{i}.{its}.{end}"].T
    for ours, its in names.items():
        for end in ("weight", "bias"):
            if f"transformer.{its}.{end}" in held:
                arrays[f"{ours}.{end}"] = held[f"transformer.{its}.{end}"]
    if "lm_head.weight" in held:
        arrays["head.weight"] = held["lm_head.weight"]
    norm = {"kind": "layer", "eps": float(config.layer_norm_epsilon)}
    return _config(config, [layer] * config.n_layer, norm, arrays, learned=True), arrays


def _state(model: Any) -> Arrays:
    """Return the weights in float64; a tied head appears once, as the embedding."""
    return {n: to_numpy(w).astype(np.float64, copy=False) for n, w in model.named_parameters()}


def _biased(held: Arrays) -> bool:
    return any(name.endswith("mlp.up_proj.bias") for name in held)


def _attention(heads: int, kv_heads: int, width: int, **given: Any) -> dict[str, Any]:
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width}
    return sizes | {"window": None, "rope": None, "soft_cap": None} | given


def _mlp(width: int, activation: str, *, gated: bool, bias: bool) -> dict[str, Any]:
    known = ACTIVATIONS.get(activation, activation)
    return {"width": width, "activation": known, "gated": gated, "bias": bias}


def _config(
    config: Any, layers: list, norm: Mapping[str, Any], arrays: Arrays, *, learned: bool
) -> dict[str, Any]:
    return {
        "family": config.model_type,
        "vocab_size": config.vocab_size,
        "width": config.hidden_size,
        "max_positions": hf_facts.max_positions(config),
        "layers": layers,
        "norm": dict(norm),
        "learned_positions": learned,
        "tied_head": "head.weight" not in arrays,
        "head_bias": "head.bias" in arrays,
        "dropout_rate": 0.0,
    }
