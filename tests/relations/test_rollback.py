"""Rolling back and feeding other tokens equals never having been there."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import assert_agree, close
from jaxkv.spec.errors import RollbackError
from tests.tiny import BATCH, CAPACITY, CELLS, SLACK, feed, ids_of, module, shared_by

EXACT = close(rtol=1e-10, atol=1e-10)
backs = st.lists(st.integers(0, SLACK), min_size=BATCH, max_size=BATCH)


@shared_by(CELLS)
@example(first=20, back=[3, 3, 3, 3], sizes=[1, 1, 1, 1], seed=1)
@example(first=20, back=[3, 0, 2, 1], sizes=[8], seed=2)
@example(first=4, back=[3, 3, 3, 3], sizes=[8], seed=3)
@given(
    first=st.integers(3, 20),
    back=backs,
    sizes=st.lists(st.sampled_from([1, 1, 2, 5, 8]), min_size=1, max_size=3),
    seed=st.integers(0, 2**16),
)
def test_rollback_then_other_tokens_equals_never_having_been_there(cell, first, back, sizes, seed):
    """KV-27: the buffers stay; each row goes back by its own count."""
    subject, ids = cell.subject, ids_of(cell, seed)
    others = ids_of(cell, seed + 1, length=sum(sizes))
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [first])
    lengths = first - np.array(back)

    state = subject.poison(subject.rollback(state, lengths))
    logits, state = feed(subject, state, others, sizes)

    whole = np.zeros((BATCH, CAPACITY), int)
    for b, n in enumerate(lengths):
        whole[b, : n + others.shape[1]] = np.concatenate([ids[b, :n], others[b]])
    full = subject.full(whole)
    expected = np.stack([full[b, n : n + others.shape[1]] for b, n in enumerate(lengths)])
    assert_agree(logits, expected, EXACT, name="logits", names=("rolled back", "never there"))
    assert subject.length(state).tolist() == (lengths + others.shape[1]).tolist()


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_rolling_back_step_by_step_is_bounded_like_rolling_back_at_once(cell):
    """KV-15: a wrapped ring cannot be walked back further than its slack by small steps."""
    subject, ids = cell.subject, ids_of(cell, 4, length=21)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [20])

    for back in range(1, SLACK + 1):
        state = subject.rollback(state, np.full(BATCH, 20 - back))
    logits, state = subject.step(state, ids[:, 17:18])
    state = subject.rollback(state, np.full(BATCH, 17))

    assert_agree(logits, subject.full(ids[:, :18])[:, 17:], EXACT, name="logits")
    if cell.layout == "window":
        with pytest.raises(RollbackError):
            subject.rollback(state, np.full(BATCH, 16))
    else:
        assert subject.length(subject.rollback(state, np.full(BATCH, 0))).tolist() == [0] * BATCH


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.layout == "window"], ids=str)
def test_a_ring_refuses_what_lies_past_its_slack(cell):
    """KV-15: the evicted tokens are gone, and no counter pretends otherwise."""
    subject, ids = cell.subject, ids_of(cell, 4, length=20)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [20])

    with pytest.raises(RollbackError) as error:
        subject.rollback(state, np.array([20, 19, 16, 20]))

    assert str(error.value) == (
        "rollback: length_B[2] is 16, a ring of this cache has evicted what lies below 17. "
        "Make the cache with slack of at least 1 more."
    )


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize(("length", "given"), [(13, 13), (-1, -1)])
def test_a_rollback_forward_or_below_zero_is_refused(cell, length, given):
    subject, ids = cell.subject, ids_of(cell, 4, length=12)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [12])

    with pytest.raises(RollbackError) as error:
        subject.rollback(state, np.array([12, length, 12, 12]))

    assert str(error.value) == (
        f"rollback: length_B[1] is {given}, expected 0 to 12, what the row holds."
    )


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_reset_cache_answers_like_a_new_one(cell):
    """KV-23: length 0 directly after the reset, for every layout."""
    caches, subject, ids = module(cell, "caches"), cell.subject, ids_of(cell, 6)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [24])

    state = caches.reset(state)
    assert subject.length(state).tolist() == [0] * BATCH
    logits, _ = feed(subject, subject.poison(state), ids[:, ::-1], [8, 16])

    assert_agree(logits, subject.full(ids[:, ::-1]), EXACT, name="logits")
