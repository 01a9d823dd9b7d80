"""How often a program is traced, counted where it happens; budgets and prompts cost none."""

import numpy as np
import pytest

from jaxkv import programs
from jaxkv.generation import generate
from tests.tiny import make_model


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    return make_model("jaxkv", "llama", "float32")


def test_another_budget_or_prompt_of_the_same_bucket_costs_no_compilation(model):
    """KV-19, KV-20: one program for all of them."""
    first = generate(model, [[1, 2, 3]], max_new_tokens=8)
    others = [
        generate(model, [np.arange(length).tolist()], max_new_tokens=budget)
        for length in (1, 5, 16)
        for budget in (1, 2, 32)
    ]

    assert first.compilations == 1
    assert [other.compilations for other in others] == [0] * 9


def test_a_new_bucket_costs_one_compilation(model):
    """The count moves when there is something to count."""
    counts = [
        generate(model, [[1] * length], max_new_tokens=3).compilations for length in (3, 17, 9, 20)
    ]

    assert counts == [1, 1, 0, 0]


def test_prompts_of_3_to_20_tokens_trace_two_programs(model):
    """KV-20: bounded by the buckets, not by the lengths."""
    total = sum(generate(model, [[1] * n], max_new_tokens=4).compilations for n in range(3, 21))

    assert total == 2


def test_a_row_that_never_ends_and_one_that_does_share_a_program(model):
    free = generate(model, [[5, 6, 7]], max_new_tokens=6)

    ended = generate(model, [[5, 6, 7]], max_new_tokens=6, end_ids=[free.new_tokens[0][1]])

    assert ended.new_tokens[0] == free.new_tokens[0][:2]
    assert ended.compilations == 0


def test_a_donated_cache_that_is_used_again_says_so(model):
    """KV-22: JAX names the deleted array; the fork lives on."""
    from jaxkv import caches

    first = generate(model, [[1, 2, 3]], max_new_tokens=2, keep_cache=True, capacity=64)
    spare = caches.fork(first.cache)
    generate(model, [[4]], max_new_tokens=2, cache=first.cache, consume=True)

    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        generate(model, [[4]], max_new_tokens=2, cache=first.cache)
    assert len(generate(model, [[4]], max_new_tokens=2, cache=spare).new_tokens[0]) == 2
