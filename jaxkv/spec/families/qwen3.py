"""The qwen3 family: llama's parts, norms on queries and keys, heads apart from width / heads.

Source: transformers 5.24, `models/qwen3`; heads are 128 wide where the file does not say.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import llama_gguf, llama_json
from jaxkv.spec.checkpoint import Place
from jaxkv.spec.config import ModelConfig, Norm
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.families.qwen2 import WINDOW_KEYS, windows, windows_to_json
from jaxkv.spec.gguf_keys import NEUTRAL, GgufKeys
from jaxkv.spec.gguf_rope import Tensors

GGUF_INTERLEAVED_QK = False
"""Only arch `llama` permutes rows."""
GGUF_ROPE_TENSORS: tuple[str, ...] = ()
GGUF_READ = llama_gguf.READ
HUGGINGFACE_ARCHITECTURE = "Qwen3ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
_GGUF_NAMES = llama_gguf.LAYER_NAMES | {"attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm"}
HUGGINGFACE_READ = llama_json.READ | {"attention_bias", "head_dim"} | WINDOW_KEYS
HUGGINGFACE_IGNORED = llama_json.IGNORED
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL

places_from_huggingface = llama_json.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `qwen3` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    bias = data.flag("attention_bias", False)
    norm = Norm(kind="rms", eps=data.number("rms_norm_eps", 1e-6))
    plain = llama_json.attention(data, head_dim=128, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    attentions = tuple(replace(plain, window=each) for each in windows(data))
    mlps = (llama_json.mlp(data),) * len(attentions)
    return llama_json.decoder(data, "qwen3", attentions, mlps)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    bias = {"attention_bias": config.layers[0].attention.qkv_bias}
    return llama_json.to_json(config) | windows_to_json(config) | bias


def places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where a GGUF file keeps each weight."""
    return llama_gguf.places(config, _GGUF_NAMES)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `qwen3` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "qwen3")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    norm = Norm(kind="rms", eps=keys.number("attention.layer_norm_rms_epsilon"))
    attention = llama_gguf.attention(keys, tensors, qk_norm=norm)
    layers = llama_gguf.num_layers(keys, tensors, len(_GGUF_NAMES))
    return llama_gguf.decoder(keys, (attention,) * layers, tensors)
