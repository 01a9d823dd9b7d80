"""Seeded random weights as plain arrays, so that everyone can hold the very same model."""

import zlib

import numpy as np

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.weight_shapes import weight_shapes


def random_arrays(config: ModelConfig, seed: int, *, peak: float = 1.2) -> dict[str, np.ndarray]:
    """Return float64 weights under canonical names that let faults show.

    Embeddings, learned positions and relative biases are N(0, 1), matrices N(0, peak /
    fan_in^(1/2)), norm gains 1 + N(0, 0.3) (their weights N(0, 0.3) where the norm adds the 1) and
    biases N(0, 0.3): attention is peaked, and no gain or bias is trivial. Each tensor has its own
    stream, drawn from the seed and its name, so that a config with one layer more keeps the weights
    of the others.

    Args:
        config: The decoder.
        seed: Any whole number of at least 0.
        peak: Spread of the matrices; q and k get it on top of each other, which sharpens attention.
    """
    center = 0.0 if config.norm.plus_one else 1.0
    return {
        name: _draw(name, shape, seed, peak, center)
        for name, shape in weight_shapes(config).items()
    }


def _draw(name: str, shape: tuple[int, ...], seed: int, peak: float, center: float) -> np.ndarray:
    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if name.endswith(("embed.weight", "position.weight", "relative.weight")):
        return noise
    if len(shape) >= 2:
        return noise * (peak * shape[-1] ** -0.5)
    return (center if name.endswith("norm.weight") else 0.0) + 0.3 * noise
