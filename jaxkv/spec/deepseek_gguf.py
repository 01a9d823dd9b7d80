"""GGUF files of arch `deepseek2`, which hold deepseek v2's and v3's models.

Newer files keep the product up from the latents in two tensors, one matrix a head, the one to keys
turned for the absorbed form; older ones in one tensor, as config.json's directories do. Their
attention.head_count_kv is then 1, or as many as heads.
Sources: keys and tensor names of `gguf.constants` (gguf 0.19), and what llama.cpp makes of them:
all norms have one epsilon, yarn's factor on cos and sin is 1 and its squared one on the scores
1 + yarn_log_multiplier * ln(factor), absent gating means softmax.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import gguf_keys, llama_gguf
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import (
    Attention,
    Experts,
    Latent,
    Layer,
    Mlp,
    ModelConfig,
    Norm,
    Rope,
    Routing,
    YarnScaling,
)
from jaxkv.spec.gguf_keys import GgufKeys

READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.layer_norm_rms_epsilon",
    "attention.q_lora_rank",
    "attention.value_length",
    "attention.value_length_mla",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "feed_forward_length",
    "leading_dense_block_count",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "vocab_size",
}
# Experts and the factor on the scores are read here.
NEUTRAL = {key: value for key, value in gguf_keys.NEUTRAL.items() if key not in READ}
# Norm, queries, latent, its norm, one or two products up, output, norm, three of the feed-forward.
_TENSORS_A_LAYER = 10
_GATINGS = {1: "softmax", 2: "sigmoid"}
_LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.q_down": "attn_q_a",
    "attn.q_norm": "attn_q_a_norm",
    "attn.q_up": "attn_q_b",
    "attn.kv_down": "attn_kv_a_mqa",
    "attn.kv_norm": "attn_kv_a_norm",
    "attn.o": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.router": "ffn_gate_inp",
    **{f"mlp.{part}": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"mlp.shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}


def config(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelConfig:
    """Return the config that GGUF metadata of arch `deepseek2` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensor_names: GGUF names of the tensors in the file.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "deepseek2")
    keys.check(READ, NEUTRAL, tensor_names)
    attention, sigmoid = _attention(keys), _gating(keys) == "sigmoid"
    layers = llama_gguf.num_layers(keys, tensor_names, _TENSORS_A_LAYER)
    dense = keys.metadata.get("deepseek2.leading_dense_block_count", 0)
    if not isinstance(dense, int) or not 0 <= dense <= layers:
        raise keys.fault("leading_dense_block_count", f"0 to {layers}", "Is the file complete?")
    plain = Mlp(keys.whole("feed_forward_length"), "silu", gated=True, bias=False)
    experts = _experts(keys) if dense < layers else plain
    return ModelConfig(
        family="deepseek_v3" if sigmoid else "deepseek_v2",
        vocab_size=llama_gguf.vocab_size(keys),
        width=keys.whole("embedding_length"),
        max_positions=keys.whole("context_length"),
        layers=tuple(Layer(attention, plain if i < dense else experts) for i in range(layers)),
        norm=Norm(kind="rms", eps=keys.number("attention.layer_norm_rms_epsilon")),
        learned_positions=False,
        tied_head="output.weight" not in tensor_names,
        head_bias=False,
    )


def places(config: ModelConfig, *, split: bool = True) -> dict[str, Place]:
    """Return where a file keeps each weight.

    Args:
        config: Of the model.
        split: Whether the product up stands in two tensors, as in newer files.
    """
    found: dict[str, Place] = {
        "embed.weight": Stored("token_embd.weight"),
        "norm.weight": Stored("output_norm.weight"),
        "head.weight": Stored("output.weight"),
    }
    for i, layer in enumerate(config.layers):
        a, block = layer.attention, f"blk.{i}"
        for part, given in _LAYER_NAMES.items():
            found[f"layers.{i}.{part}.weight"] = Stored(f"{block}.{given}.weight")
        found[f"layers.{i}.mlp.router.bias"] = Stored(f"{block}.exp_probs_b.bias")
        assert a.latent is not None  # all layers of this architecture have one
        nope, end, n = a.latent.nope_width, a.latent.nope_width + a.latent.value_width, a.num_heads
        whole = f"{block}.attn_kv_b.weight"
        keys, values = Stored(whole, (0, nope), groups=n), Stored(whole, (nope, end), groups=n)
        if split:
            keys = Stored(f"{block}.attn_k_b.weight", in_out=True, matrices=n)
            values = Stored(f"{block}.attn_v_b.weight", matrices=n)
        found[f"layers.{i}.attn.k_up.weight"], found[f"layers.{i}.attn.v_up.weight"] = keys, values
    return found


def _attention(keys: GgufKeys) -> Attention:
    heads, rank = keys.whole("attention.head_count"), keys.whole("attention.kv_lora_rank")
    if keys.whole("attention.head_count_kv", heads) not in (1, heads):
        raise keys.fault("attention.head_count_kv", f"1 or {heads}", "Is the file complete?")
    turned = keys.whole("rope.dimension_count")
    of = "_mla" if keys.has("attention.key_length_mla") else ""
    if of:
        _check_kept(keys, rank, turned)
    query, value = (keys.whole(f"attention.{each}_length{of}") for each in ("key", "value"))
    if query <= turned:
        wanted = f"above {turned} (rope.dimension_count)"
        raise keys.fault(f"attention.key_length{of}", wanted, "Is the file complete?")
    has_rank = keys.has("attention.q_lora_rank")
    scaling, mscale = _scaling(keys)
    latent = Latent(
        rank=rank,
        nope_width=query - turned,
        value_width=value,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        query_rank=keys.whole("attention.q_lora_rank") if has_rank else None,
        mscale=mscale,
    )
    base = keys.number("rope.freq_base", 10_000.0)
    rope = Rope(base, turned, scaling, interleaved=True)
    return Attention(heads, 1, rank + turned, None, rope, False, False, latent=latent)


def _check_kept(keys: GgufKeys, rank: int, turned: int) -> None:
    for key, kept, parts in (
        ("attention.key_length", rank + turned, "attention.kv_lora_rank + rope.dimension_count"),
        ("attention.value_length", rank, "attention.kv_lora_rank"),
    ):
        if keys.whole(key, kept) != kept:
            raise keys.fault(key, f"{kept} ({parts})", "Is the file complete?")


def _scaling(keys: GgufKeys) -> tuple[YarnScaling | None, float | None]:
    # A factor alone would be a linear scaling.
    usual = "linear" if keys.metadata.get("deepseek2.rope.scaling.factor", 1.0) != 1.0 else "none"
    if keys.choice("rope.scaling.type", ("none", "yarn"), usual) == "none":
        return None, None
    factor = keys.number("rope.scaling.factor")
    context = keys.whole("context_length")
    original = keys.whole("rope.scaling.original_context_length", context)
    yarn = YarnScaling(
        factor,
        original,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    if not keys.has("rope.scaling.yarn_log_multiplier"):
        return replace(yarn, attention_factor=1.0), None
    # The file holds 0.1 * mscale.
    mscale = 10 * keys.number("rope.scaling.yarn_log_multiplier")
    return replace(yarn, mscale=mscale, mscale_all_dim=mscale), mscale


def _gating(keys: GgufKeys) -> str:
    number = keys.whole("expert_gating_func", 1)
    if number not in _GATINGS:
        raise keys.fault("expert_gating_func", "1 (softmax) or 2 (sigmoid)", "Take another file.")
    return _GATINGS[number]


def _experts(keys: GgufKeys) -> Experts:
    sigmoid, groups = _gating(keys) == "sigmoid", keys.whole("expert_group_count", 1)
    if groups > 1 and not sigmoid:
        raise keys.fault(
            "expert_group_count",
            "1 with softmax as expert_gating_func (programs disagree about a group's score)",
            "Take the directory with config.json.",
        )
    expert = Mlp(keys.whole("expert_feed_forward_length"), "silu", gated=True, bias=False)
    routing = Routing(
        scoring="sigmoid" if sigmoid else "softmax",
        choice_bias=sigmoid,
        num_groups=groups,
        top_groups=keys.whole("expert_group_used_count", groups),
        group_score="top2" if sigmoid else "max",
        scale=keys.number("expert_weights_scale", 1.0),
    )
    shared = keys.whole("expert_shared_count") * expert.width
    return Experts(
        num_experts=keys.whole("expert_count"),
        top_k=keys.whole("expert_used_count"),
        normalized=bool(keys.metadata.get("deepseek2.expert_weights_norm", False)),
        expert=expert,
        routing=routing,
        shared=Mlp(shared, "silu", gated=True, bias=False),
    )
