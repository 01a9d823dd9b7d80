"""Capacity and unused slots change nothing; exactly full works, one more is an error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from jaxkv.spec.errors import CapacityError
from tests.relations.test_partition import partitions
from tests.tiny import BATCH, CAPACITY, CELLS, feed, ids_of, module, shared_by

EXACT = close(rtol=1e-10, atol=1e-10)


@shared_by(CELLS)
@given(sizes=partitions(total=12), seed=st.integers(0, 2**16))
def test_a_larger_capacity_changes_nothing(cell, sizes, seed):
    subject, ids = cell.subject, ids_of(cell, seed, length=12)

    small, _ = feed(subject, subject.init(BATCH, 12), ids, sizes)
    large, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)

    assert_agree(small, large, EXACT, name="logits", names=("capacity 12", f"{CAPACITY}"))


@shared_by(CELLS)
@given(sizes=partitions(), seed=st.integers(0, 2**16))
def test_nan_in_unwritten_keys_and_values_reaches_no_output(cell, sizes, seed):
    """KV-06, KV-09: a slot counts only if a length says so."""
    subject, ids = cell.subject, ids_of(cell, seed)
    state, logits, at = subject.init(BATCH, CAPACITY), [], 0

    for size in sizes:
        out, state = subject.step(subject.poison(state), ids[:, at : at + size])
        logits.append(out)
        at += size

    assert_agree(np.concatenate(logits, 1), subject.full(ids), EXACT, name="logits")


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_exactly_full_works_and_one_more_says_by_how_much(cell):
    subject, ids = cell.subject, ids_of(cell, 1, length=13)
    state = subject.init(BATCH, 12)

    logits, state = feed(subject, state, ids[:, :12], [8, 4])

    assert_agree(logits, subject.full(ids[:, :12]), EXACT, name="logits")
    with pytest.raises(CapacityError) as error:
        subject.step(state, ids[:, 12:])
    assert str(error.value) == (
        "check: row 0 was refused, 1 tokens too many for capacity 12 with 12 held. "
        "Make the cache with capacity 13, or feed 1 fewer."
    )


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("size", [1, 4, 8])
def test_a_refused_chunk_overwrites_nothing(cell, size):
    """KV-18: an update past the end is never moved back over valid tokens."""
    caches, subject, ids = module(cell, "caches"), cell.subject, ids_of(cell, 2, length=16)
    held = 9 - size
    _, state = feed(subject, subject.init(BATCH, 8), ids, [held])
    before = [subject.kv(state, layer) for layer in range(subject.info.num_layers)]

    _, refused = subject.step(state, ids[:, held : held + size], check=False)

    assert refused.overflow_B.tolist() == [1] * BATCH
    assert subject.length(refused).tolist() == [held] * BATCH
    for layer, left in enumerate(before):
        right = subject.kv(refused, layer)
        np.testing.assert_array_equal(left.valid_BS, right.valid_BS)
        at = left.valid_BS
        np.testing.assert_array_equal(left.keys_BSKH[at], right.keys_BSKH[at])
        np.testing.assert_array_equal(left.values_BSKH[at], right.values_BSKH[at])
    back = caches.rollback(refused, refused.length_B)
    assert back.overflow_B.tolist() == [0] * BATCH


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_bucket_longer_than_the_room_left_is_no_overflow(cell):
    """A step of 7 real tokens is padded to 8, with room for just 7."""
    subject, ids = cell.subject, ids_of(cell, 4, length=15)

    logits, state = feed(subject, subject.init(BATCH, 15), ids, [8, 7])

    assert_agree(logits, subject.full(ids), EXACT, name="logits")
    assert subject.length(state).tolist() == [15] * BATCH


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.layout != "paged"], ids=str)
def test_nbytes_equals_the_allocated_arrays_to_the_byte(cell):
    caches, subject = module(cell, "caches"), cell.subject
    state = subject.init(BATCH, CAPACITY)

    layers = [subject.kv(state, layer) for layer in range(subject.info.num_layers)]
    buffers = sum(kv.keys_BSKH.nbytes + kv.values_BSKH.nbytes for kv in layers)

    marks = 3 * BATCH * 4  # length, peak and overflow: int32
    assert caches.nbytes(state) == buffers + marks
