"""Drawn texts: the loop hands the rule what it asks for, and a row's draws are its own."""

import math

import numpy as np
import pytest

from tests.speculation.twins import CONFIG, PROMPTS, TWINS, generate, model, speculate

twins = pytest.mark.parametrize("twin", TWINS)
DRAWN = {"temperature": 6.0, "top_k": 6, "top_p": 0.95, "max_new_tokens": 10}


@twins
@pytest.mark.parametrize("draft", ["near", "lookup"])
def test_a_rows_text_depends_on_no_neighbour_and_not_on_the_batch(twin, draft):
    """KV-71: with drafts too; and a greedy row beside drawing ones gets its greedy ids."""
    seeds, heat = [5, 6, 7], [6.0, 0.0, 6.0]

    found = speculate(twin, draft=draft, **{**DRAWN, "temperature": heat}, seeds=seeds)
    other = speculate(
        twin,
        [PROMPTS[2], PROMPTS[0], PROMPTS[1]],
        draft=draft,
        **{**DRAWN, "temperature": [6.0, 6.0, 0.5]},
        seeds=[7, 5, 9],
    )

    assert found.new_tokens[1] == generate(twin, max_new_tokens=10).new_tokens[1]
    assert other.new_tokens[:2] == [found.new_tokens[2], found.new_tokens[0]]
    assert found.drafted_B.sum() > 0


@twins
def test_where_nothing_is_drafted_the_draws_are_those_of_plain_generation(twin):
    """A lookup that finds nothing: each place has its own number, whoever asks."""
    from tests.speculation.twins import lookup

    blind = lookup(twin, longest=12, shortest=12)

    found = speculate(twin, draft=blind, **DRAWN, seeds=[1, 2, 3])

    assert found.drafted_B.tolist() == [0, 0, 0]
    assert found.new_tokens == generate(twin, **DRAWN, seeds=[1, 2, 3]).new_tokens


@twins
@pytest.mark.parametrize("draft", ["itself", "near"])
def test_drawn_texts_have_the_distribution_of_the_model(twin, draft):
    """Through the whole loop, against the model's own probabilities; Hoeffding, one in a million.

    The exact enumeration is in test_acceptance.py; this one would see a draft drawn at another
    temperature than it is judged at, or a number that is used twice.
    """
    rows, asked = 4096, {"temperature": 4.0, "top_k": 3}
    prompt = PROMPTS[1]

    found = speculate(
        twin,
        [prompt] * rows,
        draft=draft,
        k=2,
        max_new_tokens=3,
        seeds=list(range(rows)),
        capacity=8,
        **asked,
    )

    new = np.array(found.new_tokens)
    chance = _chance(twin, prompt, new, **asked)
    bound = math.sqrt(math.log(2 * 64 / 1e-6) / (2 * rows))
    assert len(chance) <= 27
    for text, expected in chance.items():
        often = (new == np.array(text)).all(1).mean()
        assert abs(often - expected) <= bound, (text, often, expected)
    assert found.accepted_B.sum() > 0


def _chance(twin, prompt, new, *, temperature, top_k):
    """Return each text's probability by one uncached forward for each beginning."""
    from tests.sampling.slow import distribution

    subject = _subject(twin)
    beginnings = sorted({tuple(row[:n]) for row in new.tolist() for n in range(3)}, key=len)
    after = {}
    for begin in beginnings:
        ids = np.array([[*prompt, *begin]])
        asked = {"temperature": temperature, "top_k": top_k}
        after[begin] = distribution(subject.full(ids)[0, -1], **asked)
    found = {}
    for first in np.flatnonzero(after[()]):
        for second in np.flatnonzero(after.get((first,), [])):
            for third in np.flatnonzero(after.get((first, second), [])):
                chance = after[()][first] * after[first,][second] * after[first, second][third]
                found[first, second, third] = chance
    assert abs(sum(found.values()) - 1) < 0.1
    return found


def _subject(twin):
    import importlib

    assert CONFIG.vocab_size == 97
    return importlib.import_module(f"{twin}.subject").Subject(model(twin))
