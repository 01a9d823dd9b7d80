"""Drafts in other families than llama: rings of gemma3 in some layers, latents of DeepSeek-V3."""

import importlib
from functools import cache

import numpy as np
import pytest

from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from tests.speculation.twins import BUDGETS, PROMPTS, TWINS, lookup
from tests.tiny import DEEP

LAYOUTS = {
    "gemma3": ("window", "paged", "contiguous") if DEEP else ("window",),
    "deepseek_v3": ("contiguous", "paged") if DEEP else ("paged",),
}
CASES = [(family, layout) for family, layouts in LAYOUTS.items() for layout in layouts]
KS = (1, 4, 7) if DEEP else (4,)


@cache
def model(twin, family, seed=7):
    config = tiny_family(family)
    arrays = random_arrays(config, seed=seed)
    return importlib.import_module(f"{twin}.weights").from_arrays(config, arrays, dtype="float64")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("family", "layout"), CASES, ids=str)
def test_ids_are_those_of_plain_greedy_decoding(twin, family, layout):
    """Drafts of the model itself, of an unrelated one, and of the text; each row by its own."""
    own = model(twin, family)
    # Else a tied gemma of random weights says one token over and over, in which no shift is seen.
    asked = {"max_new_tokens": BUDGETS, "capacity": 64, "layout": layout, "presence_penalty": 1e4}
    plain = importlib.import_module(f"{twin}.generation").generate(own, PROMPTS, **asked)
    speculate = importlib.import_module(f"{twin}.speculative").speculate
    text = lookup(twin, longest=3, shortest=1, longest_pause=0)
    new, kept = np.array(BUDGETS), []
    assert all(len({*row}) > 3 for row in plain.new_tokens)

    for k in KS:
        for draft in (own, model(twin, family, seed=8), text):
            found = speculate(own, PROMPTS, draft=draft, k=k, **asked)

            assert found.new_tokens == plain.new_tokens
            assert (new == 1 + found.steps_B + found.accepted_B).all()
            assert (found.rolled_back_B == found.drafted_B - found.accepted_B).all()
            kept.append((found.accepted_B.sum(), found.drafted_B.sum()))
        all_kept, few_kept, _ = kept[-3:]
        assert all_kept[0] == all_kept[1] > 0
        assert few_kept[0] < few_kept[1] / 2
