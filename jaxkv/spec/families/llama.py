"""The llama family: RMS norm, rotary positions, grouped queries, silu-gated feed-forward, no bias.

Sources: the keys and tensor names of `gguf.constants` (gguf 0.19), and what llama.cpp makes of them
for arch `llama`; transformers 5.24, `models/llama`.
"""

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from jaxkv.spec import rope_json
from jaxkv.spec.checkpoint import Stored
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.config_json import ACTIVATIONS, COMMON_IGNORED, COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.errors import ConfigError

GGUF_INTERLEAVED_QK = True
"""GGUF files of this family hold the rows of q and k permuted, pair by pair within each head: row
2i of a head is channel i, row 2i + 1 is channel i + H/2. Rotary positions here turn (i, i + H/2),
so each twin undoes it, by itself."""

_MODEL_NAMES = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "attn_norm.weight",
    "attn_q.weight": "attn.q.weight",
    "attn_k.weight": "attn.k.weight",
    "attn_v.weight": "attn.v.weight",
    "attn_output.weight": "attn.o.weight",
    "ffn_norm.weight": "mlp_norm.weight",
    "ffn_gate.weight": "mlp.gate.weight",
    "ffn_up.weight": "mlp.up.weight",
    "ffn_down.weight": "mlp.down.weight",
}
_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
}
# Keys that change the function unless they hold this value.
_NEUTRAL = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none",
}
_WITHOUT_EFFECT = {"rope.scaling.finetuned", "rope.scaling.original_context_length"}
_REFUSED_TENSORS = {"rope_freqs.weight": "frequencies of scaled rotary positions"}

HUGGINGFACE_PREFIX = "model."
"""Files saved from the bare decoder leave it out."""
HUGGINGFACE_IGNORED_TENSORS = {
    r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "rotary frequencies follow from the config"
}

_HUGGINGFACE_MODEL_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_HUGGINGFACE_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_HUGGINGFACE_READ = {
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
    *rope_json.KEYS,
}
_HUGGINGFACE_IGNORED = COMMON_IGNORED | {
    "attention_dropout": "training only",
    "pretraining_tp": "in which slices the same products are computed",
}


def places_from_huggingface(config: ModelConfig) -> dict[str, Stored]:
    """Return where a Hugging Face checkpoint keeps each weight, the head's too when it is tied."""
    layers = {
        f"layers.{i}.{name}.{kind}": f"model.layers.{i}.{given}.{kind}"
        for i in range(config.num_layers)
        for name, given in _HUGGINGFACE_LAYER_NAMES.items()
        for kind in ("weight", "bias")
    }
    return {name: Stored(given) for name, given in (_HUGGINGFACE_MODEL_NAMES | layers).items()}


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `llama` describes.

    Absent optional keys have transformers' defaults: as many KV heads as heads, heads as wide as
    width / heads, base 10,000, silu, no bias, an untied head.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(_HUGGINGFACE_READ, _HUGGINGFACE_IGNORED, COMMON_NEUTRAL)
    width, heads = data.whole("hidden_size"), data.whole("num_attention_heads")
    if "head_dim" not in data.data and width % heads:
        raise data.fault(
            "hidden_size", f"a multiple of num_attention_heads {heads}", "Set head_dim."
        )
    head_dim = data.whole("head_dim", width // heads)
    bias, mlp_bias = data.flag("attention_bias", False), data.flag("mlp_bias", False)
    attention = Attention(
        num_heads=heads,
        num_kv_heads=data.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        window=None,
        rope=rope_json.rope(data, head_dim),
        qkv_bias=bias,
        out_bias=bias,
    )
    activation = data.choice("hidden_act", ACTIVATIONS, "silu")
    mlp = Mlp(data.whole("intermediate_size"), activation, gated=True, bias=mlp_bias)
    return ModelConfig(
        family="llama",
        vocab_size=data.whole("vocab_size"),
        width=width,
        max_positions=data.whole("max_position_embeddings"),
        layers=(Layer(attention, mlp),) * data.layers("num_hidden_layers"),
        norm=Norm(kind="rms", eps=data.number("rms_norm_eps", 1e-6)),
        learned_positions=False,
        tied_head=data.flag("tie_word_embeddings", False),
        head_bias=False,
    )


def names_from_gguf(config: ModelConfig) -> dict[str, str]:
    """Return the canonical name of every GGUF tensor name that a model of `config` can have."""
    layers = {
        f"blk.{i}.{given}": f"layers.{i}.{name}"
        for i in range(config.num_layers)
        for given, name in _LAYER_NAMES.items()
    }
    return _MODEL_NAMES | layers


def config_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelConfig:
    """Return the config that GGUF metadata of arch `llama` describes.

    Absent optional keys have llama.cpp's defaults: as many KV heads as heads, heads as wide as
    width / heads, all of a head turned, base 10,000, the vocabulary as long as the tokenizer's. The
    head is tied if `output.weight` is absent.

    Args:
        metadata: Key -> value of the whole file.
        tensor_names: GGUF names of the tensors in the file.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    _refuse_unsupported(metadata, tensor_names)
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    heads, width = _whole(metadata, "attention.head_count"), _whole(metadata, "embedding_length")
    head_dim = _head_dim(metadata, heads, width)
    attention = Attention(
        num_heads=heads,
        num_kv_heads=_whole(metadata, "attention.head_count_kv", heads),
        head_dim=head_dim,
        window=None,
        rope=Rope(_number(metadata, "rope.freq_base", 10_000.0), _rotary_dim(metadata, head_dim)),
        qkv_bias=False,
        out_bias=False,
    )
    mlp = Mlp(_whole(metadata, "feed_forward_length"), activation="silu", gated=True, bias=False)
    return ModelConfig(
        family="llama",
        vocab_size=_whole(metadata, "vocab_size", num_tokens),
        width=width,
        max_positions=_whole(metadata, "context_length"),
        layers=(Layer(attention, mlp),) * _num_layers(metadata, len(tensor_names)),
        norm=Norm(kind="rms", eps=_number(metadata, "attention.layer_norm_rms_epsilon")),
        learned_positions=False,
        tied_head="output.weight" not in tensor_names,
        head_bias=False,
    )


def _refuse_unsupported(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> None:
    for key, value in metadata.items():
        short = key.removeprefix("llama.")
        if short == key or short in _READ or short in _WITHOUT_EFFECT:
            continue
        if short not in _NEUTRAL:
            raise ConfigError(
                f"config_from_gguf: {key} is {reprlib.repr(value)}, expected no such key (it may "
                "change the "
                "function). "
                "Take a checkpoint without it."
            )
        if value != _NEUTRAL[short]:
            raise ConfigError(
                f"config_from_gguf: {key} is {reprlib.repr(value)}, expected {_NEUTRAL[short]!r} "
                "(the only "
                "supported value). "
                "Take a checkpoint without it."
            )
    for name, meaning in _REFUSED_TENSORS.items():
        if name in tensor_names:
            raise ConfigError(
                f"config_from_gguf: tensor {name!r} is present, expected none ({meaning}, not "
                "supported). "
                "Take a checkpoint without it."
            )


def _num_layers(metadata: Mapping[str, Any], num_tensors: int) -> int:
    num_layers, most = _whole(metadata, "block_count"), num_tensors // len(_LAYER_NAMES)
    if num_layers > most:
        raise ConfigError(
            f"config_from_gguf: llama.block_count is {num_layers}, expected at most {most} with "
            f"{num_tensors} tensors ({len(_LAYER_NAMES)} a layer). Is the file complete?"
        )
    return num_layers


def _head_dim(metadata: Mapping[str, Any], heads: int, width: int) -> int:
    if "llama.attention.key_length" not in metadata and width % heads:
        raise ConfigError(
            f"config_from_gguf: llama.embedding_length is {width}, expected a multiple of "
            f"llama.attention.head_count {heads}. Set llama.attention.key_length."
        )
    head_dim = _whole(metadata, "attention.key_length", width // heads)
    value_dim = _whole(metadata, "attention.value_length", head_dim)
    if value_dim != head_dim:
        raise ConfigError(
            f"config_from_gguf: llama.attention.value_length is {value_dim}, expected {head_dim} "
            "(as wide as keys). Take a checkpoint whose keys and values are equally wide."
        )
    return head_dim


def _rotary_dim(metadata: Mapping[str, Any], head_dim: int) -> int:
    # The converter permutes whole heads, and llama.cpp then turns the first rows: with fewer than H
    # of them turned, no half-split rotation computes the same function.
    rotary_dim = _whole(metadata, "rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise ConfigError(
            f"config_from_gguf: llama.rope.dimension_count is {rotary_dim}, expected {head_dim} "
            "(the whole head, whose rows this format permutes). Take a checkpoint that turns "
            "whole heads."
        )
    return rotary_dim


def _value(metadata: Mapping[str, Any], key: str, default: float | None) -> Any:
    value = metadata.get(f"llama.{key}", default)
    if value is None:
        raise ConfigError(
            f"config_from_gguf: llama.{key} is missing, expected a number. Is the file complete?"
        )
    return value


def _whole(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = _value(metadata, key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"config_from_gguf: llama.{key} is {reprlib.repr(value)}, expected a whole number of "
            "at least 1. "
            "Is the file complete?"
        )
    return value


def _number(metadata: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = _value(metadata, key, default)
    if not isinstance(value, float) or not value > 0:
        raise ConfigError(
            f"config_from_gguf: llama.{key} is {reprlib.repr(value)}, expected a number above 0. "
            "Is the file "
            "complete?"
        )
    return value
