"""The qwen3_moe family: qwen3's attention, and experts in place of some or all feed-forwards.

Source: transformers 5.24, `models/qwen3_moe`. Its windows, where switched on, hold for all layers.
"""

from typing import Any

from jaxkv.spec import llama_json
from jaxkv.spec.checkpoint import Place, Stacked, Stored
from jaxkv.spec.config import Experts, Mlp, ModelConfig, Norm
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson

HUGGINGFACE_ARCHITECTURE = "Qwen3MoeForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = llama_json.READ | {
    "attention_bias",
    "decoder_sparse_step",
    "head_dim",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "sliding_window",
    "use_sliding_window",
}
HUGGINGFACE_IGNORED = llama_json.IGNORED | {
    "max_window_layers": "windows of this family hold for all layers",
    "output_router_logits": "what to return is the caller's choice",
    "router_aux_loss_coef": "training only",
}
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight: one tensor an expert."""
    places = llama_json.places(config)
    for i, layer in enumerate(config.layers):
        if isinstance(layer.mlp, Experts):
            name = f"model.layers.{i}.mlp"
            places[f"layers.{i}.mlp.router.weight"] = Stored(f"{name}.gate.weight")
            for part in ("gate", "up", "down"):
                places[f"layers.{i}.mlp.experts.{part}.weight"] = Stacked(
                    tuple(
                        Stored(f"{name}.experts.{z}.{part}_proj.weight")
                        for z in range(layer.mlp.num_experts)
                    )
                )
    return places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `qwen3_moe` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    bias = data.flag("attention_bias", False)
    used = data.flag("use_sliding_window", False)
    attention = llama_json.attention(
        data,
        window=data.whole_or_off("sliding_window", 4096) if used else None,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=Norm(kind="rms", eps=data.number("rms_norm_eps", 1e-6)),
    )
    mlps = _mlps(data)
    return llama_json.decoder(data, "qwen3_moe", (attention,) * len(mlps), mlps)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    attention = config.layers[0].attention
    dense = {i: each.mlp for i, each in enumerate(config.layers) if isinstance(each.mlp, Mlp)}
    keys: dict[str, Any] = {
        "attention_bias": attention.qkv_bias,
        "mlp_only_layers": sorted(dense),
        "sliding_window": attention.window,
        "use_sliding_window": attention.window is not None,
    }
    for mlp in dense.values():
        keys["intermediate_size"] = mlp.width
    for layer in config.layers:
        if isinstance(layer.mlp, Experts):
            keys |= {
                "moe_intermediate_size": layer.mlp.expert.width,
                "norm_topk_prob": layer.mlp.normalized,
                "num_experts": layer.mlp.num_experts,
                "num_experts_per_tok": layer.mlp.top_k,
            }
    return llama_json.to_json(config) | keys


def _mlps(data: ConfigJson) -> tuple[Mlp | Experts, ...]:
    dense, step = llama_json.mlp(data), data.whole("decoder_sparse_step", 1)
    only, layers = data.data.get("mlp_only_layers", []), data.layers("num_hidden_layers")
    if not isinstance(only, list) or any(each not in range(layers) for each in only):
        raise data.fault("mlp_only_layers", f"numbers of layers below {layers}", "Correct it.")
    # Published files have the first name, those that the library saves now the second.
    key = "num_experts" if "num_experts" in data.data else "num_local_experts"
    experts = Experts(
        num_experts=data.whole(key),
        top_k=data.whole("num_experts_per_tok", 8),
        normalized=data.flag("norm_topk_prob", False),
        expert=llama_json.mlp(data, key="moe_intermediate_size"),
    )
    is_dense = [i in only or (i + 1) % step for i in range(layers)]
    return tuple(dense if each else experts for each in is_dense)
