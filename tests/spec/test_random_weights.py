"""Seeded weights: the same everywhere, and never trivial."""

from dataclasses import replace

import numpy as np

from jaxkv.spec import families
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.weight_shapes import weight_shapes

CONFIG = families.preset("reference")


def test_same_seed_gives_the_same_bytes():
    first, second = random_arrays(CONFIG, seed=3), random_arrays(CONFIG, seed=3)

    assert {k: v.tobytes() for k, v in first.items()} == {k: v.tobytes() for k, v in second.items()}


def test_another_seed_changes_every_weight():
    first, second = random_arrays(CONFIG, seed=3), random_arrays(CONFIG, seed=4)

    assert [name for name in first if np.array_equal(first[name], second[name])] == []


def test_arrays_have_the_shapes_of_the_config_in_float64():
    arrays = random_arrays(CONFIG, seed=0)

    assert {name: array.shape for name, array in arrays.items()} == weight_shapes(CONFIG)
    assert {array.dtype.name for array in arrays.values()} == {"float64"}


def test_one_layer_more_keeps_the_weights_of_the_others():
    longer = random_arrays(replace(CONFIG, layers=CONFIG.layers * 2), seed=0)

    for name, array in random_arrays(CONFIG, seed=0).items():
        np.testing.assert_array_equal(longer[name], array)


def test_no_gain_or_bias_is_trivial_and_no_two_weights_are_equal():
    arrays = random_arrays(CONFIG, seed=0)
    vectors = [array for array in arrays.values() if array.ndim == 1]

    assert all(np.all((v != 0) & (v != 1)) for v in vectors)
    assert len({array.tobytes() for array in arrays.values()}) == len(arrays)


def test_norm_gains_are_around_one_and_biases_around_zero():
    arrays = random_arrays(CONFIG, seed=0)
    gains = np.concatenate([a for name, a in arrays.items() if name.endswith("norm.weight")])
    biases = np.concatenate([a for name, a in arrays.items() if name.endswith(".bias")])

    # Standard errors are 0.03 and 0.02.
    assert abs(gains.mean() - 1) < 0.15
    assert abs(biases.mean()) < 0.1


def test_first_numbers_stay_what_they_were():
    embed = random_arrays(CONFIG, seed=0)["embed.weight"]

    known = [-1.8335732402761937, 0.6383050640683918, 0.03653211140496705]
    np.testing.assert_allclose(embed[0, :3], known, rtol=1e-12)
