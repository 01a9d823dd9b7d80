"""Absorbed and expanded are one function, on each layout, past any prefix; the scale is yarn's."""

import importlib
import math
from dataclasses import replace

import numpy as np
import pytest

from crosscheck import assert_agree, close, decode, semantic
from jaxkv.spec.config import Latent, Rope
from jaxkv.spec.scaling import YarnScaling
from jaxkv.spec.tiny_families import tiny_family
from tests.latent.models import IDS, LAYOUTS, ragged, subject
from tests.tiny import TWINS

twins = pytest.mark.parametrize("twin", TWINS)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@twins
def test_absorbed_and_expanded_agree_in_ragged_steps_past_a_prefix(twin, layout):
    absorbed, expanded = (
        ragged(subject(twin, layout, form))[0] for form in ("mla_absorbed", "mla_naive")
    )

    bound = 1e-12 * np.abs(expanded).max()
    assert_agree(absorbed, expanded, close(rtol=0, atol=bound), name="logits")
    assert not np.array_equal(absorbed, expanded)  # two computations, not one compared with itself


def test_an_uncompiled_step_equals_a_compiled_one():
    """Rows that are no power of two are widened on the host, and so the cache comes from there."""
    compiled = subject("jaxkv", "contiguous")
    eager = compiled.variant("eager")

    logits = []
    for cell in (compiled, eager):
        _, state = cell.step(cell.init(3, 44), IDS[:3, :4])
        logits.append(cell.step(state, IDS[:3, 4:7])[0])

    assert_agree(*logits, close(rtol=1e-10, atol=1e-10), name="logits")


@twins
def test_ragged_rows_are_those_of_the_numpy_decoder(twin):
    cell = subject(twin, "contiguous")
    config, arrays = cell.decoder_inputs()

    oracle = decode(config, arrays, IDS)

    assert_agree(cell.full(IDS), oracle, semantic(), name="logits", names=(twin, "numpy"))
    stepped, _ = ragged(cell)
    assert_agree(stepped[0, :8], oracle[0, :8], semantic(), name="logits")
    assert_agree(stepped[1, 8:16], oracle[1, 1:9], semantic(), name="logits")


@twins
def test_prefill_expands_and_a_few_queries_absorb(twin):
    """V3's sizes: absorbing pays below 171 queries, and never where only new tokens are read."""
    is_absorbed = importlib.import_module(f"{twin}.latent").is_absorbed
    latent = Latent(rank=512, nope_width=128, value_width=128, norm_eps=1e-6)

    assert [is_absorbed(latent, tokens=t, fresh=False) for t in (1, 170, 171)] == [
        True,
        True,
        False,
    ]
    assert not is_absorbed(latent, tokens=1, fresh=True)
    assert is_absorbed(replace(latent, rank=100), tokens=10_000, fresh=False)


@pytest.mark.parametrize(
    ("mscale", "squared"), [(0.707, 1.58963), (1.0, 1.87385), (None, 1.0)], ids=str
)
@twins
def test_scores_are_scaled_by_yarns_squared_factor(twin, mscale, squared):
    """KV-54: factor 40; the two factors of yarn are told apart, as one of them alone may be 1."""
    scale = importlib.import_module(f"{twin}.latent").scale
    attention = tiny_family("deepseek_v3").layers[0].attention
    yarn = YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    attention = replace(
        attention, rope=Rope(100.0, 8, yarn), latent=Latent(24, 11, 14, 1e-6, mscale=mscale)
    )

    assert scale(attention) * math.sqrt(11 + 8) == pytest.approx(squared, rel=1e-5)
