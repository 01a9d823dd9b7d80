"""Rotary frequencies, scaled and partial, and activations: twins, numpy decoder, known numbers.

Covers KV-49 (factor out of the config), KV-51 (partial rotary), KV-53 (angles not in bfloat16).
"""

import importlib
import math

import numpy as np
import pytest

from crosscheck.decoder import _gelu_tanh
from crosscheck.decoder_rope import rotate
from jaxkv.spec.config import Llama3Scaling, Rope
from jaxkv.spec.config_json import ACTIVATIONS
from tests.tiny import TWINS

SCALING = Llama3Scaling(8.0, 1.0, 4.0, 64)


def arrays_of(twin, *values):
    if twin == "jaxkv":
        import jax.numpy as jnp

        return [jnp.asarray(each) for each in values]
    import torch

    return [torch.as_tensor(each) for each in values]


def dtype_of(twin, name):
    package = "jax.numpy" if twin == "jaxkv" else "torch"
    made = getattr(importlib.import_module(package), name)
    return np.dtype(made) if twin == "jaxkv" else made


def ops_of(twin):
    return importlib.import_module(f"{twin}.ops")


def table(twin, position, *, dtype="float64", theta, rotary_dim, scaling=None):
    """Return the table's angles as complex numbers of length 1, [T, R]."""
    at_BT, length_B = arrays_of(
        twin, np.asarray([position], np.int32), np.asarray([len(position)], np.int32)
    )
    rope = Rope(theta, rotary_dim, scaling)
    cos, sin = ops_of(twin).rope_table(at_BT, length_B, rope=rope, dtype=dtype_of(twin, dtype))
    return np.asarray(cos)[0] + 1j * np.asarray(sin)[0]


@pytest.mark.parametrize("twin", TWINS)
def test_scaled_frequencies_are_the_known_ones(twin):
    frequency_R, length_B = arrays_of(twin, 1e4 ** (-np.arange(4) / 4), np.asarray([256], np.int32))

    scaled_R = ops_of(twin).scale_frequencies(frequency_R, length_B, rope=Rope(1e4, 8, SCALING))

    np.testing.assert_allclose(np.asarray(scaled_R), [1, 0.0130423, 0.00125, 0.000125], atol=5e-8)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("twin", TWINS)
def test_scaled_tables_agree_with_the_numpy_decoder_past_the_original_length(twin, factor):
    scaling = Llama3Scaling(factor, 1.0, 4.0, 64)
    x_TNH = np.random.default_rng(0).standard_normal((256, 1, 8))

    turned = (x_TNH[:, 0, :4] + 1j * x_TNH[:, 0, 4:]) * table(
        twin, range(256), theta=1e4, rotary_dim=8, scaling=scaling
    )

    oracle = rotate({"theta": 1e4, "rotary_dim": 8, "scaling": vars(scaling)}, x_TNH)[:, 0]
    np.testing.assert_allclose(turned, oracle[:, :4] + 1j * oracle[:, 4:], atol=1e-12)


@pytest.mark.parametrize("twin", TWINS)
def test_the_factor_of_the_config_is_the_one_that_counts(twin):
    """KV-49."""
    eight, thirty_two = (
        table(twin, [256], theta=1e4, rotary_dim=8, scaling=Llama3Scaling(factor, 1.0, 4.0, 64))
        for factor in (8.0, 32.0)
    )

    assert np.abs(eight - thirty_two).max() > 0.1


@pytest.mark.parametrize("twin", TWINS)
def test_partial_rotary_turns_pairs_of_the_rotary_width_and_leaves_the_rest(twin):
    """KV-51."""
    x_BTNH = np.random.default_rng(1).standard_normal((1, 64, 1, 16))
    at_BT, length_B, x = arrays_of(
        twin, np.arange(64, dtype=np.int32)[None], np.asarray([64], np.int32), x_BTNH
    )
    ops, rope, dtype = ops_of(twin), Rope(50.0, 4), dtype_of(twin, "float64")

    cos, sin = ops.rope_table(at_BT, length_B, rope=rope, dtype=dtype)
    y_TH = np.asarray(ops.apply_rope(x, cos, sin))[0, :, 0]

    x_TH = x_BTNH[0, :, 0]
    turns = np.exp(1j * np.arange(64)[:, None] * np.array([1, 50.0 ** (-2 / 4)]))
    pairs = (x_TH[:, 0:2] + 1j * x_TH[:, 2:4]) * turns
    np.testing.assert_allclose(y_TH[:, 0:2] + 1j * y_TH[:, 2:4], pairs, atol=1e-12)
    np.testing.assert_array_equal(y_TH[:, 4:], x_TH[:, 4:])


@pytest.mark.parametrize("twin", TWINS)
def test_angles_of_a_bfloat16_model_come_from_float32_products(twin):
    """KV-53."""
    position = [255, 256, 257, 4097]

    low, high = (
        table(twin, position, dtype=dtype, theta=1e4, rotary_dim=8)
        for dtype in ("bfloat16", "float64")
    )

    # float32 holds an angle near 4097 to 2.4e-4; bfloat16 holds 257 as 256.
    np.testing.assert_allclose(low, high, atol=1e-3)


@pytest.mark.parametrize("twin", TWINS)
def test_gelu_tanh_agrees_with_the_numpy_decoder_and_is_not_the_exact_one(twin):
    x = np.linspace(-6, 6, 97)
    (given,) = arrays_of(twin, x)
    acts = ops_of(twin).ACTIVATIONS

    near, exact = (np.asarray(acts[name](given)) for name in ("gelu_tanh", "gelu"))

    np.testing.assert_allclose(near, _gelu_tanh(x), rtol=1e-9, atol=1e-14)
    by_hand = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))
    assert near[56] == pytest.approx(by_hand, rel=1e-12)
    assert 1e-5 < np.abs(near - exact).max() < 1e-3


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("twin", TWINS)
def test_an_activation_by_each_of_its_names_is_that_of_transformers(twin, name):
    import torch
    from transformers.activations import ACT2FN

    x = np.linspace(-6, 6, 97)

    (given,) = arrays_of(twin, x)
    got = np.asarray(ops_of(twin).ACTIVATIONS[ACTIVATIONS[name]](given))

    # gelu_fast has its constant in ten digits there.
    np.testing.assert_allclose(got, ACT2FN[name](torch.from_numpy(x)).numpy(), rtol=0, atol=1e-10)
