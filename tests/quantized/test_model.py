"""A model on layouts that change its results: the same ones however a text was cut, in both twins.

The model has layers with windows of 5 and 8, which keep their rings, and one without.
"""

from functools import cache

import hypothesis
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from jaxkv.spec.errors import RequestError
from tests.relations.test_partition import partitions
from tests.tiny import (
    BATCH,
    CAPACITY,
    DEEP,
    LONGEST,
    TWINS,
    Cell,
    feed,
    ids_of,
    make_model,
    module,
)

EXACT = close(rtol=1e-10, atol=1e-10)
FORMS = {
    "4": ("quantized", {"bits": 4, "group_size": 6, "residual_length": 6}),
    "int8": ("quantized", {"bits": 8}),
    "sinks": ("sinks", {"sinks": 2, "window": 6}),
}
CELLS = [(twin, form) for twin in TWINS for form in FORMS]
cells = pytest.mark.parametrize("cell", CELLS, ids="-".join)


@cache
def subject_of(cell, slack=3):
    twin, (layout, options) = cell[0], FORMS[cell[1]]
    kind = module(Cell(twin, "llama", layout), "subject").Subject
    return kind(make_model(twin, "llama"), layout=layout, layout_options=options, slack=slack)


def texts(seed, length=LONGEST):
    return ids_of(Cell("jaxkv", "llama", "contiguous"), seed, length=length)


def at_once(subject, ids):
    """Return the logits of the whole text in one step: what the layout owes."""
    return feed(subject, subject.init(len(ids), CAPACITY), ids, [ids.shape[1]])[0]


@cells
@hypothesis.settings(max_examples=300 if DEEP else 12)
@example(sizes=[1] * 24, seed=0)
@example(sizes=[7, 8, 9], seed=0)
@given(sizes=partitions(), seed=st.integers(0, 2**16))
def test_any_partition_of_the_text_gives_the_logits_and_the_cache_of_one_step(cell, sizes, seed):
    subject, ids = subject_of(cell), texts(seed)

    logits, parts = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)
    owed, whole = feed(subject, subject.init(BATCH, CAPACITY), ids, [LONGEST])

    assert_agree(logits, owed, EXACT, name="logits", names=("chunks", "one step"))
    for layer in range(3):
        left, right = subject.kv(parts, layer), subject.kv(whole, layer)
        np.testing.assert_array_equal(left.valid_BS, right.valid_BS)
        one, other = ({"k": kv.keys_BSKH, "v": kv.values_BSKH} for kv in (left, right))
        assert_agree(one, other, EXACT, name="cache", valid=left.valid_BS)


@cells
def test_it_is_not_the_exact_function(cell):
    """Near it for 8 bits, farther for 4, and another one where tokens are dropped."""
    subject, ids = subject_of(cell), texts(1)

    exact = Cell(cell[0], "llama", "contiguous").subject.full(ids)
    off = np.abs(at_once(subject, ids) - exact).max()

    most = {"int8": 0.5, "4": 8.0, "sinks": np.inf}[cell[1]]
    assert 1e-3 < off < most


@cells
def test_each_ragged_row_equals_its_solo_run(cell):
    subject, ids = subject_of(cell), texts(2)
    state, at = subject.init(BATCH, CAPACITY), np.zeros(BATCH, int)
    owed = at_once(subject, ids)

    for counts in ([3, 8, 0, 5], [8, 1, 0, 8], [1, 0, 0, 1], [8, 8, 8, 8]):
        chunk = np.stack([np.roll(row, -start)[:8] for row, start in zip(ids, at, strict=True)])
        logits, state = subject.step(state, chunk, count=np.array(counts))
        for b in np.flatnonzero(counts):
            ours, own = logits[b, : counts[b]], owed[b, at[b] : at[b] + counts[b]]
            assert_agree(ours, own, EXACT, name=f"row {b}")
        at += counts


@pytest.mark.parametrize("form", FORMS)
def test_the_twins_agree(form):
    ours, theirs = (at_once(subject_of((twin, form)), texts(3)) for twin in TWINS)

    assert_agree(ours, theirs, close(rtol=1e-9, atol=1e-9), name="logits", names=TWINS)


@cells
def test_generation_is_the_same_in_one_program_step_by_step_and_streamed(cell):
    """Prefill and loop are one jit; ragged rows, far past the residual and the window."""
    subject, prompts = subject_of(cell), [[5, 6, 7], list(range(20, 37)), [9]]

    # One program for both budgets.
    kept = {"keep_cache": True, "capacity": 64}
    whole = subject.generate(prompts, 14, **kept)
    streamed = list(subject.stream(prompts, 14))
    first = subject.generate(prompts, 6, **kept)
    last = [[row[-1]] for row in first.new_tokens]
    rest = subject.generate(last, 8, cache=first.cache, consume=True)

    for b, prompt in enumerate(prompts):
        text = list(prompt)
        state = subject.init(1, 64)
        logits, state = subject.step(state, np.array([text]))
        for _ in range(14):
            text.append(int(logits[0, -1].argmax()))
            logits, state = subject.step(state, np.array([text[-1:]]))
        assert whole.new_tokens[b] == text[len(prompt) :]
        assert [t for item in streamed for t in item[b]] == whole.new_tokens[b]
        assert first.new_tokens[b] + rest.new_tokens[b] == whole.new_tokens[b]


@cells
def test_rollback_then_other_tokens_equals_never_having_been_there(cell):
    subject, ids, other = subject_of(cell), texts(4), texts(5)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [8, 8, 1])
    mixed = np.concatenate([ids[:, :14], other[:, :10]], axis=1)

    state = subject.poison(subject.rollback(state, np.full(BATCH, 14)))
    logits, _ = feed(subject, state, mixed[:, 14:], [1, 8, 1])

    assert_agree(logits, at_once(subject, mixed)[:, 14:], EXACT, name="logits")


@cells
def test_layers_with_a_window_keep_their_ring(cell):
    sites = subject_of(cell).init(1, CAPACITY).sites

    kinds = [type(site).__name__ for site in sites]

    own = {"4": "QuantizedSite", "int8": "PerTokenSite", "sinks": "SinkSite"}[cell[1]]
    assert kinds == ["WindowSite", own, "WindowSite"]


@cells
def test_a_larger_capacity_changes_nothing(cell):
    subject, ids = subject_of(cell), texts(6)

    logits, _ = feed(subject, subject.init(BATCH, 200), ids, [8, 1, 8, 1, 6])

    assert_agree(logits, at_once(subject, ids), EXACT, name="logits")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("name", ["generate", "stream"])
def test_an_option_of_another_layout_is_refused_at_once(twin, name):
    kind = module(Cell(twin, "llama", "paged"), "streaming" if name == "stream" else "generation")
    asked = {"max_new_tokens": 2, "layout": "paged", "layout_options": {"bits": 4}}

    with pytest.raises(RequestError, match="layout 'paged' has no option 'bits'"):
        getattr(kind, name)(make_model(twin, "llama"), [[1]], **asked)


@pytest.mark.parametrize("bits", [[2], ([2],), 3], ids=repr)
@pytest.mark.parametrize("twin", TWINS)
def test_a_number_of_bits_that_is_none_is_refused_by_name(twin, bits):
    generation = module(Cell(twin, "llama", "quantized"), "generation")
    asked = {"max_new_tokens": 2, "layout": "quantized", "layout_options": {"bits": bits}}

    with pytest.raises(RequestError, match=r"bits is .*, expected one of 2, 4, 8"):
        generation.generate(make_model(twin, "llama"), [[1]], **asked)
