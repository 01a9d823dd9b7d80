"""A stream is generation in pieces: the same tokens, whatever the pieces, and nothing lost."""

from itertools import chain

import pytest

from jaxkv.spec.errors import CapacityError, RequestError
from tests.tiny import CORE, DEEP, ids_of, module

DRAWN = {"temperature": 6.0, "top_k": 15, "top_p": 0.95, "seeds": 6}
pytestmark = pytest.mark.parametrize("cell", CORE, ids=str)


def prompts_of(cell, *lengths):
    return [ids_of(cell, 1, batch=1, length=n)[0].tolist() for n in lengths]


def joined(items):
    return [list(chain.from_iterable(rows)) for rows in zip(*items, strict=True)]


@pytest.mark.parametrize("steps", [1, 2, 5, 64] if DEEP else [1, 5])
@pytest.mark.parametrize("asked", [{}, DRAWN], ids=["greedy", "drawn"])
def test_a_stream_gives_the_tokens_of_generate_for_any_number_of_steps(cell, steps, asked):
    prompts, budgets = prompts_of(cell, 5, 2, 9, 1), [12, 3, 7, 0]
    whole = cell.subject.generate(prompts, budgets, **asked).new_tokens

    items = list(cell.subject.stream(prompts, budgets, steps=steps, **asked))

    assert joined(items) == whole
    assert [len(rows[0]) for rows in items[:2]] == [1, min(steps, 11)]
    assert max(len(row) for rows in items for row in rows) <= steps


@pytest.mark.parametrize("chunk", [1, 4, 16, 512] if DEEP else [4, 512])
def test_prefilling_in_chunks_changes_nothing(cell, chunk):
    """Prompts that end inside, at the end of, and before the last chunk; one that is not fed."""
    prompts, budgets = prompts_of(cell, 24, 16, 17, 3, 20), [6, 6, 1, 6, 0]
    whole = cell.subject.generate(prompts, budgets).new_tokens

    assert joined(cell.subject.stream(prompts, budgets, chunk=chunk)) == whole


def test_end_tokens_end_a_stream(cell):
    prompts = prompts_of(cell, 5, 3, 7)
    free = cell.subject.generate(prompts, 8).new_tokens
    ends = [free[0][0], free[1][2]]
    whole = cell.subject.generate(prompts, 8, end_ids=ends).new_tokens

    assert joined(cell.subject.stream(prompts, 8, end_ids=ends, steps=3)) == whole


@pytest.mark.parametrize("taken", [0, 1, 3] if DEEP else [0, 3])
def test_closing_a_stream_early_loses_nothing(cell, taken):
    """What came stands, the cache handed in answers as before, and the next stream is whole."""
    caches, subject = module(cell, "caches"), cell.subject
    first = subject.generate([[1, 2, 3]], 2, keep_cache=True, capacity=40)
    whole = subject.generate([[4]], 9, cache=caches.fork(first.cache)).new_tokens[0]

    stream = subject.stream([[4]], 9, cache=first.cache, steps=2)
    items = [next(stream) for _ in range(taken)]
    stream.close()

    seen = list(chain.from_iterable(rows[0] for rows in items))
    assert seen == whole[: len(seen)]
    assert len(seen) == max(0, 2 * taken - 1)
    assert subject.length(first.cache).tolist() == [4]
    assert joined(subject.stream([[4]], 9, cache=first.cache, steps=2)) == [whole]


def test_nothing_runs_before_it_is_asked_for(cell):
    seen = []
    stream = cell.subject.stream(
        [[1, 2, 3]], 9, steps=2, progress=lambda *numbers: seen.append(numbers)
    )

    assert seen == []
    next(stream)
    assert seen == [(4, 12)]


def test_progress_counts_prompt_chunks_and_new_tokens_to_the_end(cell):
    seen = []
    prompts = prompts_of(cell, 20, 3)

    list(
        cell.subject.stream(
            prompts, [5, 7], steps=4, chunk=8, progress=lambda *numbers: seen.append(numbers)
        )
    )

    # The short prompt has its first token while the long one is still being fed.
    assert seen == [(8, 27), (16, 27), (21, 27), (25, 27), (27, 27)]


def test_progress_ends_complete_when_a_row_ends_early(cell):
    seen = []
    token = cell.subject.generate([[1, 2, 3]], 1).new_tokens[0][0]

    list(
        cell.subject.stream(
            [[1, 2, 3]], 9, end_ids=token, progress=lambda *numbers: seen.append(numbers)
        )
    )

    assert seen == [(4, 4)]


def test_a_budget_of_zero_gives_no_items(cell):
    assert list(cell.subject.stream([[1, 2], [3]], 0)) == []


def test_a_stream_refuses_at_once_what_generate_refuses(cell):
    with pytest.raises(CapacityError, match=r"= 12 slots .* capacity 8"):
        cell.subject.stream([[1, 2, 3]], 10, capacity=8)
    with pytest.raises(RequestError, match="stream: end_ids holds 999"):
        cell.subject.stream([[1, 2, 3]], 10, end_ids=[999])


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("chunk", -1)])
def test_pieces_of_no_tokens_are_refused(cell, name, value):
    with pytest.raises(RequestError) as error:
        cell.subject.stream([[1, 2, 3]], 10, **{name: value})

    assert str(error.value) == (
        f"stream: {name} is {value}, expected a whole number of at least 1."
    )
