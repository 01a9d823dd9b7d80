"""What `config.json` and the tensors of the deepseek families have in common.

Source: transformers 5.24, `models/deepseek_v2` and `models/deepseek_v3`; the names of the tensors
that predict further tokens: DeepSeek-V3's README_WEIGHTS.md. Latents are normed with an epsilon of
their own, whatever the file says of the other norms.
"""

from dataclasses import replace
from typing import Any

from jaxkv.spec import llama_json, rope_json
from jaxkv.spec.checkpoint import Place, Stacked, Stored, stored_parts
from jaxkv.spec.config import Attention, Experts, Latent, Mlp, ModelConfig, Rope, Routing
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson

READ = llama_json.READ | {
    "attention_bias",
    "first_k_dense_replace",
    "kv_lora_rank",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "routed_scaling_factor",
    "topk_group",
    "v_head_dim",
}
IGNORED = llama_json.IGNORED | {
    "auto_map": "code of the checkpoint's own is not run",
    "aux_loss_alpha": "training only",
    "ep_size": "how the experts are spread over devices",
    "head_dim": "it follows from qk_rope_head_dim",
    "output_router_logits": "what to return is the caller's choice",
    "pretraining_tp": "training only",
    "qk_head_dim": "it follows from qk_nope_head_dim and qk_rope_head_dim",
    "seq_aux": "training only",
}
NEUTRAL = COMMON_NEUTRAL | {"moe_layer_freq": 1}
LATENT_EPS = 1e-6
"""Of the norms of latents: the library's constant, which no key changes."""

_EXPERT_PARTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_LAYER_NAMES = {
    **{f"mlp.{part}": f"mlp.{given}" for part, given in _EXPERT_PARTS.items()},
    **{f"mlp.shared.{part}": f"mlp.shared_experts.{name}" for part, name in _EXPERT_PARTS.items()},
    "attn_norm": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.q_down": "self_attn.q_a_proj",
    "attn.q_norm": "self_attn.q_a_layernorm",
    "attn.q_up": "self_attn.q_b_proj",
    "attn.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attn.kv_norm": "self_attn.kv_a_layernorm",
    "attn.o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
}
_MTP_NAMES = {
    "embed_norm": "enorm",
    "stream_norm": "hnorm",
    "merge": "eh_proj",
    "norm": "shared_head.norm",
}
_SHARED_NAMES = ("embed_tokens", "shared_head.head")


def places(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight: one tensor an expert, keys beside values.

    The product up holds, head after head, the rows that make keys and those that make values.
    """
    found = llama_json.places(config, _LAYER_NAMES)
    for i, layer in enumerate(config.layers):
        a, name = layer.attention, f"model.layers.{i}"
        assert a.latent is not None  # all layers of these families have one
        both, nope = f"{name}.self_attn.kv_b_proj.weight", a.latent.nope_width
        end = nope + a.latent.value_width
        found[f"layers.{i}.attn.k_up.weight"] = Stored(both, (0, nope), groups=a.num_heads)
        found[f"layers.{i}.attn.v_up.weight"] = Stored(both, (nope, end), groups=a.num_heads)
        if isinstance(layer.mlp, Experts):
            found |= _expert_places(f"layers.{i}.mlp", f"{name}.mlp", layer.mlp.num_experts)
    return found | (_mtp_places(config) if config.has_mtp else {})


def draft_tensors(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the tensors that predict further tokens and are left out.

    They stand as further layers, each with an embedding, norms, a product and a head of its own.
    With `has_mtp` only the embedding and the head are left out: they are the model's.
    """
    count = config.num_layers
    layers = range(count, count + config.draft_layers)
    left_out = {f"model.layers.{i}.{name}.weight" for i in layers for name in _SHARED_NAMES}
    for i in () if config.has_mtp else layers:
        parts = (
            part for place in _layer_places(config, i).values() for part in stored_parts(place)
        )
        left_out |= {part.name for part in parts}
        left_out |= {f"model.layers.{i}.{name}.weight" for name in _MTP_NAMES.values()}
    return tuple(sorted(left_out))


def _mtp_places(config: ModelConfig) -> dict[str, Place]:
    i = config.num_layers
    found: dict[str, Place] = {
        f"mtp.{part}.weight": Stored(f"model.layers.{i}.{name}.weight")
        for part, name in _MTP_NAMES.items()
    }
    layer = _layer_places(config, i).items()
    return found | {f"mtp.layers.0.{part}": place for part, place in layer}


def _layer_places(config: ModelConfig, i: int) -> dict[str, Place]:
    """Return the places of the last layer's weights, were it the i-th."""
    more = (config.layers[-1],) * (i + 1 - config.num_layers)
    longer, start = replace(config, layers=config.layers + more, has_mtp=False), f"layers.{i}."
    found = places(longer).items()
    return {name.removeprefix(start): place for name, place in found if name.startswith(start)}


def attention(data: ConfigJson, *, interleaved: bool) -> Attention:
    """Return the attention that all layers have.

    Args:
        data: Of the whole file.
        interleaved: Whether rotary pairs are neighbors.

    Raises:
        ConfigError: A number is missing or something else, or there are fewer KV heads than heads.
    """
    heads, bias = data.whole("num_attention_heads"), data.flag("attention_bias", False)
    if data.whole("num_key_value_heads", heads) != heads:
        raise data.fault("num_key_value_heads", f"{heads}, as num_attention_heads", "Correct it.")
    rank, turned = data.whole("kv_lora_rank", 512), data.whole("qk_rope_head_dim", 64)
    block = rope_json.block_of(data)
    latent = Latent(
        rank=rank,
        nope_width=data.whole("qk_nope_head_dim", 128),
        value_width=data.whole("v_head_dim", 128),
        norm_eps=LATENT_EPS,
        query_rank=data.whole_or_off("q_lora_rank", 1536),
        mscale=block.number_or_off("mscale_all_dim", None),
    )
    rope = replace(rope_json.rope(data, turned), interleaved=interleaved)
    return Attention(heads, 1, rank + turned, None, rope, bias, bias, latent=latent)


def feed_forwards(
    data: ConfigJson, routing: Routing, *, top_k: int | None, normalized: bool, defaults: ConfigJson
) -> tuple[Mlp | Experts, ...]:
    """Return each layer's feed-forward: dense ones first, then experts.

    Args:
        data: Of the whole file.
        routing: Of the experts.
        top_k: Experts a token where the file does not say.
        normalized: Whether weights are divided by their sum.
        defaults: What an absent key means: the library's own numbers.

    Raises:
        ConfigError: A number is missing or something else.
    """
    key = "first_k_dense_replace"
    layers, dense = data.layers("num_hidden_layers"), count(data, key, defaults.data[key])
    expert = llama_json.mlp(data, key="moe_intermediate_size")
    shared = data.whole("n_shared_experts", defaults.whole("n_shared_experts"))
    experts = Experts(
        num_experts=data.whole("n_routed_experts", defaults.whole("n_routed_experts")),
        top_k=data.whole("num_experts_per_tok", top_k),
        normalized=normalized,
        expert=expert,
        routing=routing,
        shared=replace(expert, width=shared * expert.width),
    )
    plain = llama_json.mlp(data)
    return tuple(plain if i < dense else experts for i in range(layers))


def count(data: ConfigJson, key: str, default: int) -> int:
    """Return a whole number that may be 0.

    Raises:
        ConfigError: It is something else.
    """
    value = data.data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10_000:
        raise data.fault(key, "a whole number from 0 to 10000", "Is the file complete?")
    return value


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Return what `config.json` says of the parts that both families share.

    Args:
        config: Of the model; `write_huggingface` checks that what is written is read as this.
    """
    a = config.layers[0].attention
    latent, rope = a.latent, a.rope
    assert latent is not None
    assert rope is not None
    dense = [layer.mlp for layer in config.layers if isinstance(layer.mlp, Mlp)]
    keys: dict[str, Any] = {
        "attention_bias": a.qkv_bias,
        "first_k_dense_replace": len(dense),
        "head_dim": rope.rotary_dim,
        "kv_lora_rank": latent.rank,
        "num_key_value_heads": a.num_heads,
        "q_lora_rank": latent.query_rank,
        "qk_nope_head_dim": latent.nope_width,
        "qk_rope_head_dim": rope.rotary_dim,
        "rope_parameters": _rope_json(rope, latent),
        "v_head_dim": latent.value_width,
    }
    if dense:
        keys["intermediate_size"] = dense[0].width
    for layer in config.layers:
        if isinstance(layer.mlp, Experts):
            keys |= _experts_json(layer.mlp)
    return llama_json.to_json(config) | keys


def _experts_json(m: Experts) -> dict[str, Any]:
    assert m.routing is not None
    assert m.shared is not None
    return {
        "moe_intermediate_size": m.expert.width,
        "n_group": m.routing.num_groups,
        "n_routed_experts": m.num_experts,
        "n_shared_experts": m.shared.width // m.expert.width,
        "num_experts_per_tok": m.top_k,
        "routed_scaling_factor": m.routing.scale,
        "topk_group": m.routing.top_groups,
    }


def _rope_json(rope: Rope, latent: Latent) -> dict[str, Any]:
    block = rope_json.to_json(rope)
    return block if latent.mscale is None else block | {"mscale_all_dim": latent.mscale}


def _expert_places(canonical: str, name: str, num_experts: int) -> dict[str, Place]:
    found: dict[str, Place] = {
        f"{canonical}.router.weight": Stored(f"{name}.gate.weight"),
        f"{canonical}.router.bias": Stored(f"{name}.gate.e_score_correction_bias"),
    }
    for part, given in _EXPERT_PARTS.items():
        each = (Stored(f"{name}.experts.{z}.{given}.weight") for z in range(num_experts))
        found[f"{canonical}.experts.{part}.weight"] = Stacked(tuple(each))
    return found
