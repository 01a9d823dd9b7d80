"""Arrays in, parameters, arrays out: between the twins, and from interleaved rotary rows."""

import importlib

import numpy as np
import pytest

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.errors import RequestError, WeightError
from jaxkv.spec.random_weights import random_arrays
from tests.tiny import CONFIGS, TWINS, Cell, make_model, new_subject, weights

twins = pytest.mark.parametrize("twin", TWINS)


def of(twin):
    return importlib.import_module(f"{twin}.weights")


@twins
@pytest.mark.parametrize("model", CONFIGS)
def test_to_arrays_undoes_from_arrays(twin, model):
    arrays = of(twin).to_arrays(make_model(twin, model))

    assert set(arrays) == set(weights(model))
    for name, array in weights(model).items():
        np.testing.assert_array_equal(arrays[name], array)


@twins
def test_weights_pass_to_the_other_twin_in_memory(twin):
    other = next(name for name in TWINS if name != twin)
    ids = np.random.default_rng(0).integers(0, 97, (2, 9))
    model = make_model(twin, "llama")

    passed = of(other).from_arrays(CONFIGS["llama"], of(twin).to_arrays(model), dtype="float64")

    left = new_subject(passed, Cell(other, "llama", "contiguous")).full(ids)
    right = new_subject(model, Cell(twin, "llama", "contiguous")).full(ids)
    assert_agree(left, right, semantic(), name="logits", names=(other, twin))


@twins
@pytest.mark.parametrize("heads", [(6, 2), (8, 2), (12, 4), (8, 1), (4, 4)], ids=str)
def test_interleaved_rows_become_half_split_ones(twin, heads):
    """KV-56: the KV heads count for k; sizes where heads / kv = kv would hide the fault."""
    config = _grouped(*heads)
    arrays = random_arrays(config, seed=3)
    stored = {name: _interleave(name, array, config) for name, array in arrays.items()}
    ids = np.random.default_rng(1).integers(0, 31, (2, 8))

    model = of(twin).from_arrays(config, stored, dtype="float64", interleaved_qk=True)

    oracle = decode(config.to_dict(), arrays, ids)
    logits = new_subject(model, Cell(twin, "llama", "contiguous")).full(ids)
    assert_agree(logits, oracle, semantic(), name="logits", names=(twin, "numpy"))
    for name, array in of(twin).to_arrays(model).items():
        np.testing.assert_array_equal(array, arrays[name])


@twins
def test_rows_left_interleaved_are_seen(twin):
    """KV-57: the flag matters, and only logits show it."""
    config = _grouped(6, 2)
    arrays = random_arrays(config, seed=3)
    stored = {name: _interleave(name, array, config) for name, array in arrays.items()}
    ids = np.random.default_rng(1).integers(0, 31, (2, 8))

    model = of(twin).from_arrays(config, stored, dtype="float64")

    oracle = decode(config.to_dict(), arrays, ids)
    logits = new_subject(model, Cell(twin, "llama", "contiguous")).full(ids)
    with pytest.raises(AssertionError, match="DISAGREE"):
        assert_agree(logits, oracle, semantic(), name="logits")


DAMAGE = {
    "missing": (
        lambda arrays: arrays.pop("layers.1.attn.k.weight"),
        "layers.1.attn.k.weight",
    ),
    "extra": (
        lambda arrays: arrays.update({"layers.1.attn.k_proj.weight": np.zeros((54, 40))}),
        "layers.1.attn.k_proj.weight",
    ),
    "misshapen": (
        lambda arrays: arrays.update({"layers.1.attn.k.weight": np.zeros((54, 41))}),
        "(54, 41)",
    ),
}


@twins
@pytest.mark.parametrize("case", DAMAGE)
def test_a_tensor_that_does_not_belong_is_refused_by_name(twin, case):
    """KV-58, KV-61: nothing stays at a random start, and nothing is dropped silently."""
    arrays = dict(weights("llama"))
    damage, fragment = DAMAGE[case]
    damage(arrays)

    with pytest.raises(WeightError) as error:
        of(twin).from_arrays(CONFIGS["llama"], arrays)

    assert fragment in str(error.value)


@twins
def test_a_dtype_that_is_no_float_is_refused(twin):
    with pytest.raises(RequestError) as error:
        of(twin).from_arrays(CONFIGS["llama"], weights("llama"), dtype="int32")

    assert str(error.value) == (
        "from_arrays: dtype is int32, expected a floating one such as float32."
    )


def _grouped(heads: int, kv_heads: int) -> ModelConfig:
    attention = Attention(heads, kv_heads, 6, None, Rope(100.0, 6), qkv_bias=True, out_bias=False)
    layer = Layer(attention, Mlp(20, "silu", gated=True, bias=False))
    return ModelConfig(
        family="llama",
        vocab_size=31,
        width=14,
        max_positions=64,
        layers=(layer, layer),
        norm=Norm("rms", 1e-5),
        learned_positions=False,
        tied_head=False,
        head_bias=False,
    )


def _interleave(name: str, array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Return q and k rows as a file with interleaved rotary holds them: pairs side by side."""
    part = name.split(".")[-2]
    if part not in ("q", "k"):
        return array
    attention = config.layers[0].attention
    heads = attention.num_heads if part == "q" else attention.num_kv_heads
    rows = []
    for head in range(heads):
        for pair in range(3):
            rows += [6 * head + pair, 6 * head + pair + 3]
    return array[rows]
