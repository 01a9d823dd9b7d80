"""Stop strings beside drafts: texts end where plain decoding ends them, counts stay exact."""

from functools import cache

import numpy as np
import pytest

from tests.sampling.test_stop_strings import decode
from tests.speculation.twins import BUDGETS, LAYOUTS, PROMPTS, TWINS, generate, greedy, speculate
from tests.tiny import DEEP

twins = pytest.mark.parametrize("twin", TWINS)
DRAFTS = (("itself", 4), ("near", 3), ("lookup", 9))
# Outside deep runs each layout with one kind of draft.
GRID = tuple((*draft, layout) for layout in LAYOUTS for draft in DRAFTS)
CASES = GRID if DEEP else GRID[:: len(DRAFTS) + 1]
HELD = np.array([len(prompt) for prompt in PROMPTS])


@cache
def stops(twin):
    """Return a string from the end of one round into the next, and one within a round.

    Rounds of the model's own drafts, four each, end with the tokens 0, 5, 10.
    """
    first, _, last = (decode(row) for row in greedy(twin))
    return first[11:17], last[6:9]


@cache
def plain(twin, layout="contiguous"):
    asked = {"stop": stops(twin), "decode": decode, "logprobs": 2}
    return generate(twin, layout=layout, **asked)


def stopped(twin, **asked):
    return speculate(twin, **{"stop": stops(twin), "decode": decode, **asked})


@twins
@pytest.mark.parametrize(("draft", "k", "layout"), CASES, ids=str)
def test_texts_end_where_plain_decoding_ends_them(twin, draft, k, layout):
    expected = plain(twin, layout)

    found = stopped(twin, draft=draft, k=k, layout=layout, logprobs=2)

    for name in ("tokens", "new_tokens", "texts", "stopped"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.length_B.tolist() == expected.length_B.tolist()
    for name in ("logprobs", "top_logprobs"):
        for ours, theirs in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    if not layout.startswith("quantized"):
        assert found.stopped == [stops(twin)[0], None, stops(twin)[1]]
        assert [len(row) for row in found.new_tokens] == [5, BUDGETS[1], 3]


@twins
def test_what_comes_after_the_string_is_dropped_and_counts_stay_exact(twin):
    """The host looks after two rounds of five tokens: what they made past the strings is cut off.

    So is the last token of the first round in the first row, which the string begins in.
    """
    found = stopped(twin, draft="itself", k=4)

    new = np.array([len(row) for row in found.new_tokens])
    assert found.steps_B.tolist() == [2, 2, 2]
    assert found.drafted_B.tolist() == [8, 6, 8]
    assert found.accepted_B.tolist() == [4, 6, 2]
    assert found.rolled_back_B.tolist() == [11 - 5, 0, 11 - 3]
    forwarded = HELD + new - 1 + found.rolled_back_B
    assert found.forwarded_positions_B.tolist() == forwarded.tolist()
    assert found.length_B.tolist() == (HELD + new).tolist()


@twins
def test_a_kept_cache_goes_on_as_if_the_rest_had_never_been(twin):
    """In the buffers that were asked for, which are larger than what steps read."""
    found = stopped(twin, draft="near", keep_cache=True, capacity=130)

    assert found.cache.capacity == 130
    assert np.asarray(found.cache.length_B).tolist() == (found.length_B - 1).tolist()
    last = [row[-1:] for row in found.tokens]
    after = generate(twin, last, cache=found.cache, capacity=None, max_new_tokens=4)
    assert after.new_tokens == generate(twin, found.tokens, max_new_tokens=4).new_tokens


@twins
def test_drawn_texts_end_before_their_string_too(twin):
    drawn = {"draft": "near", "k": 3, "temperature": 1.5, "seeds": [3, 4, 5]}
    free = speculate(twin, **drawn)
    text = decode(free.new_tokens[0])

    stop = text[13:17]
    left = text[: text.index(stop)]

    found = stopped(twin, **drawn, stop=stop)

    assert (found.texts[0], found.stopped[0]) == (left, stop)
    assert found.new_tokens[0] == free.new_tokens[0][: len(left) // 2]
    forwarded = found.forwarded_positions_B - found.rolled_back_B
    assert forwarded.tolist() == (HELD + [len(row) - 1 for row in found.new_tokens]).tolist()


@twins
def test_without_budget_there_is_a_text_of_nothing(twin):
    found = stopped(twin, max_new_tokens=0)

    assert (found.texts, found.stopped) == (["", "", ""], [None] * 3)
