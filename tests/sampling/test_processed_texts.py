"""Generation with processors: the rules at every token, rows apart, streams and stores alike."""

import importlib

import numpy as np
import pytest

from tests.prefix.stores import make_store
from tests.sampling.processed import joined, theirs
from tests.sampling.slow import Twin
from tests.tiny import CORE, DEEP, TWINS, Cell, make_model

PROMPTS = [[5, 3, 9, 1, 7], [2, 4], [11] * 9]
# The plain greedy texts repeat one token; 7 is the first of the second.
ENDS = (7, 28)
ASKED = {
    "repetition_penalty": [1.25, 1.5, 1.0],
    "presence_penalty": [0.5, 0.0, 2.0],
    "frequency_penalty": [1.0, 0.25, 0.5],
    "logit_bias": [{0: -5.0}, None, {76: 1.5, 3: -2.0}],
    "min_new_tokens": [0, 3, 9],
    "end_ids": ENDS,
}
# The first two rows are greedy, the third draws: one program for both.
DRAWN = {"temperature": [0.0, 0.0, 6.0], "top_k": 40, "seeds": [0, 1, 42]}
BUDGET = 12
cells = pytest.mark.parametrize(
    "cell", CORE if DEEP else [cell for cell in CORE if cell.layout != "paged"], ids=str
)
twins = pytest.mark.parametrize("twin", TWINS)


def one(values, b):
    """Return what row b alone asks for."""
    rows = {name: x[b] if isinstance(x, list) else x for name, x in values.items()}
    return rows | {"end_ids": values["end_ids"]} if "end_ids" in values else rows


@cells
def test_every_greedy_token_is_the_likeliest_after_transformers_processors(cell):
    """From the logits of the whole text without a cache; end tokens come when they may."""
    result = cell.subject.generate(PROMPTS, BUDGET, **ASKED, **DRAWN)

    plain = cell.subject.generate(PROMPTS, BUDGET, end_ids=ENDS, **DRAWN)
    for b in (0, 1):
        prompt, new = PROMPTS[b], result.new_tokens[b]
        logits = cell.subject.full(np.array([[*prompt, *new]]))[0]
        asked = one(ASKED, b)
        ends = asked.pop("end_ids")
        for n, token in enumerate(new):
            scores = theirs(logits[len(prompt) - 1 + n], prompt, new[:n], ends=ends, **asked)
            assert token == scores.argmax()
        assert new != plain.new_tokens[b]
    assert plain.new_tokens[1] == [7]
    assert len(result.new_tokens[1]) > 3


@cells
def test_rows_alone_and_padded_to_a_longer_batch_are_the_same(cell):
    """KV-70, KV-71: greedy and drawn, whatever stands beside them."""
    batch = cell.subject.generate(PROMPTS, BUDGET, **ASKED, **DRAWN).new_tokens

    for b in range(3):
        # Of the same bucket and number of rows, so that it is the same program.
        others = [[1, 2, 3], [8] * 14]
        beside = [*others[:b], PROMPTS[b], *others[b:]]
        asked = {**ASKED, **DRAWN}
        rows = {
            name: [x[b] if at == b else x[at] for at in range(3)] if isinstance(x, list) else x
            for name, x in asked.items()
        }
        assert cell.subject.generate(beside, BUDGET, **rows).new_tokens[b] == batch[b]


@twins
def test_a_row_alone_is_the_row_of_the_batch(twin):
    """KV-70, KV-71: in a program of one row."""
    subject = Cell(twin, "llama", "contiguous").subject
    batch = subject.generate(PROMPTS, BUDGET, **ASKED, **DRAWN).new_tokens

    alone = subject.generate(PROMPTS[2:], BUDGET, **one(ASKED, 2), **one(DRAWN, 2)).new_tokens

    assert alone == batch[2:]


@pytest.mark.parametrize("steps", [1, 5])
@twins
def test_a_stream_gives_the_text_of_the_batch(twin, steps):
    """The same seeds, with every processor on; the prompt in pieces too."""
    subject = Cell(twin, "llama", "contiguous").subject
    batch = subject.generate(PROMPTS, BUDGET, **ASKED, **DRAWN).new_tokens

    items = subject.stream(PROMPTS, BUDGET, steps=steps, chunk=16, **ASKED, **DRAWN)

    assert joined(items) == batch


def test_other_numbers_cost_no_compilation_and_neutral_ones_run_the_plain_program():
    generate = importlib.import_module("jaxkv.generation").generate
    model = make_model("jaxkv", "llama")
    plain = {"end_ids": ENDS, **DRAWN}
    for asked in ({**ASKED, **DRAWN}, plain):
        generate(model, PROMPTS, max_new_tokens=BUDGET, **asked)

    others = [
        {**plain, "frequency_penalty": -1.0},
        {**plain, "logit_bias": {3: 1.0, 4: -1.0, 5: 0.5}, "min_new_tokens": [1, 2, 3]},
        {**plain, "repetition_penalty": [1.0] * 3, "logit_bias": [None, {}, {}]},
    ]
    counts = [
        generate(model, PROMPTS, max_new_tokens=BUDGET, **asked).compilations for asked in others
    ]

    assert counts == [0, 0, 0]


@twins
def test_a_prompt_that_a_store_knows_counts_like_any_other(twin):
    generate = importlib.import_module(f"{twin}.generation").generate
    model, store = make_model(twin, "llama"), make_store(twin)
    prompt = [76, 0, 76, 28, 76, 28, 0, 3, 28, 5]
    asked = {"max_new_tokens": 6, "repetition_penalty": 3.0, "end_ids": ENDS}

    cold, warm = (generate(model, [prompt], store=store, **asked) for _ in range(2))

    assert warm.reused_B.tolist() == [8]
    assert cold.new_tokens == warm.new_tokens == generate(model, [prompt], **asked).new_tokens
    assert warm.new_tokens != generate(model, [prompt[8:]], **asked).new_tokens


@twins
def test_a_continued_cache_counts_the_text_that_the_call_sees(twin):
    cell = Cell(twin, "llama", "contiguous")
    first = cell.subject.generate(PROMPTS, 3, keep_cache=True, capacity=44)
    last = [row[-1:] for row in first.new_tokens]

    asked = {"repetition_penalty": 2.0, "min_new_tokens": 1, "end_ids": ENDS}
    second = cell.subject.generate(last, 4, cache=first.cache, consume=True, **asked)

    for b, new in enumerate(second.new_tokens):
        logits = cell.subject.full(np.array([[*first.tokens[b], *new]]))[0]
        at = len(first.tokens[b]) - 1
        for n, token in enumerate(new):
            scores = theirs(
                logits[at + n],
                last[b],
                new[:n],
                ends=ENDS,
                repetition_penalty=2.0,
                min_new_tokens=1,
            )
            assert token == scores.argmax()


@twins
def test_the_likeliest_tokens_are_those_of_the_models_own_distribution(twin):
    """Whatever processors and temperature did; the first of equal ones by id."""
    cell = Cell(twin, "llama", "contiguous")

    result = cell.subject.generate(PROMPTS, [BUDGET, 5, BUDGET], logprobs=3, **ASKED, **DRAWN)

    for b, prompt in enumerate(PROMPTS):
        new = result.new_tokens[b]
        logits = cell.subject.full(np.array([result.tokens[b]]))[0, len(prompt) - 1 : -1]
        peak = logits.max(-1, keepdims=True)
        own = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
        ids = np.argsort(-own, axis=-1, kind="stable")[:, :3]
        assert result.top_ids[b].dtype == np.int32
        assert result.top_logprobs[b].dtype == np.float32
        np.testing.assert_array_equal(result.top_ids[b], ids)
        values = np.take_along_axis(own, ids, axis=-1)
        np.testing.assert_allclose(result.top_logprobs[b], values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            result.logprobs[b], own[np.arange(len(new)), new], rtol=1e-5, atol=1e-6
        )


@twins
def test_without_new_tokens_there_are_no_likeliest_ones(twin):
    result = Cell(twin, "llama", "contiguous").subject.generate([[1, 2]], 0, logprobs=4)

    assert result.top_ids[0].shape == result.top_logprobs[0].shape == (0, 4)


@pytest.mark.parametrize("value", [0, -1, 98])
@twins
def test_a_number_of_likeliest_tokens_out_of_range_is_refused(twin, value):
    from jaxkv.spec.errors import RequestError

    with pytest.raises(RequestError) as error:
        Cell(twin, "llama", "contiguous").subject.generate([[1]], 1, logprobs=value)

    assert str(error.value) == (
        f"generate: logprobs is {value!r}, expected True, False or a whole number from 1 to 97, "
        "the vocabulary."
    )


@twins
def test_of_equally_likely_tokens_the_lowest_id_is_told_first(twin):
    own = Twin(twin)
    logits = np.tile(np.arange(40.0) % 4, (3, 1))

    ids, told = own.sampling.top_logprobs(own.array(logits), top=15)

    threes, twos = list(range(3, 40, 4)), list(range(2, 40, 4))
    assert np.asarray(ids).tolist() == [[*threes, *twos[:5]]] * 3
    assert (np.diff(np.asarray(told), axis=1) <= 0).all()
