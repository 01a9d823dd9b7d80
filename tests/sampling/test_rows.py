"""What a row draws depends on its own seed, settings and text: on no neighbour, on no batch."""

import numpy as np
import pytest

from tests.tiny import CORE, ids_of

# Hot: the tiny llama is peaked, and its text is certain at ordinary temperatures.
DRAWN = {"temperature": 6.0, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
ROW = [5, 3, 9, 1, 7]
OTHERS = [[2, 4], [11] * 9, [1, 2, 3, 4]]
pytestmark = pytest.mark.parametrize("cell", CORE, ids=str)


def drawn(cell):
    return DRAWN | {"top_k": min(40, cell.config.vocab_size)}


@pytest.mark.parametrize("at", [0, 2, 3])
def test_a_row_alone_first_and_last_draws_the_same(cell, at):
    """KV-71: one seed for all."""
    asked = {**drawn(cell), "seeds": 42}
    alone = cell.subject.generate([ROW], 12, **asked).new_tokens[0]

    assert alone != cell.subject.generate([ROW], 12).new_tokens[0]
    batch = cell.subject.generate([*OTHERS[:at], ROW, *OTHERS[at:]], 12, **asked)

    assert batch.new_tokens[at] == alone


def test_a_row_next_to_greedy_and_differently_set_ones_draws_the_same(cell):
    """KV-71: other seeds, temperatures and filters in the batch."""
    asked = drawn(cell)
    alone = cell.subject.generate([ROW], 12, **asked, seeds=42).new_tokens[0]
    greedy = cell.subject.generate([OTHERS[0]], 12).new_tokens[0]

    mixed = cell.subject.generate(
        [OTHERS[0], ROW, OTHERS[1]],
        12,
        temperature=[0.0, asked["temperature"], 3.0],
        top_k=[1, asked["top_k"], 5],
        top_p=[0.1, asked["top_p"], 1.0],
        min_p=[0.5, asked["min_p"], 0.0],
        seeds=[1, 42, 3],
    )

    assert mixed.new_tokens[:2] == [greedy, alone]


def test_equal_prompts_with_one_seed_draw_alike_and_with_several_apart(cell):
    asked = drawn(cell)

    one = cell.subject.generate([ROW] * 3, 12, **asked, seeds=5).new_tokens
    several = cell.subject.generate([ROW] * 3, 12, **asked, seeds=[5, 6, 7]).new_tokens

    assert one == [one[0]] * 3
    assert several[0] == one[0]
    assert len({str(row) for row in several}) == 3


def test_a_continued_cache_draws_as_one_long_run(cell):
    asked = {**drawn(cell), "seeds": [8, 9]}
    prompts = [ROW, OTHERS[0]]

    kept = {"keep_cache": True, "capacity": 64}
    whole = cell.subject.generate(prompts, 10, **kept, **asked).new_tokens
    first = cell.subject.generate(prompts, 4, **kept, **asked)
    last = [[row[-1]] for row in first.new_tokens]
    second = cell.subject.generate(last, 6, cache=first.cache, consume=True, **asked)

    joined = [a + b for a, b in zip(first.new_tokens, second.new_tokens, strict=True)]
    assert joined == whole


def test_with_and_without_cache_the_draws_are_the_same(cell):
    asked = {**drawn(cell), "seeds": 3}

    cached = cell.subject.generate([ROW, OTHERS[1]], 8, **asked)
    uncached = cell.subject.generate([ROW, OTHERS[1]], 8, cached=False, **asked)

    assert cached.new_tokens == uncached.new_tokens


def test_log_probabilities_are_those_of_the_uncached_logits(cell):
    """Before temperature and filters, as many as there are new tokens, float32."""
    asked = {**drawn(cell), "temperature": 2.0, "seeds": 4}
    prompts = [ids_of(cell, 1, batch=1, length=n)[0].tolist() for n in (5, 2)]

    result = cell.subject.generate(prompts, [7, 4], logprobs=True, **asked)

    for b, prompt in enumerate(prompts):
        logits = cell.subject.full(np.array([result.tokens[b]]))[0, len(prompt) - 1 : -1]
        own = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        own -= logits.max(-1, keepdims=True)
        expected = own[np.arange(len(own)), result.new_tokens[b]]
        assert result.logprobs[b].dtype == np.float32
        np.testing.assert_allclose(result.logprobs[b], expected, rtol=1e-5, atol=1e-6)


def test_log_probabilities_are_only_there_on_request(cell):
    assert cell.subject.generate([ROW], 2).logprobs is None
    assert cell.subject.generate([ROW], 0, logprobs=True).logprobs[0].shape == (0,)
