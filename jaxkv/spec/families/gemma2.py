"""The gemma2 family: gemma's parts, two soft caps, a window in every other layer.

Source: transformers 5.24, `models/gemma2`: absent caps are 50 (scores) and 30 (logits) there, null
ones off.
"""

from dataclasses import replace
from typing import Any

from jaxkv.spec import gemma_json, llama_json
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import ConfigJson

HUGGINGFACE_ARCHITECTURE = "Gemma2ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = gemma_json.READ | {"attn_logit_softcapping"}
HUGGINGFACE_IGNORED = gemma_json.IGNORED
HUGGINGFACE_NEUTRAL = gemma_json.NEUTRAL

places_from_huggingface = gemma_json.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `gemma2` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    plain = gemma_json.attention(data, soft_cap=data.number_or_off("attn_logit_softcapping", 50.0))
    slides = tuple(i % 2 == 0 for i in range(data.layers("num_hidden_layers")))
    windows = llama_json.windows(data, slides, data.whole_or_off("sliding_window", 4096))
    attentions = tuple(replace(plain, window=each) for each in windows)
    cap = data.number_or_off("final_logit_softcapping", 30.0)
    return gemma_json.decoder(data, "gemma2", attentions, cap)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    cap = config.layers[0].attention.soft_cap
    return gemma_json.to_json(config) | {"attn_logit_softcapping": cap}
