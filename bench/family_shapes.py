"""Decoders of every family, made to move as many bytes in a step of decode as a llama of 100 M.

A step reads each matrix once (of the embedding only if the head is tied to it, of the experts only
those that its tokens chose), and the keys and values that it uses.
"""

import math
import zlib
from functools import partial
from typing import Any

import numpy as np

from jaxkv.spec import memory
from jaxkv.spec.checkpoint import Checkpoint, Weights
from jaxkv.spec.config import Experts, ModelConfig
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.families import huggingface_family
from jaxkv.spec.weight_shapes import weight_shapes

Json = dict[str, Any]
BASELINE = "llama"
USED = 512
# A multiple of this is what a hidden width is, here as in published models.
_STEP = 8
# Longer than the texts, so that layers with and without one read alike.
_WINDOW = 1024
_SIZES: Json = {
    "vocab_size": 16384,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_FACTORS = [1.0 + i / 32 for i in range(32)]
_LONG = {"rope_type": "longrope", "short_factor": _FACTORS, "long_factor": _FACTORS[::-1]}
_UNTIED = {"tie_word_embeddings": False}
_ROUTED = {"num_experts": 16, "num_experts_per_tok": 4}
_GPT2: Json = {
    "vocab_size": 16384,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 2048,
}
_NEOX = {key: _SIZES[key] for key in _SIZES if key not in ("head_dim", "num_key_value_heads")}
_NEOX.pop("rope_theta")
_SHAPES: dict[str, tuple[str, str, Json]] = {
    "llama": ("llama", "intermediate_size", _SIZES),
    "llama-dynamic": (
        "llama",
        "intermediate_size",
        _SIZES | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    ),
    "mistral": ("mistral", "intermediate_size", _SIZES | _UNTIED | {"sliding_window": _WINDOW}),
    "mixtral": ("mixtral", "intermediate_size", _SIZES | _UNTIED | {"sliding_window": None}),
    "qwen2": ("qwen2", "intermediate_size", _SIZES),
    "qwen3": ("qwen3", "intermediate_size", _SIZES),
    "qwen3_moe": (
        "qwen3_moe",
        "moe_intermediate_size",
        _SIZES | _UNTIED | _ROUTED | {"intermediate_size": 768, "norm_topk_prob": True},
    ),
    "gemma2": ("gemma2", "intermediate_size", _SIZES | {"sliding_window": _WINDOW}),
    "gemma3": ("gemma3_text", "intermediate_size", _SIZES | {"sliding_window": _WINDOW}),
    "phi3": ("phi3", "intermediate_size", _SIZES | _UNTIED | {"rope_scaling": _LONG}),
    "gpt_neox": ("gpt_neox", "intermediate_size", _NEOX | _UNTIED),
    "gpt2": ("gpt2", "n_inner", _GPT2),
}
FAMILIES = tuple(_SHAPES)
_LLAMA_HIDDEN = 2480


def shape_of(family: str, *, batch: int, used: int = USED) -> ModelConfig:
    """Return the family's decoder that moves as many bytes as llama's, to a step of its width.

    Args:
        family: Of `FAMILIES`.
        batch: Rows of the step.
        used: Tokens that each row holds.
    """
    if family == BASELINE:
        return _config(family, _LLAMA_HIDDEN)
    wanted = moved_bytes(shape_of(BASELINE, batch=batch), batch=batch, used=used)
    low, high = 1, 8192 // _STEP
    while high - low > 1:
        middle = (low + high) // 2
        moved = moved_bytes(_config(family, middle * _STEP), batch=batch, used=used)
        low, high = (middle, high) if moved <= wanted else (low, middle)
    return _config(family, low * _STEP)


def moved_bytes(
    config: ModelConfig, *, batch: int, used: int, touched: float | None = None
) -> float:
    """Return the bytes that a step of decode moves in float32.

    Args:
        config: The decoder's.
        batch: Rows of the step.
        used: Tokens that each row holds.
        touched: Experts of a layer that the rows chose together, on average; by default as many as
            are expected when each row chooses for itself and all alike.
    """
    elements = 0.0
    for name, shape in weight_shapes(config).items():
        whole = math.prod(shape)
        if name == "embed.weight" and not config.tied_head:
            whole = batch * shape[1]
        if name == "position.weight":
            whole = batch * shape[1]
        elements += whole * (_share(config, batch, touched) if ".experts." in name else 1.0)
    kv = memory.model_cache_bytes(config, batch=batch, tokens=used, itemsize=4)
    return 4 * elements + kv


def checkpoint_of(config: ModelConfig, *, seed: int = 0) -> Checkpoint:
    """Return random float32 weights of a decoder, drawn as they are read; none costs more time."""
    center = 0.0 if config.norm.plus_one else 1.0
    entries = {
        name: (shape, partial(_drawn, name, shape, center, seed))
        for name, shape in weight_shapes(config).items()
    }
    return Checkpoint(
        config=config,
        weights=Weights(entries),
        interleaved_qk=False,
        end_ids=(),
        tokenizer_data=None,
        name=config.family,
    )


def _drawn(name: str, shape: tuple[int, ...], center: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    noise = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return np.float32(0.1) * noise + np.float32(center if "norm" in name else 0.0)
    return noise * np.float32(shape[-1] ** -0.5)


def _config(family: str, hidden: int) -> ModelConfig:
    model_type, key, keys = _SHAPES[family]
    data = ConfigJson(keys | {key: hidden})
    return huggingface_family(model_type).config_from_huggingface(data)


def _share(config: ModelConfig, batch: int, touched: float | None) -> float:
    """Return which share of a layer's experts the rows of a step read."""
    experts = next(layer.mlp for layer in config.layers if isinstance(layer.mlp, Experts))
    if touched is not None:
        return touched / experts.num_experts
    return 1.0 - (1.0 - experts.top_k / experts.num_experts) ** batch
