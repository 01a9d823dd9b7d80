"""The mistral family: llama's parts, and a window that all layers were trained with.

Source: transformers 5.24, `models/mistral`. An absent `sliding_window` means 4096 there, null none.
"""

from typing import Any

from jaxkv.spec import llama_json
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson

HUGGINGFACE_ARCHITECTURE = "MistralForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = llama_json.READ | {"head_dim", "sliding_window"}
HUGGINGFACE_IGNORED = llama_json.IGNORED
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL

places_from_huggingface = llama_json.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `mistral` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    layers = data.layers("num_hidden_layers")
    attention = llama_json.attention(data, window=data.whole_or_off("sliding_window", 4096))
    mlp = llama_json.mlp(data)
    return llama_json.decoder(data, "mistral", (attention,) * layers, (mlp,) * layers)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    return llama_json.to_json(config) | {"sliding_window": config.layers[0].attention.window}
