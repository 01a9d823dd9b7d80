"""Rows are independent: each equals its solo run, whatever its neighbours and its padding."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from tests.tiny import BATCH, CAPACITY, CELLS, ids_of, shared_by

EXACT = close(rtol=1e-10, atol=1e-10)
counts = st.lists(st.integers(0, 8), min_size=BATCH, max_size=BATCH)


@shared_by(CELLS)
@example(rounds=[[3, 7, 1, 5], [1, 1, 1, 1], [8, 0, 2, 8]], seed=0)
@example(rounds=[[8, 8, 8, 8], [8, 1, 0, 8], [1, 0, 1, 1]], seed=0)
@given(rounds=st.lists(counts, min_size=1, max_size=3), seed=st.integers(0, 2**16))
def test_each_ragged_row_equals_its_solo_run(cell, rounds, seed):
    """KV-01, KV-10: rows of different lengths, rows that stand still, rows of length 0."""
    subject, ids = cell.subject, ids_of(cell, seed)
    state, seen = subject.init(BATCH, CAPACITY), [[] for _ in range(BATCH)]
    at = np.zeros(BATCH, int)

    for count in rounds:
        chunk = np.stack([np.roll(row, -start)[:8] for row, start in zip(ids, at, strict=True)])
        logits, state = subject.step(state, chunk, count=np.array(count))
        for b, n in enumerate(count):
            seen[b].append(logits[b, :n])
        at += count

    solo = subject.full(ids)
    assert subject.length(state).tolist() == at.tolist()
    for b in range(BATCH):
        got = np.concatenate(seen[b])[None]
        if got.size:
            assert_agree(got, solo[b : b + 1, : at[b]], EXACT, name=f"row {b}")


@shared_by(CELLS)
@given(seed=st.integers(0, 2**16), count=st.integers(1, 7), pad=st.integers(0, 18))
def test_what_stands_beyond_a_rows_count_does_not_matter(cell, seed, count, pad):
    subject, ids = cell.subject, ids_of(cell, seed, length=8)
    padded = ids.copy()
    padded[:, count:] = pad
    counts = np.full(BATCH, count)

    left, after_left = subject.step(subject.init(BATCH, CAPACITY), ids, count=counts)
    right, after_right = subject.step(subject.init(BATCH, CAPACITY), padded, count=counts)
    next_left, _ = subject.step(after_left, ids[:, :1])
    next_right, _ = subject.step(after_right, ids[:, :1])

    np.testing.assert_array_equal(left[:, :count], right[:, :count])
    np.testing.assert_array_equal(next_left, next_right)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_row_without_any_token_stays_finite(cell):
    """KV-09: a wholly padded row gives finite numbers, never NaN, and hurts no neighbour."""
    subject, ids = cell.subject, ids_of(cell, 3, length=8)

    logits, state = subject.step(subject.init(BATCH, CAPACITY), ids, count=np.array([0, 5, 0, 8]))

    assert np.isfinite(logits).all()
    assert subject.length(state).tolist() == [0, 5, 0, 8]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_generation_of_a_padded_batch_equals_the_solo_runs(cell, side):
    """KV-01: padding on either side, realigned on the host."""
    subject, ids = cell.subject, ids_of(cell, 5, length=7)
    lengths = [3, 7, 1, 5]
    mask = np.zeros((BATCH, 7), bool)
    for b, n in enumerate(lengths):
        mask[b, slice(7 - n, 7) if side == "left" else slice(0, n)] = True

    batch = subject.generate(ids, 8, mask_BT=mask)

    solo = [subject.generate([ids[b][mask[b]]], 8).new_tokens[0] for b in range(BATCH)]
    assert batch.new_tokens == solo
    assert batch.length_B.tolist() == [n + 8 for n in lengths]
