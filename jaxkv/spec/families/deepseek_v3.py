"""The deepseek_v3 family: deepseek_v2's attention, experts chosen by sigmoids with a bias.

Source: transformers 5.24, `models/deepseek_v3`. Layers that predict further tokens are counted,
their tensors known by name, and left out unless asked for.
"""

from dataclasses import replace
from typing import Any

from jaxkv.spec import deepseek_json, llama_json
from jaxkv.spec.checkpoint import Place
from jaxkv.spec.config import Experts, ModelConfig, Routing
from jaxkv.spec.config_json import ConfigJson

HUGGINGFACE_ARCHITECTURE = "DeepseekV3ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = deepseek_json.READ | {
    "norm_topk_prob",
    "num_nextn_predict_layers",
    "rope_interleave",
}
HUGGINGFACE_IGNORED = deepseek_json.IGNORED
HUGGINGFACE_NEUTRAL = deepseek_json.NEUTRAL | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_DEFAULTS = ConfigJson({"first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1})


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight."""
    return deepseek_json.places(config)


def draft_tensors_from_huggingface(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the tensors that predict further tokens and are not read."""
    return deepseek_json.draft_tensors(config)


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `deepseek_v3` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    routing = Routing(
        scoring="sigmoid",
        choice_bias=True,
        num_groups=data.whole("n_group", 8),
        top_groups=data.whole("topk_group", 4),
        group_score="top2",
        scale=data.number("routed_scaling_factor", 2.5),
    )
    mlps = deepseek_json.feed_forwards(
        data,
        routing,
        top_k=8,
        normalized=data.flag("norm_topk_prob", True),
        defaults=_DEFAULTS,
    )
    attention = deepseek_json.attention(data, interleaved=data.flag("rope_interleave", True))
    config = llama_json.decoder(data, "deepseek_v3", (attention,) * len(mlps), mlps)
    return replace(config, draft_layers=deepseek_json.count(data, "num_nextn_predict_layers", 0))


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    rope = config.layers[0].attention.rope
    normalized = [each.mlp.normalized for each in config.layers if isinstance(each.mlp, Experts)]
    return deepseek_json.to_json(config) | {
        "norm_topk_prob": all(normalized),
        "num_nextn_predict_layers": config.draft_layers,
        "rope_interleave": rope is not None and rope.interleaved,
    }
