"""Generation and streams end before a stop string, row by row, and take back what went past it."""

import importlib
from itertools import accumulate

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError
from tests.prefix.stores import make_store
from tests.sampling.processed import joined
from tests.sampling.test_processed_texts import ASKED, BUDGET, DRAWN, PROMPTS
from tests.tiny import TWINS, Cell, make_model

twins = pytest.mark.parametrize("twin", TWINS)


def decode(ids):
    """Two letters a token, so that strings of four span three of them."""
    return "".join(chr(97 + i % 26) + chr(65 + i // 26) for i in ids)


def subject_of(twin):
    return Cell(twin, "llama", "contiguous").subject


def free(twin):
    """Return the new tokens and texts without stop strings; one call serves all tests."""
    if twin not in _FREE:
        found = subject_of(twin).generate(PROMPTS, BUDGET, **ASKED, **DRAWN)
        _FREE[twin] = found.new_tokens, [decode(row) for row in found.new_tokens]
    return _FREE[twin]


_FREE = {}


def stops_of(texts):
    """Return a string across three tokens of the first text, and one within a token of the last."""
    return [texts[0][5:9], texts[2][9:10] + texts[2][10:11].lower()]


def expected(twin, stops):
    """Return for each row ids, text and stop string, by looking at the whole text."""
    rows = []
    for ids, text in zip(*free(twin), strict=True):
        ends = [(text.find(s) + len(s), s) for s in stops if s in text]
        end, stop = min(ends, default=(len(text), None))
        left = text[: end - len(stop or "")]
        rows.append((ids[: len(left) // 2], left, stop))
    return rows


@twins
def test_each_row_ends_before_its_stop_string(twin):
    """KV-72: the others go on, and nothing is computed much past the end."""
    stops = stops_of(free(twin)[1])
    rows = expected(twin, stops)
    assert rows[0][2] is not None
    assert any(stop is None for _, _, stop in rows)

    done = subject_of(twin).generate(PROMPTS, BUDGET, stop=stops, decode=decode, **ASKED, **DRAWN)

    assert list(zip(done.new_tokens, done.texts, done.stopped, strict=True)) == rows
    lengths = [len(p) + len(ids) for p, (ids, _, _) in zip(PROMPTS, rows, strict=True)]
    assert done.length_B.tolist() == [len(row) for row in done.tokens] == lengths
    # The prompt, and at most the 8 tokens of the program in which the string was completed.
    forwarded = done.forwarded_positions_B.tolist()
    assert forwarded[0] <= len(PROMPTS[0]) + 8 < len(PROMPTS[0]) + BUDGET - 1


@pytest.mark.parametrize("steps", [1, 2, 5])
@twins
def test_a_stream_holds_back_what_could_become_a_stop_string(twin, steps):
    """And the ids before it come, each once, as soon as they are certain."""
    stops = stops_of(free(twin)[1])
    rows = expected(twin, stops)

    asked = {"stop": stops, "decode": decode, "chunk": 16, **ASKED, **DRAWN}
    items = list(subject_of(twin).stream(PROMPTS, BUDGET, steps=steps, **asked))

    assert joined(items) == [ids for ids, _, _ in rows]
    for b, (ids, text) in enumerate(zip(*free(twin), strict=True)):
        come = accumulate(len(item[b]) for item in items)
        # What had been computed when an item came, and how little of it may be missing.
        for n, count in enumerate(come):
            computed = min(1 + n * steps, len(ids))
            if not any(s in text for s in stops):
                assert computed - count <= 2


@twins
def test_a_string_that_never_comes_changes_nothing(twin):
    ids, texts = free(twin)
    # Its beginning is the end of the first text: it is given out once nothing more can come.
    stop = texts[0][-3:] + "?"

    done = subject_of(twin).generate(PROMPTS, BUDGET, stop=stop, decode=decode, **ASKED, **DRAWN)

    assert (done.new_tokens, done.texts, done.stopped) == (ids, texts, [None] * 3)


@twins
def test_a_cache_kept_after_a_stop_string_goes_on_as_if_the_rest_had_never_been(twin):
    stops = stops_of(free(twin)[1])
    asked = {"stop": stops, "decode": decode, **ASKED, **DRAWN}
    done = subject_of(twin).generate(PROMPTS, BUDGET, keep_cache=True, capacity=44, **asked)
    held = np.asarray(done.cache.length_B)

    last = [row[-1:] for row in done.tokens]
    after = subject_of(twin).generate(last, 3, cache=done.cache, consume=True)

    assert held.tolist() == [len(row) - 1 for row in done.tokens]
    whole = subject_of(twin).generate(done.tokens, 3)
    assert after.new_tokens == whole.new_tokens


@twins
def test_a_kept_cache_is_as_large_as_was_asked_for(twin):
    """Steps read the front of it; what a program wrote there stands in the whole afterwards."""
    generate, model = (
        importlib.import_module(f"{twin}.generation").generate,
        make_model(twin, "llama"),
    )
    asked = {"max_new_tokens": 4, "keep_cache": True, "capacity": 130}

    done = generate(model, PROMPTS[:1], stop="?", decode=decode, **asked)
    after = generate(model, [done.tokens[0][-1:]], max_new_tokens=3, cache=done.cache)

    assert done.cache.capacity == 130
    assert after.new_tokens == generate(model, done.tokens, max_new_tokens=3).new_tokens


@twins
def test_a_store_keeps_a_text_that_a_stop_string_ended(twin):
    generate = importlib.import_module(f"{twin}.generation").generate
    model, store = make_model(twin, "llama"), make_store(twin)
    plain = generate(model, PROMPTS[:1], max_new_tokens=8).new_tokens[0]
    asked = {"max_new_tokens": 8, "stop": decode(plain)[9:11], "decode": decode}

    done = [generate(model, PROMPTS[:1], store=store, **asked) for _ in range(2)]

    assert store.usage.locked == 0
    assert (
        done[0].new_tokens == done[1].new_tokens == generate(model, PROMPTS[:1], **asked).new_tokens
    )
    assert done[0].new_tokens[0] == plain[: len(done[0].new_tokens[0])] != plain
    assert done[1].reused_B.tolist() == [4]


@twins
def test_no_token_and_no_cache_are_no_way_to_stop(twin):
    none = subject_of(twin).generate([[1, 2]], 0, stop="a", decode=decode)
    assert (none.texts, none.stopped) == ([""], [None])

    with pytest.raises(RequestError) as error:
        subject_of(twin).generate([[1]], 4, stop="a", decode=decode, cached=False)

    assert str(error.value) == (
        "generate: stop is 'a' and cached False, expected a cache to go on from after the text was "
        "looked at. Leave out stop, or set cached=True."
    )
