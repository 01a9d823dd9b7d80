"""The gemma3 family: gemma's parts, norms on queries and keys, two rotary bases, mostly windows.

Source: transformers 5.24, `models/gemma3`, the text model: every sixth layer sees all earlier
tokens unless the file says which, layers with a window turn by another base, and a scaling holds
for those without.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import gemma_json, llama_gguf, llama_json, rope_json
from jaxkv.spec.checkpoint import Place
from jaxkv.spec.config import Attention, ModelConfig, Norm, Rope
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.gguf_keys import NEUTRAL, GgufKeys
from jaxkv.spec.gguf_rope import Tensors

GGUF_INTERLEAVED_QK = False
"""Only arch `llama` permutes rows."""
HUGGINGFACE_ARCHITECTURE = "Gemma3ForCausalLM"
HUGGINGFACE_PREFIX = llama_json.PREFIX
HUGGINGFACE_IGNORED_TENSORS = llama_json.IGNORED_TENSORS
HUGGINGFACE_READ = gemma_json.READ | {
    "_sliding_window_pattern",
    "rope_local_base_freq",
    "sliding_window_pattern",
}
# The library reads the first and computes nothing with it.
HUGGINGFACE_NEUTRAL = gemma_json.NEUTRAL | {"attn_logit_softcapping": None}
_GGUF_NAMES = llama_gguf.LAYER_NAMES | {
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn_post_norm": "post_attention_norm",
    "mlp_post_norm": "post_ffw_norm",
}
GGUF_ROPE_TENSORS: tuple[str, ...] = ()
GGUF_READ = llama_gguf.READ | {
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
}
# What llama.cpp takes where the file leaves it out, as published files do.
_PATTERN, _SLIDING_THETA, _LAYERS_OF_27B = 6, 10_000.0, 62
_FULL, _SLIDING = "full_attention", "sliding_attention"
HUGGINGFACE_IGNORED = gemma_json.IGNORED

places_from_huggingface = gemma_json.places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `gemma3_text` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    norm = Norm(kind="rms", eps=data.number("rms_norm_eps", 1e-6), plus_one=True)
    full, sliding = _ropes(data, data.whole("head_dim", 256))
    attentions = tuple(
        gemma_json.attention(
            data, window=window, rope=full if window is None else sliding, qk_norm=norm
        )
        for window in _windows(data)
    )
    cap = data.number_or_off("final_logit_softcapping", None)
    return gemma_json.decoder(data, "gemma3", attentions, cap)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    blocks = {
        _FULL if layer.attention.window is None else _SLIDING: layer.attention.rope
        for layer in config.layers
    }
    ropes = {kind: rope_json.to_json(rope) for kind, rope in blocks.items()}
    return gemma_json.to_json(config) | {"rope_parameters": ropes}


def _windows(data: ConfigJson) -> tuple[int | None, ...]:
    key = "sliding_window_pattern"
    pattern = data.whole(key, data.whole(f"_{key}", 6))
    slides = tuple((i + 1) % pattern != 0 for i in range(data.layers("num_hidden_layers")))
    return llama_json.windows(data, slides, data.whole_or_off("sliding_window", 4096))


def _ropes(data: ConfigJson, head_dim: int) -> tuple[Rope, Rope]:
    """Return the rotary positions of layers without a window, and of those with one."""
    block = rope_json.block_of(data)
    blocks = {_FULL: block, _SLIDING: ConfigJson({}, block.owner)}
    if {_FULL, _SLIDING} & set(block.data):
        block.check_keys({_FULL, _SLIDING}, {}, {})
        blocks = {
            kind: ConfigJson(block.data.get(kind, {}), f"{block.owner}.{kind}") for kind in blocks
        }
    full = rope_json.rope(data, head_dim, block=blocks[_FULL], theta=1_000_000.0)
    key = "rope_local_base_freq"
    return full, rope_json.rope(data, head_dim, block=blocks[_SLIDING], theta_key=key)


def places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where a GGUF file keeps each weight."""
    return llama_gguf.places(config, _GGUF_NAMES)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `gemma3` describes.

    Its norms hold 1 + weight already. It leaves out which layers have no window (every sixth), the
    base of those with one (10,000) and the scale of the scores (that of the head width, but of
    width / heads in the model of 62 layers).

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "gemma3")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    layers = llama_gguf.num_layers(keys, tensors, len(_GGUF_NAMES))
    pattern = keys.whole("attention.sliding_window_pattern", _PATTERN)
    full, sliding = _gguf_attentions(keys, tensors)
    attentions = tuple(full if (i + 1) % pattern == 0 else sliding for i in range(layers))
    plain = llama_gguf.decoder(keys, attentions, tensors, activation="gelu_tanh")
    layers_with_norms = tuple(replace(layer, post_norms=True) for layer in plain.layers)
    return replace(plain, layers=layers_with_norms, scaled_embedding=True)


def _gguf_attentions(keys: GgufKeys, tensors: Tensors) -> tuple[Attention, Attention]:
    """Return the attention of layers without a window, and of those with one."""
    norm = Norm(kind="rms", eps=keys.number("attention.layer_norm_rms_epsilon"))
    plain = llama_gguf.attention(keys, tensors, qk_norm=norm)
    if keys.whole("block_count") == _LAYERS_OF_27B:
        width = keys.whole("embedding_length") / keys.whole("attention.head_count")
        plain = replace(plain, score_width=width)
    assert plain.rope is not None  # `llama_gguf.attention` gives every attention one
    window = keys.whole("attention.sliding_window")
    theta = keys.number("rope.freq_base_swa", _SLIDING_THETA)
    return plain, replace(plain, window=window, rope=Rope(theta, plain.rope.rotary_dim))
