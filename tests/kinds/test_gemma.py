"""Gemma's order of casts, kind N of the public reports: 1 + weight, and the embedding's scale."""

from dataclasses import replace

import numpy as np
import pytest

from jaxkv.spec.random_weights import random_arrays
from tests.tiny import CONFIGS, TWINS, Cell, ids_of, module

WIDTH = 48
CONFIG = replace(
    CONFIGS["llama"],
    width=WIDTH,
    scaled_embedding=True,
    norm=replace(CONFIGS["llama"].norm, plus_one=True),
)


def in_bfloat16(twin, array):
    if twin == "jaxkv":
        import jax.numpy as jnp

        return jnp.asarray(array, jnp.bfloat16)
    import torch

    return torch.tensor(array, dtype=torch.bfloat16)


def to_numpy(x):
    return np.asarray(x.float() if hasattr(x, "float") else x, np.float32)


@pytest.mark.parametrize("twin", TWINS)
def test_one_is_added_to_the_norms_weight_in_float32(twin):
    """KV-64: near 0 a weight has digits that 1 + weight has not in bfloat16."""
    rng = np.random.default_rng(0)
    x_BTD = in_bfloat16(twin, 30 * rng.standard_normal((1, 64, WIDTH)))
    weight_D = in_bfloat16(twin, 0.01 * rng.standard_normal(WIDTH))
    x, w = to_numpy(x_BTD), to_numpy(weight_D)

    y_BTD = module(Cell(twin, "llama", ""), "ops").rms_norm(
        x_BTD, weight_D, eps=1e-6, plus_one=True
    )

    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    right = to_numpy(in_bfloat16(twin, normed * (1 + w)))
    early = to_numpy(in_bfloat16(twin, normed * to_numpy(in_bfloat16(twin, 1 + w))))
    given = to_numpy(y_BTD)
    # A few fall on the other side of a rounding: sums in float32 differ in their order.
    assert np.mean(given != right) < 1e-3
    assert np.mean(given != early) > 0.1


@pytest.mark.parametrize("twin", TWINS)
def test_the_embeddings_scale_is_rounded_to_the_models_dtype(twin):
    """KV-64: the square root of 48 is 6.9282, and 6.9375 in bfloat16."""
    arrays = random_arrays(CONFIG, seed=7)
    cell = Cell(twin, "llama", "contiguous")
    model = module(cell, "weights").from_arrays(CONFIG, arrays, dtype="bfloat16")
    ids = ids_of(cell, 3)

    embedded = _embedded(twin, module(cell, "model").params_of(model), ids)

    rows = to_numpy(in_bfloat16(twin, arrays["embed.weight"]))[ids]
    rounded = to_numpy(in_bfloat16(twin, rows * np.float32(6.9375)))
    exact = to_numpy(in_bfloat16(twin, rows * np.float32(48**0.5)))
    np.testing.assert_array_equal(embedded, rounded)
    assert np.mean(embedded != exact) > 0.1


def _embedded(twin, params, ids):
    """Return what leaves the embedding, of a forward that keeps nothing."""
    seen = {}
    count_B = np.full(len(ids), ids.shape[1])
    if twin == "jaxkv":
        import jax.numpy as jnp

        arguments = (jnp.asarray(ids, jnp.int32), None, jnp.asarray(count_B, jnp.int32))
    else:
        import torch

        arguments = (torch.tensor(ids), None, torch.tensor(count_B, dtype=torch.int32))
    forward = module(Cell(twin, "llama", ""), "model").forward
    forward(params, *arguments, config=CONFIG, tap=seen.setdefault)
    return to_numpy(seen["embed"])
