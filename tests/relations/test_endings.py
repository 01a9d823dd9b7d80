"""When a row ends: by token or by budget, each for itself, and nothing after it."""

import pytest

from jaxkv.spec.errors import RequestError, ShapeError
from tests.tiny import CORE, ids_of

pytestmark = pytest.mark.parametrize("cell", CORE, ids=str)


def three_rows(cell):
    """Return prompts, ids that end the first row at step 1 and the second at 3, and the free run.

    The third row never meets them within 5 steps.
    """
    for seed in range(200):
        prompts = [ids_of(cell, 100 + seed + b, batch=1, length=4)[0].tolist() for b in range(3)]
        free = cell.subject.generate(prompts, 5).new_tokens
        ends = [free[0][0], free[1][2]]
        stops = [next((i + 1 for i, t in enumerate(row) if t in ends), None) for row in free]
        if stops == [1, 3, None]:
            return prompts, ends, free
    raise AssertionError("no prompts end at steps 1, 3 and never")


def test_rows_that_end_at_steps_1_and_3_and_never_stop_each_for_itself(cell):
    """KV-72: 5 steps with the last row, 3 where it has no budget; log-probabilities stop too."""
    prompts, ends, free = three_rows(cell)

    three = cell.subject.generate(prompts, 5, end_ids=ends, logprobs=True)
    two = cell.subject.generate(prompts, [5, 5, 0], end_ids=ends, logprobs=True)

    assert three.new_tokens == [free[0][:1], free[1][:3], free[2]]
    assert two.new_tokens == [*three.new_tokens[:2], []]
    assert [len(row) for row in three.logprobs] == [1, 3, 5]
    assert three.forwarded_positions_B.tolist() == [4, 4 + 2, 4 + 4]
    items = [
        list(cell.subject.stream(prompts, budgets, end_ids=ends, steps=1))
        for budgets in (5, [5, 5, 0])
    ]
    assert [len(each) for each in items] == [5, 3]


@pytest.mark.parametrize("kind", [int, list, tuple])
def test_an_end_token_may_come_alone_or_in_a_list(cell, kind):
    """KV-73."""
    free = cell.subject.generate([[1, 2, 3]], 6).new_tokens[0]
    token = free[1]
    stop = free.index(token) + 1

    ended = cell.subject.generate([[1, 2, 3]], 6, end_ids=token if kind is int else kind([token]))

    assert ended.new_tokens == [free[:stop]]


@pytest.mark.parametrize("none", [(), [], None], ids=repr)
def test_without_end_tokens_a_row_runs_to_its_budget(cell, none):
    """KV-73."""
    assert len(cell.subject.generate([[1, 2, 3]], 6, end_ids=none).new_tokens[0]) == 6


def test_token_0_can_end_a_row(cell):
    """KV-73: an id that is false is still an id."""
    for seed in range(400):
        prompt = ids_of(cell, seed, batch=1, length=3)[0].tolist()
        if cell.subject.generate([prompt], 1).new_tokens == [[0]]:
            assert cell.subject.generate([prompt], 6, end_ids=0).new_tokens == [[0]]
            return
    pytest.fail("no prompt is continued by token 0")


def test_one_token_is_prefill_alone(cell):
    """KV-74."""
    whole = cell.subject.generate([[1, 2, 3], [4]], 5).new_tokens

    one = cell.subject.generate([[1, 2, 3], [4]], 1)

    assert one.new_tokens == [row[:1] for row in whole]
    assert one.forwarded_positions_B.tolist() == [3, 1]


@pytest.mark.parametrize("cached", [True, False])
def test_budgets_of_each_row_count_with_and_without_cache(cell, cached):
    """KV-74."""
    prompts = [[1, 2, 3], [4], [5, 6]]
    whole = cell.subject.generate(prompts, 5).new_tokens

    mixed = cell.subject.generate(prompts, [0, 5, 2], cached=cached)

    assert mixed.new_tokens == [[], whole[1], whole[2][:2]]


@pytest.mark.parametrize(
    ("prompts", "budget", "error"),
    [([[1], [2], [3]], [1, 2], ShapeError), ([[1]], -1, RequestError), ([], 3, ShapeError)],
    ids=["short list", "negative", "no prompts"],
)
def test_what_cannot_be_meant_is_refused(cell, prompts, budget, error):
    """KV-74."""
    with pytest.raises(error):
        cell.subject.generate(prompts, budget)
    with pytest.raises(error):
        cell.subject.stream(prompts, budget)
