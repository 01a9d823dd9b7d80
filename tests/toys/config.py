"""The toy's sizes and weights: sizes pairwise distinct, peaked attention, norms away from 1."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray]


@dataclass(frozen=True)
class ToyConfig:
    """L layers, D width, N query heads, K key/value heads, H head width, R rotary pairs.

    Attributes:
        kind: "gqa" (K key/value heads) or "mla" (a joint latent and one rotary key a token).
        windows: Of each layer; None sees everything.
        learned: Learned positions instead of rotation.
        cross: Each layer also attends to an encoder's result.
        max_positions: The longest text.
    """

    kind: str = "gqa"
    windows: tuple[int | None, ...] = (None, None, None)
    learned: bool = False
    cross: bool = False
    max_positions: int = 512
    vocab: int = 23
    width: int = 20
    heads: int = 6
    kv_heads: int = 3
    head: int = 8
    rotary: int = 6
    hidden: int = 26
    latent: int = 10
    rope_head: int = 4
    encoder_width: int = 7
    theta: float = 100.0


@cache
def make_weights(config: ToyConfig, seed: int) -> Weights:
    """Return float64 weights: matrices N(0, 1.2 / sqrt(fan in)), queries and keys twice that."""
    rng = np.random.default_rng(seed)
    c = config

    def matrix(*shape: int, gain: float = 1.2) -> NDArray:
        return rng.normal(0, gain / np.sqrt(shape[0]), shape)

    w: Weights = {"embed": rng.normal(0, 1, (c.vocab, c.width))}
    if c.learned:
        w["position"] = rng.normal(0, 1, (c.max_positions, c.width))
    for i in range(len(c.windows)):
        shapes = _mla_shapes(c) if c.kind == "mla" else _gqa_shapes(c)
        if c.cross:
            shapes |= _cross_shapes(c)
        for name, shape in shapes.items():
            peaked = name.endswith(("q", "k", "kv_a"))
            w[f"{i}.{name}"] = matrix(*shape, gain=2.0 if peaked else 1.2)
            w[f"{i}.{name}_bias"] = rng.normal(0, 0.3, shape[-1])
        for name in ("attn_norm", "mlp_norm", "cross_norm", "latent_norm"):
            size = c.latent if name == "latent_norm" else c.width
            w[f"{i}.{name}"] = 1 + rng.normal(0, 0.3, size)
    w["norm"] = 1 + rng.normal(0, 0.3, c.width)
    w["head"] = matrix(c.width, c.vocab)
    w["head_bias"] = rng.normal(0, 0.3, c.vocab)
    return w


def _gqa_shapes(c: ToyConfig) -> dict[str, tuple[int, int]]:
    return {
        "q": (c.width, c.heads * c.head),
        "k": (c.width, c.kv_heads * c.head),
        "v": (c.width, c.kv_heads * c.head),
        "out": (c.heads * c.head, c.width),
        **_mlp_shapes(c),
    }


def _mla_shapes(c: ToyConfig) -> dict[str, tuple[int, int]]:
    nope = c.head - c.rope_head
    return {
        "q": (c.width, c.heads * c.head),
        "kv_a": (c.width, c.latent + c.rope_head),
        "kv_b": (c.latent, c.heads * (nope + c.head)),
        "out": (c.heads * c.head, c.width),
        **_mlp_shapes(c),
    }


def _cross_shapes(c: ToyConfig) -> dict[str, tuple[int, int]]:
    inner = c.heads * c.head
    return {
        "cross_q": (c.width, inner),
        "cross_k": (c.encoder_width, inner),
        "cross_v": (c.encoder_width, inner),
        "cross_out": (inner, c.width),
    }


def _mlp_shapes(c: ToyConfig) -> dict[str, tuple[int, int]]:
    return {
        "gate": (c.width, c.hidden),
        "up": (c.width, c.hidden),
        "down": (c.hidden, c.width),
    }


@cache
def weights_of(config: ToyConfig, seed: int, dtype: str, nudge: tuple[float, int]) -> Weights:
    """Return the weights in a dtype, each times 1 + scale * noise where nudge is (scale, seed)."""
    scale, noise = nudge
    rng = np.random.default_rng(noise)
    weights = make_weights(config, seed)
    if scale:
        weights = {k: x * (1 + scale * rng.normal(size=x.shape)) for k, x in weights.items()}
    return {k: x.astype(dtype) for k, x in weights.items()}
