"""The reference decoder, part by part, against its formulas written out from its weights."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.claims.twins import a_key, ints
from tests.tiny import (
    CONFIGS,
    TWINS,
    Cell,
    ids_of,
    make_model,
    make_subject,
    module,
    new_subject,
    weights,
)

pytestmark = pytest.mark.parametrize("twin", TWINS)
ARRAYS = weights("reference")
IDS = ids_of(Cell("jaxkv", "reference", "contiguous"), 21, batch=2, length=17)


@pytest.fixture
def cell(twin):
    return Cell(twin, "reference", "contiguous")


@pytest.fixture
def seen(cell):
    return cell.subject.capture(IDS)


def test_positions_are_a_table_added_to_the_embedding(seen):
    expected = ARRAYS["embed.weight"][IDS] + ARRAYS["position.weight"][:17]

    np.testing.assert_allclose(seen["embed"], expected, rtol=0, atol=1e-12)


def test_each_sub_layer_is_added_to_the_residual(seen):
    one = seen["embed"] + seen["layers.0.attn"] + seen["layers.0.mlp"]
    two = one + seen["layers.1.attn"] + seen["layers.1.mlp"]

    np.testing.assert_allclose(seen["layers.0.resid"], one, rtol=0, atol=1e-12)
    np.testing.assert_allclose(seen["layers.1.resid"], two, rtol=0, atol=1e-12)


def test_the_norm_stands_before_the_attention_with_bias_and_epsilon_1e_5(seen):
    right, wrong = (layer_norm(seen["embed"], "layers.0.attn_norm", eps) for eps in (1e-5, 1e-6))

    np.testing.assert_allclose(seen["layers.0.attn_norm"], right, rtol=0, atol=1e-12)
    assert np.abs(seen["layers.0.attn_norm"] - wrong).max() > 1e-7


def test_epsilon_1e_6_gives_other_logits(cell):
    config = replace(cell.config, norm=replace(cell.config.norm, eps=1e-6))
    other = module(cell, "weights").from_arrays(config, ARRAYS, dtype="float64")

    difference = np.abs(cell.subject.full(IDS) - new_subject(other, cell).full(IDS)).max()

    # Far above what the paths of one twin differ by (1e-10).
    assert difference > 1e-7


def test_attention_is_scaled_by_the_root_of_8_and_projected_with_bias(seen):
    x = seen["layers.0.attn_norm"]
    q, k, v = (heads(linear(x, f"layers.0.attn.{name}")) for name in "qkv")
    scores = np.einsum("BTNH,BSNH->BNTS", q, k) / math.sqrt(8)
    scores = np.where(np.tril(np.ones((17, 17), bool)), scores, -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    out = np.einsum("BNTS,BSNH->BTNH", weight, v).reshape(2, 17, 24)

    expected = linear(out, "layers.0.attn.o")

    np.testing.assert_allclose(seen["layers.0.attn"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(seen["layers.0.v"], v, rtol=0, atol=1e-12)


def test_the_feed_forward_uses_the_exact_gelu_and_not_its_tanh_approximation(seen):
    x = layer_norm(seen["embed"] + seen["layers.0.attn"], "layers.0.mlp_norm", 1e-5)
    up = linear(x, "layers.0.mlp.up")
    exact = up * 0.5 * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
    cubic = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
    right, wrong = (
        linear(h, "layers.0.mlp.down") for h in (exact, up * 0.5 * (1 + np.tanh(cubic)))
    )

    assert up.shape[-1] == 4 * 24
    np.testing.assert_allclose(seen["layers.0.mlp"], right, rtol=0, atol=1e-12)
    assert np.abs(seen["layers.0.mlp"] - wrong).max() > 1e-5


def test_a_final_norm_precedes_a_head_of_its_own_with_bias(seen):
    x = layer_norm(seen["layers.1.resid"], "norm", 1e-5)

    np.testing.assert_allclose(seen["norm"], x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(seen["logits"], linear(x, "head"), rtol=0, atol=1e-12)
    assert np.abs(ARRAYS["head.weight"] - ARRAYS["embed.weight"]).max() > 0.1


def test_the_weights_of_one_twin_are_those_of_the_other(cell):
    other = Cell({"jaxkv": "torchkv", "torchkv": "jaxkv"}[cell.twin], "reference", "contiguous")
    handed_over = module(other, "weights").to_arrays(make_model(other.twin, "reference"))

    model = module(cell, "weights").from_arrays(cell.config, handed_over, dtype="float64")

    back = module(cell, "weights").to_arrays(model)
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back[name], array)


def test_a_model_is_made_in_evaluation_mode_in_the_dtype_asked_for(cell):
    model = module(cell, "weights").from_arrays(cell.config, ARRAYS, dtype="float64")

    assert not model.training
    assert new_subject(model, cell).info.dtype == "float64"
    assert make_subject(cell, dtype="float32").info.dtype == "float32"


def test_dropout_needs_both_a_rate_and_the_training_flag(cell):
    full = cell.subject.full(IDS)

    only_flag, only_rate, both = (
        forward(cell, IDS, rate=rate, training=training)
        for rate, training in ((0.0, True), (0.5, False), (0.5, True))
    )

    assert CONFIGS["reference"].dropout_rate == 0.0
    np.testing.assert_allclose(only_flag, full, rtol=0, atol=1e-12)
    np.testing.assert_allclose(only_rate, full, rtol=0, atol=1e-12)
    assert np.abs(both - full).max() > 0.1


def forward(cell, ids, *, rate, training):
    model = module(cell, "model")
    logits, _ = model.forward(
        model.params_of(make_model(cell.twin, cell.model)),
        ints(cell.twin, ids),
        None,
        ints(cell.twin, [ids.shape[1]] * len(ids)),
        config=replace(cell.config, dropout_rate=rate),
        training=training,
        key=a_key(cell.twin),
    )
    return np.asarray(logits)


def layer_norm(x, name, eps):
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    return scaled * ARRAYS[f"{name}.weight"] + ARRAYS[f"{name}.bias"]


def linear(x, name):
    return x @ ARRAYS[f"{name}.weight"].T + ARRAYS[f"{name}.bias"]


def heads(x):
    return x.reshape(*x.shape[:2], 3, 8)
