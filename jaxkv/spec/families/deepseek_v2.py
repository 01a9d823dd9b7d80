"""The deepseek_v2 family: latent attention, dense layers first, experts chosen by groups.

Source: transformers 5.24, `models/deepseek_v2`. Weights of the chosen experts are never divided by
their sum there, whatever norm_topk_prob says; the checkpoint's own code would: true is refused.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jaxkv.spec import deepseek_gguf, deepseek_json, llama_json
from jaxkv.spec.checkpoint import Place
from jaxkv.spec.config import Experts, ModelConfig, Routing
from jaxkv.spec.config_json import ConfigJson

GGUF_INTERLEAVED_QK = False
"""The config says that pairs are interleaved; no row is permuted."""
GGUF_READ = deepseek_gguf.READ
GGUF_NEUTRAL = deepseek_gguf.NEUTRAL
GGUF_ROPE_TENSORS: tuple[str, ...] = ()
HUGGINGFACE_ARCHITECTURE = "DeepseekV2ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = deepseek_json.READ | {"topk_method"}
HUGGINGFACE_IGNORED = deepseek_json.IGNORED
HUGGINGFACE_NEUTRAL = deepseek_json.NEUTRAL | {
    "mlp_bias": False,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}
_DEFAULTS = ConfigJson({"first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2})
_METHODS = {"greedy": False, "group_limited_greedy": True}


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight."""
    return deepseek_json.places(config)


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `deepseek_v2` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    grouped = data.choice("topk_method", _METHODS, "greedy")
    routing = Routing(
        num_groups=data.whole("n_group") if grouped else 1,
        top_groups=data.whole("topk_group") if grouped else 1,
        scale=data.number("routed_scaling_factor", 1.0),
    )
    mlps = deepseek_json.feed_forwards(
        data, routing, top_k=None, normalized=False, defaults=_DEFAULTS
    )
    attention = deepseek_json.attention(data, interleaved=True)
    return llama_json.decoder(data, "deepseek_v2", (attention,) * len(mlps), mlps)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    keys = deepseek_json.to_json(config)
    routings = [each.mlp.routing for each in config.layers if isinstance(each.mlp, Experts)]
    grouped = any(each is not None and each.num_groups > 1 for each in routings)
    return keys | {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def config_from_gguf(metadata: Mapping[str, Any], tensors: Collection[str]) -> ModelConfig:
    """Return the config that GGUF metadata of arch `deepseek2` describes, of v2 or v3.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF names of the tensors in the file.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    return deepseek_gguf.config(metadata, tensors)


def places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where a GGUF file keeps each weight."""
    return deepseek_gguf.places(config)


def older_places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where an older file keeps each weight: the product up in one tensor."""
    return deepseek_gguf.places(config, split=False)
