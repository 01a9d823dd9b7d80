"""Greedy ids with the margin in hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import ComparisonError, Place, ToleranceError, compare_greedy

B, T, V = 2, 20, 5


def logits(margin=0.5):
    """Return logits whose greedy id is 1 and whose second is 3, a margin apart."""
    logits_BTV = np.zeros((B, T, V))
    logits_BTV[..., 1], logits_BTV[..., 3] = 4.0 + margin, 4.0
    return logits_BTV


def flipped(*places, margin=0.5):
    left = logits(margin)
    for row, position in places:
        left[row, position, 3] = 4.0 + 2 * margin
    return left


def test_equal_ids_pass():
    greedy = compare_greedy(logits(), logits(), bound=0.0)

    assert (greedy.verdict, greedy.forced, greedy.smallest_margin) == ("pass", B * T, 0.5)


@pytest.mark.parametrize(("bound", "verdict"), [(0.2499, "fail"), (0.25, "pass"), (0.2501, "pass")])
def test_a_different_id_is_excused_only_up_to_twice_the_bound(bound, verdict):
    assert compare_greedy(flipped((0, 3)), logits(), bound=bound).verdict == verdict


@given(st.integers(0, 1), st.integers(0, T - 1), st.integers(0, 1), st.integers(0, T - 1))
def test_the_first_divergence_is_the_earliest_position(row_a, position_a, row_b, position_b):
    left = flipped((row_a, position_a), (row_b, position_b))

    first = compare_greedy(left, logits(), bound=0.1).first

    row, position = min([(row_a, position_a), (row_b, position_b)], key=lambda p: (p[1], p[0]))
    assert first == Place("logits", row, position, ())


@pytest.mark.parametrize(("flips", "verdict"), [(2, "pass"), (3, "inconclusive")])
def test_near_ties_over_the_budget_are_inconclusive(flips, verdict):
    left = flipped(*((0, i) for i in range(flips)))

    greedy = compare_greedy(left, logits(), bound=1.0)

    assert (greedy.verdict, greedy.near_ties) == (verdict, flips)


def test_one_divergence_fails_among_any_number_of_near_ties():
    bound_BT = np.full((B, T), 1.0)
    bound_BT[1, 19] = 0.0

    greedy = compare_greedy(flipped(*((1, i) for i in range(T))), logits(), bound=bound_BT)

    assert (greedy.verdict, greedy.divergences, greedy.near_ties) == ("fail", 1, T - 1)
    assert greedy.first.position == 19


def test_the_margin_is_the_oracle_s():
    left, right, oracle = flipped((0, 3)), logits(), logits(margin=1e-3)

    assert compare_greedy(left, right, bound=0.01).verdict == "fail"
    assert compare_greedy(left, right, oracle=oracle, bound=0.01).verdict == "pass"


def test_exact_ties_go_to_the_lowest_id():
    tie = logits(margin=0.0)

    assert compare_greedy(tie, logits(), bound=0.0).different == 0


def test_masked_tokens_are_no_fault():
    masked = logits()
    masked[..., 4] = -np.inf

    assert compare_greedy(masked, masked, bound=0.1).agree


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_finite_maximum_diverges(value):
    broken = logits()
    broken[1, 2] = value

    greedy = compare_greedy(broken, broken, bound=1e9)

    assert (greedy.verdict, greedy.divergences) == ("fail", 1)


def test_only_valid_positions_count():
    valid_BT = np.ones((B, T), bool)
    valid_BT[0, 3] = False

    greedy = compare_greedy(flipped((0, 3)), logits(), bound=0.0, valid=valid_BT)

    assert (greedy.verdict, greedy.total) == ("pass", B * T - 1)


@pytest.mark.parametrize("shape", [(B, T), (B, T, 1), (B, T, 2, 5), (B, 0, V)], ids=str)
def test_what_is_no_logits_raises(shape):
    with pytest.raises(ComparisonError):
        compare_greedy(np.zeros(shape), np.zeros(shape), bound=0.0)


@pytest.mark.parametrize("bound", [-1.0, np.inf, np.zeros(B), np.full((B, T), np.nan)])
def test_a_bound_that_bounds_nothing_raises(bound):
    with pytest.raises(ToleranceError, match="bound"):
        compare_greedy(logits(), logits(), bound=bound)
