"""The random models of `bench gpu` and `small`, by name: sizes only, no checkpoint is needed."""

import zlib
from functools import partial

import numpy as np

from jaxkv.spec.checkpoint import Checkpoint, Weights
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.weight_shapes import weight_shapes


def llama(
    *, layers: int, width: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocab: int
) -> ModelConfig:
    """Return a llama of those sizes, with room for 8,192 positions and a tied head."""
    attention = Attention(heads, kv_heads, head_dim, None, Rope(500_000.0, head_dim), False, False)
    layer = Layer(attention, Mlp(mlp, "silu", gated=True, bias=False))
    return ModelConfig(
        family="llama",
        vocab_size=vocab,
        width=width,
        max_positions=8192,
        layers=(layer,) * layers,
        norm=Norm("rms", 1e-5),
        learned_positions=False,
        tied_head=True,
        head_bias=False,
    )


# Llama 3.2 1B's sizes, one of 2 million parameters, and one for a try.
SHAPES = {
    "llama-1b": llama(
        layers=16, width=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256
    ),
    "2m": llama(layers=4, width=128, heads=4, kv_heads=2, head_dim=32, mlp=512, vocab=8192),
    "tiny": llama(layers=2, width=48, heads=4, kv_heads=2, head_dim=12, mlp=64, vocab=97),
}


def random_checkpoint(shape: str) -> Checkpoint:
    """Return the named shape with random weights, drawn as they are read, alike for all subjects.

    Ids are all that it knows of texts.
    """
    config = SHAPES[shape]
    entries = {
        name: (size, partial(_draw, name, size)) for name, size in weight_shapes(config).items()
    }
    return Checkpoint(config, Weights(entries), False, (), None, shape)


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) < 2:
        return np.ones(shape, np.float32)
    # Even noise with a normal's deviation: a thousand million numbers of it take seconds.
    noise = np.random.default_rng(zlib.crc32(name.encode())).random(shape, dtype=np.float32)
    noise -= np.float32(0.5)
    noise *= np.float32(12**0.5 * (0.02 if name == "embed.weight" else shape[-1] ** -0.5))
    return noise
