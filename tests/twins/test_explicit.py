"""Given positions, visibility and masks in the twins' subjects, and the faults planted by them."""

import numpy as np
import pytest

from crosscheck import Disagreement, assert_agree
from jaxkv.spec.errors import CapacityError, RequestError, RollbackError, ShapeError
from tests.tiny import feed
from tests.twins.subjects import (
    BOTH,
    EXACT,
    FIRST,
    LAYOUTS,
    LLAMA,
    B,
    T,
    causal,
    counted,
    subject_of,
    texts,
)

MASKS = {
    "left": np.arange(8) >= np.array([[3], [5]]),
    "right": np.arange(8) < np.array([[5], [4]]),
    "scattered": np.array([[1, 0, 1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0, 1, 0]]) > 0,
}
HIDDEN = np.tri(2, T, FIRST, dtype=bool) & (np.arange(T) > 0)
FAULTS = [
    pytest.param({"positions": np.tile([0, 1], (B, 1))}, 0, id="positions-restart"),
    pytest.param({"positions": np.tile([3, 5], (B, 1))}, 1, id="a-position-is-skipped"),
    pytest.param({"visible": np.ones((B, 2, T), bool)}, 0, id="the-future-is-seen"),
    pytest.param({"visible": np.tile(HIDDEN, (B, 1, 1))}, 0, id="the-first-token-is-hidden"),
]
REFUSED = [
    pytest.param({"mask": np.ones((B, T))}, ShapeError, r"mask is float64 \(2, 5\)", id="no-bool"),
    pytest.param({"mask": np.ones((B, 3), bool)}, ShapeError, r"mask is bool \(2, 3\)", id="mask"),
    pytest.param({"count": np.ones(5, int)}, ShapeError, r"expected \(2,\)", id="count"),
    pytest.param(
        {"count": np.ones(B, int), "mask": np.ones((B, T), bool)},
        RequestError,
        "mask and count are both given",
        id="both",
    ),
    pytest.param(
        {"positions": np.ones((B, T))}, ShapeError, "positions is float64", id="positions"
    ),
    pytest.param(
        {"positions": np.full((B, T), 512)},
        CapacityError,
        r"positions\[0\]\[0\] is 512, expected 0 to 511",
        id="past-the-model",
    ),
    pytest.param(
        {"visible": np.ones((B, T, 3), bool)},
        ShapeError,
        r"visible is bool \(2, 5, 3\), expected bool \(2, 5, 5\)",
        id="visible",
    ),
]


@pytest.mark.parametrize("given", ["positions", "visible", "both"])
@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_default_positions_and_visibility_given_change_nothing(cell, given):
    subject, ids = subject_of(cell), texts(cell)
    options = {"positions": counted()} if given != "visible" else {}
    options |= {"visible": causal()} if given != "positions" else {}
    later = {name: x[:, FIRST:] for name, x in options.items()}

    whole = subject.full(ids, **options)
    _, state = feed(subject, subject.init(B, 8), ids, [FIRST])
    rest, state = subject.step(state, ids[:, FIRST:], **later)

    plain = subject.full(ids)
    assert_agree(whole, plain, EXACT, name="logits")
    assert_agree(rest, plain[:, FIRST:], EXACT, name="logits")
    assert subject.length(state).tolist() == [T] * B


@pytest.mark.parametrize("cell", LAYOUTS, ids=str)
def test_default_positions_given_on_a_layout_with_windows_change_nothing(cell):
    """The ring of 7 slots has wrapped before positions are given."""
    subject, ids = subject_of(cell), texts(cell, 12)

    _, state = feed(subject, subject.init(B, 12), ids, [8])
    given, _ = subject.step(subject.fork(state), ids[:, 8:], positions=counted(12)[:, 8:])
    left, _ = subject.step(state, ids[:, 8:])

    assert_agree(given, left, EXACT, name="logits")


@pytest.mark.parametrize(("fault", "first"), FAULTS)
@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_a_fault_planted_by_positions_or_visibility_changes_the_logits(cell, fault, first):
    subject, ids = subject_of(cell), texts(cell)
    _, state = feed(subject, subject.init(B, 8), ids, [FIRST])

    wrong, _ = subject.step(subject.fork(state), ids[:, FIRST:], **fault)
    right, _ = subject.step(state, ids[:, FIRST:])

    with pytest.raises(Disagreement):
        assert_agree(wrong[:, first:], right[:, first:], EXACT, name="logits")
    if first:
        assert_agree(wrong[:, :first], right[:, :first], EXACT, name="logits")


@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_a_planted_fault_is_the_same_in_whole_texts_and_in_steps(cell):
    """Token 1 is hidden from all that come after it."""
    subject, ids, seen = subject_of(cell), texts(cell), causal()
    seen[:, 2:, 1] = False

    whole = subject.full(ids, visible=seen)
    _, state = subject.step(subject.init(B, 8), ids[:, :FIRST], visible=seen[:, :FIRST, :FIRST])
    rest, _ = subject.step(state, ids[:, FIRST:], visible=seen[:, FIRST:])

    assert_agree(rest, whole[:, FIRST:], EXACT, name="logits")
    with pytest.raises(Disagreement):
        assert_agree(whole[:, 2:], subject.full(ids)[:, 2:], EXACT, name="logits")


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_a_common_shift_of_all_positions_changes_nothing_under_rotation(cell):
    subject, ids = subject_of(cell), texts(cell)

    shifted = subject.full(ids, positions=counted() + 9)

    assert_agree(shifted, subject.full(ids), EXACT, name="logits")


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_a_masked_row_equals_its_solo_run(cell, side):
    """Padding ids lie outside of the vocabulary: they are never looked up."""
    subject, ids, real = subject_of(cell), texts(cell), MASKS[side]
    padded = np.full(real.shape, 10_000)
    for row, many in enumerate(real.sum(1)):
        padded[row, real[row]] = ids[row, :many]

    whole = subject.full(padded, mask=real)
    head, state = subject.step(subject.init(B, 8), padded[:, :5], mask=real[:, :5])
    tail, state = subject.step(state, padded[:, 5:], mask=real[:, 5:])

    solo, stepped = subject.full(ids), np.concatenate([head, tail], axis=1)
    for row, many in enumerate(real.sum(1)):
        for found in (whole, stepped):
            assert_agree(found[None, row, real[row]], solo[None, row, :many], EXACT, name="logits")
    assert subject.length(state).tolist() == real.sum(1).tolist()


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_a_mask_beside_given_positions_equals_the_mask_alone(cell):
    subject, ids = subject_of(cell), texts(cell)
    real = np.arange(T) >= np.array([[2], [0]])
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)

    whole = subject.full(ids, mask=real, positions=positions)
    _, state = subject.step(subject.init(B, 8), ids[:, :3], mask=real[:, :3])
    tail, _ = subject.step(state, ids[:, 3:], positions=positions[:, 3:])

    plain = subject.full(ids, mask=real)
    assert_agree(whole, plain, EXACT, name="logits", valid=real)
    assert_agree(tail, plain[:, 3:], EXACT, name="logits")


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_a_state_with_given_positions_rolls_back_gathers_grows_and_forks(cell):
    subject, ids = subject_of(cell), texts(cell)
    _, state = subject.step(subject.init(B, 8), ids, positions=counted())

    state = subject.fork(subject.rollback(state, np.array([3, 3])))
    state = subject.grow(subject.gather(state, np.array([1, 0])), 9)
    logits, after = subject.step(subject.poison(state), ids[::-1, 3:])

    seen = subject.kv(after, 0)
    assert_agree(logits, subject.full(ids[::-1])[:, 3:], EXACT, name="logits")
    assert seen.position_BS[:, :T].tolist() == counted().tolist()
    assert seen.valid_BS.sum(1).tolist() == [T, T]
    with pytest.raises(RollbackError, match=r"length\[1\] is 6, expected 0 to 5"):
        subject.rollback(after, np.array([5, 6]))


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_given_positions_are_those_that_the_cache_reports(cell):
    subject, ids = subject_of(cell), texts(cell)

    _, state = subject.step(subject.init(B, 8), ids, positions=counted() + 9)

    assert subject.kv(state, 0).position_BS[:, :T].tolist() == (counted() + 9).tolist()


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_options_of_another_form_are_refused(cell, options, error, words):
    with pytest.raises(error, match=words):
        subject_of(cell).full(texts(cell), **options)


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_a_full_state_with_given_positions_refuses_more_tokens(cell):
    subject, ids = subject_of(cell), texts(cell)
    _, state = subject.step(subject.init(B, 8), ids, positions=counted())

    with pytest.raises(CapacityError, match="row 0 was refused, 2 tokens too many for capacity 8"):
        subject.step(state, ids)
