"""Gather commutes with steps, forks are separate, an old cache still answers as before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from jaxkv.spec.errors import RequestError
from tests.tiny import BATCH, CAPACITY, CELLS, feed, ids_of, shared_by

EXACT = close(rtol=1e-10, atol=1e-10)
rows = st.lists(st.integers(0, BATCH - 1), min_size=BATCH, max_size=BATCH)


@shared_by(CELLS)
@given(rows=rows, first=st.integers(1, 20), seed=st.integers(0, 2**16))
def test_gather_then_step_equals_step_then_gather(cell, rows, first, seed):
    """KV-47: batch x rows never coincide with another axis, duplicates and swaps included."""
    subject, ids = cell.subject, ids_of(cell, seed)
    rows = np.array(rows)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [first])
    more = ids_of(cell, seed + 1, length=3)

    late, late_state = feed(subject, subject.fork(state), more, [1, 2])
    early, early_state = feed(subject, subject.gather(state, rows), more[rows], [1, 2])

    assert_agree(early, late[rows], EXACT, name="logits", names=("gather, step", "step, gather"))
    gathered = subject.gather(late_state, rows)
    for layer in range(subject.info.num_layers):
        left, right = subject.kv(early_state, layer), subject.kv(gathered, layer)
        assert_agree(
            {"k": left.keys_BSKH, "v": left.values_BSKH},
            {"k": right.keys_BSKH, "v": right.values_BSKH},
            EXACT,
            name="cache",
            valid=left.valid_BS,
        )


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_gather_may_change_the_number_of_rows(cell):
    subject, ids = cell.subject, ids_of(cell, 3)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9])
    rows = np.array([2, 2, 0, 3, 1, 2])

    logits, _ = feed(subject, subject.gather(state, rows), ids[rows, 9:], [1, 3])

    assert_agree(logits, subject.full(ids)[rows, 9:13], EXACT, name="logits")


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("row", [-1, BATCH])
def test_a_gather_out_of_range_is_refused(cell, row):
    subject, ids = cell.subject, ids_of(cell, 3)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9])

    with pytest.raises(RequestError) as error:
        subject.gather(state, np.array([0, row, 1, 2]))

    assert str(error.value) == (
        f"gather: rows_B[1] is {row}, expected 0 to 3 (the cache has 4 rows)."
    )


@shared_by(CELLS)
@given(first=st.integers(1, 12), size=st.sampled_from([1, 3, 8]), seed=st.integers(0, 2**16))
def test_a_forks_write_leaves_the_other_alone(cell, first, size, seed):
    """KV-24: a prefix that was handed out stays what it was."""
    subject, ids = cell.subject, ids_of(cell, seed)
    left, right = ids_of(cell, seed + 1, length=size), ids_of(cell, seed + 2, length=size)
    _, prefix = feed(subject, subject.init(BATCH, CAPACITY), ids, [first])

    once, _ = subject.step(subject.fork(prefix), left)
    other, _ = subject.step(subject.fork(prefix), right)
    again, _ = subject.step(prefix, left)

    np.testing.assert_array_equal(once, again)
    text = np.concatenate([ids[:, :first], right], axis=1)
    assert_agree(other, subject.full(text)[:, first:], EXACT, name="logits")


@shared_by([cell for cell in CELLS if cell.twin == "jaxkv"])
@given(sizes=st.lists(st.sampled_from([1, 2, 8]), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_an_old_cache_still_answers_the_same_after_new_steps(cell, sizes, seed):
    subject, ids = cell.subject, ids_of(cell, seed)
    _, old = feed(subject, subject.init(BATCH, CAPACITY), ids, [7])
    before, _ = subject.step(old, ids[:, 7:8])

    state = old
    for size in sizes:
        _, state = subject.step(state, ids_of(cell, seed + 1, length=size))
    after, _ = subject.step(old, ids[:, 7:8])

    np.testing.assert_array_equal(before, after)
    assert subject.length(old).tolist() == [7] * BATCH
