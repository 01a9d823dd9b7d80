"""Experts: the routed ones alone are computed, whatever the others hold, in steps of any length."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck import Disagreement, assert_agree, decode, semantic
from jaxkv.spec.config import Experts, Mlp
from jaxkv.spec.random_weights import random_arrays
from tests.tiny import CONFIGS, TWINS, Cell, module

EXPERTS = Experts(7, 2, normalized=True, expert=Mlp(52, "silu", gated=True, bias=False))
CONFIG = replace(CONFIGS["llama"], layers=(replace(CONFIGS["llama"].layers[1], mlp=EXPERTS),))
ARRAYS = random_arrays(CONFIG, seed=7)
ROUTER = ARRAYS["layers.0.mlp.router.weight"]
twins = pytest.mark.parametrize("twin", TWINS)


def mix(twin, x_BTD, arrays):
    """Return what the experts of the only layer make of the tokens."""
    model = module(Cell(twin, "", ""), "weights").from_arrays(CONFIG, arrays, dtype="float64")
    params = module(Cell(twin, "", ""), "model").params_of(model)["layers"][0]["mlp"]
    if twin == "jaxkv":
        import jax.numpy as jnp

        return np.asarray(
            module(Cell(twin, "", ""), "experts").mix(params, jnp.asarray(x_BTD), EXPERTS)
        )
    import torch

    return module(Cell(twin, "", ""), "experts").mix(params, torch.tensor(x_BTD), EXPERTS).numpy()


def by_hand(x_BTD):
    """Return the same, token by token."""
    gate, up, down = (
        ARRAYS[f"layers.0.mlp.experts.{part}.weight"] for part in ("gate", "up", "down")
    )
    y_BTD = np.zeros_like(x_BTD)
    for place in np.ndindex(x_BTD.shape[:2]):
        x_D = x_BTD[place]
        chosen = np.argsort(-ROUTER @ x_D)[:2]
        share = np.exp(ROUTER[chosen] @ x_D)
        for z, weight in zip(chosen, share / share.sum(), strict=True):
            gate_F = gate[z] @ x_D
            y_BTD[place] += weight * (down[z] @ (gate_F / (1 + np.exp(-gate_F)) * (up[z] @ x_D)))
    return y_BTD


@twins
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 4), (2, 37)], ids=str)
def test_each_token_has_the_weighted_sum_of_its_two_experts(twin, shape):
    x_BTD = np.random.default_rng(0).standard_normal((*shape, 40))

    assert_agree(mix(twin, x_BTD, ARRAYS), by_hand(x_BTD), semantic(), name="mlp")


@twins
def test_an_expert_that_every_row_of_a_small_step_chose_has_all_of_them(twin):
    """Of 12 rows two experts have 12 tokens each, on average an expert has 24 / 7."""
    x_D = np.random.default_rng(4).standard_normal(40)
    x_BTD = np.tile(x_D, (12, 1, 1)) * np.linspace(1, 2, 12)[:, None, None]

    assert_agree(mix(twin, x_BTD, ARRAYS), by_hand(x_BTD), semantic(), name="mlp")


@twins
@pytest.mark.parametrize("shape", [(1, 1), (2, 37)], ids=str)
def test_experts_that_nobody_chose_are_not_touched(twin, shape):
    """All that they hold is NaN: in a decode step, and in one of many tokens."""
    x_BTD = np.random.default_rng(1).standard_normal((*shape, 40))
    # Two of the seven are never chosen, were there any number of tokens.
    router = ROUTER.copy()
    x_BTD[..., 0] = 1
    router[[1, 4], 0] -= 1000
    chosen = np.argsort(-(x_BTD @ router.T), axis=-1)[..., :2]
    spoiled = ARRAYS | {"layers.0.mlp.router.weight": router}
    for part in ("gate", "up", "down"):
        name = f"layers.0.mlp.experts.{part}.weight"
        spoiled[name] = np.where(np.isin(range(7), chosen)[:, None, None], ARRAYS[name], np.nan)

    given = mix(twin, x_BTD, spoiled)

    assert len(np.unique(chosen)) < 6
    whole = mix(twin, x_BTD, ARRAYS | {"layers.0.mlp.router.weight": router})
    assert_agree(given, whole, semantic(), name="mlp")


def test_experts_in_one_array_and_apart_give_the_same(monkeypatch):
    """Few experts on a CPU stand apart; many, or on another device, in one array."""
    from jaxkv import weights

    x_BTD = np.random.default_rng(3).standard_normal((2, 37, 40))
    apart = weights.from_arrays(CONFIG, ARRAYS, dtype="float64")
    given = {shape: mix("jaxkv", x_BTD[:, :shape], ARRAYS) for shape in (1, 5, 37)}

    monkeypatch.setattr(weights, "_APART", 0)

    together = weights.from_arrays(CONFIG, ARRAYS, dtype="float64")
    assert (len(apart.layers[0].mlp.up), together.layers[0].mlp.up.weight.ndim) == (7, 3)
    for shape, each in given.items():
        assert_agree(each, mix("jaxkv", x_BTD[:, :shape], ARRAYS), semantic(), name="mlp")
    for model in (apart, together):
        for name, array in weights.to_arrays(model).items():
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_a_decode_step_copies_no_expert_that_stands_apart(monkeypatch):
    """Each product reads it where it lies: the program has no room for a copy of one."""
    from jaxkv import weights

    one_matrix = 52 * 40 * 4
    assert _room() < 1.5 * one_matrix

    monkeypatch.setattr(weights, "_APART", 0)

    assert _room() >= 2 * one_matrix


def _room():
    """Return the bytes that a decode step has for what lies between its arguments and results."""
    import jax

    from jaxkv.experts import mix as jax_mix
    from jaxkv.model import params_of
    from jaxkv.weights import from_arrays

    params = params_of(from_arrays(CONFIG, ARRAYS, dtype="float32"))["layers"][0]["mlp"]
    x_BTD = np.ones((1, 1, 40), np.float32)
    step = jax.jit(lambda p, x: jax_mix(p, x, EXPERTS)).lower(params, x_BTD)
    return step.compile().memory_analysis().temp_size_in_bytes


def test_another_order_of_experts_is_seen():
    """The comparison can fail: two experts exchanged move the logits."""
    ids = np.random.default_rng(2).integers(0, 97, (1, 9))
    other = dict(ARRAYS)
    for part in ("gate", "up", "down"):
        name = f"layers.0.mlp.experts.{part}.weight"
        other[name] = ARRAYS[name][[1, 0, 2, 3, 4, 5, 6]]

    with pytest.raises(Disagreement):
        assert_agree(
            decode(CONFIG.to_dict(), other, ids),
            decode(CONFIG.to_dict(), ARRAYS, ids),
            semantic(),
            name="logits",
        )
