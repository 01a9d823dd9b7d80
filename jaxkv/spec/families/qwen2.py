"""The qwen2 family: llama's parts, biases on q, k and v alone, windows in the upper layers.

Source: transformers 5.24, `models/qwen2`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import llama_gguf, llama_json
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.gguf_keys import NEUTRAL, GgufKeys
from jaxkv.spec.gguf_rope import Tensors

GGUF_INTERLEAVED_QK = False
"""Only arch `llama` permutes rows."""
GGUF_ROPE_TENSORS: tuple[str, ...] = ()
GGUF_READ = llama_gguf.READ
HUGGINGFACE_ARCHITECTURE = "Qwen2ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
WINDOW_KEYS = {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}
"""Keys that `windows` reads."""
HUGGINGFACE_READ = llama_json.READ | {"head_dim"} | WINDOW_KEYS
HUGGINGFACE_IGNORED = llama_json.IGNORED
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {"use_mrope": False}

places_from_huggingface = llama_json.places
places_from_gguf = llama_gguf.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `qwen2` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    plain = llama_json.attention(data, qkv_bias=True)
    attentions = tuple(replace(plain, window=each) for each in windows(data))
    mlps = (llama_json.mlp(data),) * len(attentions)
    return llama_json.decoder(data, "qwen2", attentions, mlps)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    return llama_json.to_json(config) | windows_to_json(config)


def windows_to_json(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that `windows` reads."""
    keys = llama_json.windows_to_json(config)
    return keys | {
        "max_window_layers": config.num_layers,
        "use_sliding_window": keys["sliding_window"] is not None,
    }


def windows(data: ConfigJson) -> tuple[int | None, ...]:
    """Return each layer's window: by layer_types, or from layer max_window_layers on.

    None at all unless use_sliding_window is true.

    Raises:
        ConfigError: A key is something else, or a layer slides without a window.
    """
    used = data.flag("use_sliding_window", False)
    window = data.whole_or_off("sliding_window", 4096) if used else None
    # 0 is a number of its own here: all layers have the window.
    first = 0 if data.data.get("max_window_layers") == 0 else data.whole("max_window_layers", 28)
    layers = range(data.layers("num_hidden_layers"))
    return llama_json.windows(
        data, tuple(window is not None and i >= first for i in layers), window
    )


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `qwen2` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "qwen2")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    attention = llama_gguf.attention(keys, tensors, qkv_bias=True)
    layers = llama_gguf.num_layers(keys, tensors, len(llama_gguf.LAYER_NAMES) + len("qkv"))
    return llama_gguf.decoder(keys, (attention,) * layers, tensors)
