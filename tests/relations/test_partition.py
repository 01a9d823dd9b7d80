"""Cached equals full, however the text is cut into chunks."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from tests.tiny import BATCH, CAPACITY, CELLS, LONGEST, feed, ids_of, shared_by

EXACT = close(rtol=1e-10, atol=1e-10)
T = LONGEST
# Whole, one by one, first or last token alone, equal chunks, chunks at the windows 5 and 8 and
# beside them: always run, whatever Hypothesis draws.
ALWAYS = (
    [T],
    [1] * T,
    [1, T - 1],
    [T - 1, 1],
    [6] * 4,
    [4] * 6,
    [5] * 4 + [4],
    [7, 8, 9],
    [9, 8, 7],
)


@st.composite
def partitions(draw, total=T):
    cuts = draw(st.sets(st.integers(1, total - 1)))
    edges = [0, *sorted(cuts), total]
    return [b - a for a, b in pairwise(edges)]


def always(test):
    for sizes in ALWAYS:
        test = example(sizes=sizes, seed=0)(test)
    return test


@shared_by(CELLS)
@always
@given(sizes=partitions(), seed=st.integers(0, 2**16))
def test_any_partition_of_the_text_gives_the_logits_of_one_forward(cell, sizes, seed):
    """KV-03, KV-07 (float64), KV-08, KV-12: chunk offsets and windows inside chunks."""
    subject, ids = cell.subject, ids_of(cell, seed)

    logits, state = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)

    assert_agree(logits, subject.full(ids), EXACT, name="logits", names=("chunks", "full"))
    assert subject.length(state).tolist() == [T] * BATCH


@shared_by(CELLS)
@given(sizes=partitions(), seed=st.integers(0, 2**16))
def test_any_partition_leaves_the_same_keys_and_values(cell, sizes, seed):
    """KV-03: not only the logits, the whole cache content."""
    subject, ids = cell.subject, ids_of(cell, seed)

    _, whole = feed(subject, subject.init(BATCH, CAPACITY), ids, [T])
    _, parts = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)

    for layer in range(subject.info.num_layers):
        left, right = subject.kv(parts, layer), subject.kv(whole, layer)
        np.testing.assert_array_equal(left.position_BS, right.position_BS)
        np.testing.assert_array_equal(left.valid_BS, right.valid_BS)
        sides = [{f"k.{layer}": kv.keys_BSKH, f"v.{layer}": kv.values_BSKH} for kv in (left, right)]
        assert_agree(*sides, EXACT, name="cache", valid=left.valid_BS)


@shared_by(CELLS)
@given(at=st.integers(1, T - 1), seed=st.integers(0, 2**16))
def test_a_token_never_moves_the_logits_before_it(cell, at, seed):
    subject, ids = cell.subject, ids_of(cell, seed)
    other = ids.copy()
    other[:, at] = (other[:, at] + 1) % cell.config.vocab_size

    left, right = subject.full(ids), subject.full(other)

    np.testing.assert_array_equal(left[:, :at], right[:, :at])
    assert not np.allclose(left[:, at], right[:, at])
