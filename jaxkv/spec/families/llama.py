"""The llama family: RMS norm, rotary positions, grouped queries, silu-gated feed-forward, no bias.

Sources: transformers 5.24, `models/llama`; llama.cpp for GGUF files of arch `llama`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import llama_gguf, llama_json
from jaxkv.spec.config import Mlp, ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.gguf_keys import NEUTRAL, ROPE_TENSORS, GgufKeys
from jaxkv.spec.gguf_rope import Tensors

GGUF_INTERLEAVED_QK = True
"""GGUF files of this family hold the rows of q and k permuted, pair by pair within each head: row
2i of a head is channel i, row 2i + 1 is channel i + H/2. Rotary positions here turn (i, i + H/2),
so each twin undoes it, by itself."""

GGUF_ROPE_TENSORS: tuple[str, ...] = ROPE_TENSORS
GGUF_READ = llama_gguf.READ
HUGGINGFACE_ARCHITECTURE = "LlamaForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = llama_json.READ | {"attention_bias", "head_dim", "mlp_bias"}
HUGGINGFACE_IGNORED = llama_json.IGNORED | {
    "is_llama_config": "a mark of the program that trained it",
    "pretraining_tp": "in which slices the same products are computed",
}
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {"rope_interleaved": False}

places_from_huggingface = llama_json.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `llama` describes.

    Absent optional keys have transformers' defaults: as many KV heads as heads, heads as wide as
    width / heads, base 10,000, silu, no bias, an untied head.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    bias = data.flag("attention_bias", False)
    layers = data.layers("num_hidden_layers")
    attention = llama_json.attention(data, qkv_bias=bias, out_bias=bias)
    mlp = replace(llama_json.mlp(data), bias=data.flag("mlp_bias", False))
    return llama_json.decoder(data, "llama", (attention,) * layers, (mlp,) * layers)


places_from_gguf = llama_gguf.places


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    layer = config.layers[0]
    bias = layer.mlp.bias if isinstance(layer.mlp, Mlp) else False
    return llama_json.to_json(config) | {
        "attention_bias": layer.attention.qkv_bias,
        "mlp_bias": bias,
    }


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `llama` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "llama")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    attention = llama_gguf.attention(keys, tensors)
    layers = llama_gguf.num_layers(keys, tensors, len(llama_gguf.LAYER_NAMES))
    return llama_gguf.decoder(keys, (attention,) * layers, tensors)
