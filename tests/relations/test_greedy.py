"""Greedy ids: the same with and without cache, in a batch and alone; counted work; stopping."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tiny import CELLS, ids_of, module, shared_by

prompts = st.lists(st.lists(st.integers(0, 18), min_size=1, max_size=16), min_size=4, max_size=4)


@shared_by(CELLS)
@example(prompts=[[1], [2, 3], [4] * 16, [5, 6, 7]], budget=9)
@given(prompts=prompts, budget=st.integers(1, 12))
def test_greedy_ids_are_equal_with_and_without_cache(cell, prompts, budget):
    subject = cell.subject

    cached = subject.generate(prompts, budget)
    uncached = subject.generate(prompts, budget, cached=False)

    assert cached.new_tokens == uncached.new_tokens
    lengths = np.array([len(prompt) for prompt in prompts])
    n = np.arange(budget)
    assert cached.forwarded_positions_B.tolist() == (lengths + budget - 1).tolist()
    whole = [int((length + n).sum()) for length in lengths]
    assert uncached.forwarded_positions_B.tolist() == whole


@shared_by(CELLS)
@given(prompts=prompts, budget=st.integers(1, 12))
def test_each_row_of_a_ragged_batch_gets_the_ids_of_its_solo_run(cell, prompts, budget):
    """KV-01: in generation."""
    subject = cell.subject

    batch = subject.generate(prompts, budget)

    assert batch.new_tokens == [
        subject.generate([prompt], budget).new_tokens[0] for prompt in prompts
    ]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_continued_cache_gives_the_ids_of_one_long_run(cell):
    subject = cell.subject
    prompts = [ids_of(cell, 1, batch=1, length=n)[0].tolist() for n in (5, 2, 7)]

    whole = subject.generate(prompts, 10, keep_cache=True, capacity=64)
    first = subject.generate(prompts, 4, keep_cache=True, capacity=64)
    last = [[row[-1]] for row in first.new_tokens]
    second = subject.generate(last, 6, cache=first.cache, consume=True)

    joined = [a + b for a, b in zip(first.new_tokens, second.new_tokens, strict=True)]
    assert joined == whole.new_tokens


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_any_listed_end_token_ends_its_row_and_only_its_row(cell):
    subject = cell.subject
    prompts = [ids_of(cell, 2, batch=1, length=n)[0].tolist() for n in (5, 3, 7)]
    free = subject.generate(prompts, 8).new_tokens
    ends = [free[0][0], free[1][2]]

    ended = subject.generate(prompts, 8, end_ids=ends)

    for got, whole, prompt, forwarded in zip(
        ended.new_tokens, free, prompts, ended.forwarded_positions_B.tolist(), strict=True
    ):
        stop = next((i + 1 for i, token in enumerate(whole) if token in ends), 8)
        assert got == whole[:stop]
        assert forwarded == len(prompt) + stop - 1


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_each_row_may_have_its_own_budget(cell):
    subject = cell.subject
    prompts = [ids_of(cell, 3, batch=1, length=n)[0].tolist() for n in (5, 3, 7)]
    whole = subject.generate(prompts, 8).new_tokens

    mixed = subject.generate(prompts, [0, 8, 3])

    assert mixed.new_tokens == [[], whole[1], whole[2][:3]]
    assert mixed.forwarded_positions_B.tolist() == [0, 3 + 7, 7 + 2]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_row_without_budget_may_be_longer_than_the_capacity(cell):
    long = [1] * 40

    result = cell.subject.generate([long, [2, 3]], [0, 4], capacity=20)

    assert result.tokens[0] == long
    assert len(result.new_tokens[1]) == 4


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_budget_of_zero_returns_the_prompt_without_touching_the_model(cell):
    prompts = [[1, 2, 3], [4]]

    result = cell.subject.generate(prompts, 0)

    assert result.tokens == prompts
    assert result.new_tokens == [[], []]
    assert result.forwarded_positions_B.tolist() == [0, 0]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_cache_handed_in_answers_as_before_unless_consumed(cell):
    """KV-22, KV-24: a kept cache is a value; continuing twice from it gives the same twice."""
    caches, subject = module(cell, "caches"), cell.subject
    first = subject.generate([[1, 2, 3]], 2, keep_cache=True, capacity=40)

    once = subject.generate([[4]], 5, cache=caches.fork(first.cache), consume=True)
    again = subject.generate([[4]], 5, cache=first.cache)
    third = subject.generate([[4]], 5, cache=first.cache)

    assert once.new_tokens == again.new_tokens == third.new_tokens
    assert subject.length(first.cache).tolist() == [4]
