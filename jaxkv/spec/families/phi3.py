"""The phi3 family: llama's parts packed into two matrices a layer, and long rotary factors.

Source: transformers 5.24, `models/phi3`: qkv_proj holds all queries, then keys, then values,
gate_up_proj all gates, then ups.
"""

from collections.abc import Mapping
from typing import Any

from jaxkv.spec import llama_gguf, llama_json, rope_json
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Layer, Mlp, ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.gguf_keys import NEUTRAL, GgufKeys
from jaxkv.spec.gguf_rope import LONG, SHORT, Tensors
from jaxkv.spec.scaling import LongScaling

GGUF_INTERLEAVED_QK = False
"""Only arch `llama` permutes rows."""
HUGGINGFACE_ARCHITECTURE = "Phi3ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
GGUF_ROPE_TENSORS: tuple[str, ...] = (LONG, SHORT)
GGUF_READ = llama_gguf.READ | {"attention.sliding_window"}
# What a layer has at least: two norms, two packed matrices, two others.
_GGUF_TENSORS_A_LAYER = 6
HUGGINGFACE_READ = llama_json.READ | {
    "head_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "sliding_window",
}
HUGGINGFACE_IGNORED = llama_json.IGNORED | {
    "auto_map": "code of the checkpoint's own is not run",
    "embd_pdrop": "training only",
    "resid_pdrop": "training only",
}
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {
    "attention_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
}


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied."""
    places = llama_json.places(config)
    for i, layer in enumerate(config.layers):
        for part, span in packed_spans(layer).items():
            whole = "self_attn.qkv_proj" if part.startswith("attn") else "mlp.gate_up_proj"
            places[f"layers.{i}.{part}.weight"] = Stored(f"model.layers.{i}.{whole}.weight", span)
    return places


def packed_spans(layer: Layer) -> dict[str, tuple[int, int]]:
    """Return first and end of each part's outputs in the packed matrix that holds it."""
    a, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, Mlp)  # the family has no experts
    q, kv, f = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, mlp.width
    return {
        "attn.q": (0, q),
        "attn.k": (q, q + kv),
        "attn.v": (q + kv, q + 2 * kv),
        "mlp.gate": (0, f),
        "mlp.up": (f, 2 * f),
    }


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `phi3` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    width, heads = data.whole("hidden_size"), data.whole("num_attention_heads")
    head_dim = data.whole("head_dim", width // heads)
    partial = data.number("partial_rotary_factor", 1.0)
    attention = llama_json.attention(
        data,
        window=data.whole_or_off("sliding_window", None),
        rope=rope_json.rope(data, head_dim, partial=partial),
    )
    layers, mlp = data.layers("num_hidden_layers"), llama_json.mlp(data)
    return llama_json.decoder(data, "phi3", (attention,) * layers, (mlp,) * layers, eps=1e-5)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    first = config.layers[0].attention
    keys: dict[str, Any] = {
        "rope_parameters": rope_json.to_json(first.rope, partial_of=first.head_dim),
        "sliding_window": first.window,
    }
    if first.rope is not None and isinstance(first.rope.scaling, LongScaling):
        keys["original_max_position_embeddings"] = first.rope.scaling.original_max_positions
    return llama_json.to_json(config) | keys


def places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where a GGUF file keeps each weight: gates stand before ups in what it calls ups."""
    places = llama_gguf.places(config)
    for i, layer in enumerate(config.layers):
        for part, span in packed_spans(layer).items():
            whole = "attn_qkv" if part.startswith("attn") else "ffn_up"
            places[f"layers.{i}.{part}.weight"] = Stored(f"blk.{i}.{whole}.weight", span)
    return places


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `phi3` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "phi3")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    key = "attention.sliding_window"
    window = keys.whole(key) if keys.has(key) else None
    attention = llama_gguf.attention(keys, tensors, partial=True, window=window)
    layers = llama_gguf.num_layers(keys, tensors, _GGUF_TENSORS_A_LAYER)
    return llama_gguf.decoder(keys, (attention,) * layers, tensors)
