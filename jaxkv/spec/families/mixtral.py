"""The mixtral family: mistral's attention, and experts whose weights sum to 1.

Source: transformers 5.24, `models/mixtral`. In its files w1 is the gate, w3 the up and w2 the down
projection.
"""

from typing import Any

from jaxkv.spec import llama_json, rope_json
from jaxkv.spec.checkpoint import Place, Stacked, Stored
from jaxkv.spec.config import Experts, ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson

HUGGINGFACE_ARCHITECTURE = "MixtralForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = llama_json.READ | {
    "head_dim",
    "num_experts_per_tok",
    "num_local_experts",
    "sliding_window",
}
HUGGINGFACE_IGNORED = llama_json.IGNORED | {
    "output_router_logits": "what to return is the caller's choice",
    "router_aux_loss_coef": "training only",
    "router_jitter_noise": "training only",
}
_EXPERT_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}
_DEFAULT_THETA = 1_000_000.0
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight: one tensor an expert."""
    places = llama_json.places(config)
    for i, layer in enumerate(config.layers):
        name, mlp = f"model.layers.{i}.block_sparse_moe", layer.mlp
        assert isinstance(mlp, Experts)  # all layers of this family have them
        places[f"layers.{i}.mlp.router.weight"] = Stored(f"{name}.gate.weight")
        for part, given in _EXPERT_NAMES.items():
            parts = (f"{name}.experts.{z}.{given}.weight" for z in range(mlp.num_experts))
            places[f"layers.{i}.mlp.experts.{part}.weight"] = Stacked(tuple(map(Stored, parts)))
    return places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `mixtral` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    width, heads = data.whole("hidden_size"), data.whole("num_attention_heads")
    head_dim = data.whole("head_dim", width // heads)
    attention = llama_json.attention(
        data,
        window=data.whole_or_off("sliding_window", None),
        rope=rope_json.rope(data, head_dim, theta=_DEFAULT_THETA),
    )
    experts = Experts(
        num_experts=data.whole("num_local_experts", 8),
        top_k=data.whole("num_experts_per_tok", 2),
        normalized=True,
        expert=llama_json.mlp(data),
    )
    layers = data.layers("num_hidden_layers")
    return llama_json.decoder(data, "mixtral", (attention,) * layers, (experts,) * layers, eps=1e-5)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    first, mlp = config.layers[0].attention, config.layers[0].mlp
    assert isinstance(mlp, Experts)  # all layers of this family have them
    return llama_json.to_json(config) | {
        "num_experts_per_tok": mlp.top_k,
        "num_local_experts": mlp.num_experts,
        "sliding_window": first.window,
    }
