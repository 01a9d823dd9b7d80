"""The choice alone, on random tables in place of a model, against the search by hand."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest

from crosscheck import assert_agree, semantic
from tests.beams.by_hand import beam_search as by_hand
from tests.tiny import DEEP, TWINS

BEAMS, SLOTS, VOCABULARY, ENDS = 3, 6, 7, (1, 4)
EXAMPLES = 2000 if DEEP else 60


def table(seed: int, row: int):
    """Return a function: new tokens of some texts -> logits after each, of the text alone."""

    @cache
    def one(text: tuple[int, ...]) -> np.ndarray:
        place = np.random.default_rng([seed, row, *text, len(text)])
        return place.normal(size=VOCABULARY) * 2.0

    return lambda texts: np.stack([one(tuple(text)) for text in texts])


@pytest.fixture(scope="module")
def drive():
    """Return a function: twin, tables, budgets, penalty, rule -> the state of a finished search."""
    import jax
    import jax.numpy as jnp
    import torch

    compiled = jax.jit(importlib.import_module("jaxkv.beams").choose)

    def run(twin: str, tables: list, budgets: list[int], penalty: float, early: Any) -> Any:
        beams, loop = (importlib.import_module(f"{twin}.{name}") for name in ("beams", "loop"))
        array = jnp.asarray if twin == "jaxkv" else torch.tensor
        floats = jnp.float64 if twin == "jaxkv" else torch.float64
        budget_B, end_E = (array(np.array(x, np.int32)) for x in (budgets, ENDS))
        terms = loop.Terms(budget_B, array(np.zeros(len(budgets), np.int32)), end_E, None)
        goal = beams.Goal(array(np.float64(penalty)), array(early is True), array(early == "never"))
        choose = compiled if twin == "jaxkv" else beams.choose
        one_B = np.ones(len(budgets), np.int32)
        prompts = array(one_B[:, None]), array(one_B)
        given = {"prompts": prompts, "terms": terms, "goal": goal}
        state = beams.start(array(one_B), **_sizes(floats))
        lines = np.arange(len(budgets) * BEAMS)
        while True:
            new = int(state.new)
            texts = np.asarray(state.token_BJS)[:, :, :new].tolist()
            logits = [of(row) for of, row in zip(tables, texts, strict=True)]
            if new and not np.asarray(state.active_B).any():
                return state
            state = choose(state, array(np.concatenate(logits)), **given)
            from_C = np.asarray(state.from_C)
            assert (from_C // BEAMS == lines // BEAMS).all()  # never another row's

    return run


def _sizes(dtype: Any) -> dict[str, Any]:
    return {"beams": BEAMS, "slots": SLOTS, "dtype": dtype}


@pytest.mark.parametrize("twin", TWINS)
def test_any_table_gives_what_the_search_by_hand_gives(twin, drive):
    """KV-48: all rules of stopping, penalties of either sign, rows of unlike budgets."""
    draw = np.random.default_rng(0)
    for seed in range(EXAMPLES):
        tables = [table(seed, row) for row in range(2)]
        budgets = draw.integers(1, SLOTS + 1, 2).tolist()
        penalty = float(draw.choice([-1.5, 0.0, 0.6, 1.0, 2.5]))
        early = (False, True, "never")[draw.integers(3)]
        state = drive(twin, tables, budgets, penalty, early)

        for row, (of, budget) in enumerate(zip(tables, budgets, strict=True)):
            right = by_hand(of, beams=BEAMS, budget=budget, ends=ENDS, penalty=penalty, early=early)
            lengths = np.asarray(state.length_BJ)[row].tolist()
            texts = np.asarray(state.ended_BJS)[row].tolist()
            case = (seed, row, budget, penalty, early)
            assert [t[:n] for t, n in zip(texts, lengths, strict=True)] == [
                text for _, text in right
            ], case
            scores = np.array([[[score for score, _ in right]]])
            ours = np.asarray(state.score_BJ)[row][None, None]
            assert_agree(ours, scores, semantic(rtol=1e-10), name=f"scores of {case}")
