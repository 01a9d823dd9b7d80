"""A comparison that cannot fail is worse than none: each test plants what must not pass."""

import numpy as np
import pytest

from crosscheck import (
    ComparisonError,
    Disagreement,
    ToleranceError,
    assert_agree,
    assert_greedy_agree,
    bitwise,
    bounded,
    close,
    compare,
    compare_greedy,
    decode,
    ratio,
    semantic,
)

B, T, K, H, V = 2, 7, 3, 5, 11
LEVELS = {
    "bitwise": bitwise(),
    "semantic": semantic(rtol=0.5),
    "close": close(rtol=1e3, atol=1e3),
    "ratio": ratio(k=1e6, k_max=1e6),
    "bounded": bounded(1e9),
}
levels = pytest.mark.parametrize("tolerance", LEVELS.values(), ids=LEVELS)


def logits(seed=0):
    return np.random.default_rng(seed).standard_normal((B, T, V))


@levels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize("planted", ["left", "right", "both"])
def test_one_value_that_is_not_finite_fails_at_every_level(tolerance, value, planted):
    left, right, oracle = logits(), logits(), logits()
    for side, array in (("left", left), ("right", right)):
        if planted in (side, "both"):
            array[1, 3, 2] = value

    comparison = compare(left, right, tolerance, name="logits", oracle=oracle)

    assert not comparison.agree
    assert (comparison.first.row, comparison.first.position) == (1, 3)
    assert comparison.required_tolerance == np.inf
    assert np.isnan(comparison.worst)


@levels
def test_nothing_but_nan_fails_at_every_level(tolerance):
    nothing = np.full((B, T, V), np.nan)

    comparison = compare(nothing, nothing, tolerance, name="logits", oracle=logits())

    assert comparison.count == comparison.total == B * T * V


@levels
def test_equal_sides_pass_at_every_level(tolerance):
    assert_agree(logits(), logits(), tolerance, name="logits", oracle=logits())


def test_an_infinite_reference_does_not_widen_the_tolerance_of_the_others():
    right = logits()
    right[0, 0, 0] = np.inf
    left = right + 1e-3

    comparison = compare(left, right, semantic(), name="logits")

    assert comparison.count == comparison.total


def test_a_huge_candidate_does_not_widen_its_own_tolerance():
    left = logits()
    left[0, 0, 0] = 1e12
    left[1, 6, 0] += 1.0

    assert compare(left, logits(), semantic(), name="logits").count == 2


def test_a_comparison_has_no_truth_value():
    comparison = compare(logits(), logits(), semantic(), name="logits")

    with pytest.raises(TypeError, match=r"use \.agree or assert_agree"):
        bool(comparison)


def test_a_greedy_comparison_has_no_truth_value():
    comparison = compare_greedy(logits(), logits(), bound=0.0)

    with pytest.raises(TypeError, match=r"use \.agree or assert_greedy_agree"):
        bool(comparison)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(np.zeros((2, 7, 11)), np.zeros((2, 7, 10)), id="vocabulary"),
        pytest.param(np.zeros((2, 7, 11)), np.zeros((1, 7, 11)), id="would-broadcast"),
        pytest.param(np.zeros((2, 7, 11)), np.zeros((2, 7, 11, 1)), id="rank"),
        pytest.param(np.zeros((2, 7)), np.zeros((2, 7), dtype=np.int64), id="kind"),
        pytest.param(np.zeros((2, 7), dtype=bool), np.zeros((2, 7), dtype=np.int8), id="bool"),
        pytest.param(
            np.zeros((2, 7), dtype=complex), np.zeros((2, 7), dtype=complex), id="complex"
        ),
        pytest.param(np.zeros(7), np.zeros(7), id="one-axis"),
        pytest.param(np.zeros((0, 7, 11)), np.zeros((0, 7, 11)), id="no-rows"),
        pytest.param(np.zeros((2, 0, 11)), np.zeros((2, 0, 11)), id="no-positions"),
        pytest.param(np.zeros((2, 7, 0)), np.zeros((2, 7, 0)), id="no-tokens"),
        pytest.param({}, {}, id="no-names"),
        pytest.param({"k.0": np.zeros((2, 7))}, {}, id="missing-right"),
        pytest.param({}, {"k.0": np.zeros((2, 7))}, id="missing-left"),
        pytest.param({"logits": np.zeros((2, 7))}, {"logit": np.zeros((2, 7))}, id="other-name"),
    ],
)
@pytest.mark.parametrize("tolerance", [bitwise(), bounded(1e9)], ids=["bitwise", "bounded"])
def test_sides_that_cannot_be_compared_raise(left, right, tolerance):
    with pytest.raises(ComparisonError):
        compare(left, right, tolerance, name="logits")


def test_one_empty_point_among_others_raises():
    side = {"k.0": np.zeros((2, 0, 3)), "logits": np.zeros((2, 7, 11))}

    with pytest.raises(ComparisonError, match="nothing was compared"):
        compare(side, side, bitwise(), name="cache")


def test_a_mask_without_a_valid_token_raises():
    with pytest.raises(ComparisonError, match="nothing was compared"):
        compare(logits(), logits(), semantic(), name="logits", valid=np.zeros((B, T), bool))


@pytest.mark.parametrize(
    "valid", [np.ones((T, B), bool), np.ones((B, T), int), np.ones((B, T, V), bool)]
)
def test_a_mask_of_another_form_raises(valid):
    with pytest.raises(ComparisonError, match="expected bool"):
        compare(logits(), logits(), semantic(), name="logits", valid=valid)


@pytest.mark.parametrize("numbers", [{"rtol": 1e-3}, {"atol": 1e-3}, {}], ids=str)
def test_half_a_tolerance_raises(numbers):
    with pytest.raises(ToleranceError, match="needs rtol and atol together"):
        close(**numbers)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e-9])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: semantic(rtol=v),
        lambda v: close(rtol=v, atol=0.0),
        lambda v: close(rtol=0.0, atol=v),
        lambda v: ratio(k=v),
        lambda v: ratio(k_max=v),
        lambda v: ratio(floor=v),
        bounded,
    ],
    ids=[
        "semantic",
        "close-rtol",
        "close-atol",
        "ratio-k",
        "ratio-k_max",
        "ratio-floor",
        "bounded",
    ],
)
def test_a_tolerance_that_could_not_fail_raises(make, value):
    with pytest.raises(ToleranceError, match="expected a number of at least 0"):
        make(value)


def test_semantic_refuses_float32():
    narrow = logits().astype(np.float32)

    with pytest.raises(ToleranceError, match="semantic compares float64"):
        compare(narrow, narrow, semantic(), name="logits")


def test_ratio_without_an_oracle_raises():
    with pytest.raises(ToleranceError, match="needs oracle="):
        compare(logits(), logits(), ratio(), name="logits")


def test_ratio_with_an_oracle_that_is_not_finite_raises():
    oracle = logits()
    oracle[0, 0, 0] = np.nan

    with pytest.raises(ToleranceError, match="not finite"):
        compare(logits(), logits(), ratio(), name="logits", oracle=oracle)


@pytest.mark.parametrize(
    ("tolerance", "allowed"),
    [
        (semantic(), 8e-9),
        (close(rtol=2.0**-10, atol=2.0**-12), 2.0**-7 + 2.0**-12),
        (bounded(2.0**-5), 2.0**-5),
    ],
    ids=["semantic", "close", "bounded"],
)
@pytest.mark.parametrize(
    ("factor", "agree"), [(0.999, True), (1.001, False)], ids=["below", "above"]
)
def test_the_printed_allowed_is_the_border(tolerance, allowed, factor, agree):
    right = np.full((B, T, V), 8.0)
    left = right.copy()
    left[1, 2, 3] += allowed * factor

    comparison = compare(left, right, tolerance, name="logits")

    assert comparison.allowed == pytest.approx(allowed, rel=1e-12)
    assert f"allowed {allowed:.1e}" in str(comparison)
    assert comparison.agree is agree


def test_bitwise_tells_minus_zero_from_zero():
    left, right = np.zeros((1, 2)), np.zeros((1, 2))
    left[0, 1] = -0.0

    comparison = compare(left, right, bitwise(), name="k.0")

    assert comparison.count == 1
    assert comparison.worst_at.position == 1


def test_swapped_heads_disagree():
    k_BTKH = np.random.default_rng(1).standard_normal((B, T, K, H))

    with pytest.raises(Disagreement):
        assert_agree(k_BTKH[:, :, [1, 0, 2]], k_BTKH, semantic(), name="k.0")


def test_a_difference_outside_the_mask_is_not_seen_and_inside_it_is():
    left, right, valid = logits(), logits(), np.ones((B, T), bool)
    valid[1, 5:] = False
    left[1, 5:] = np.nan

    outside = compare(left, right, semantic(), name="logits", valid=valid)
    left[1, 4, 0] += 1e-3
    inside = compare(left, right, semantic(), name="logits", valid=valid)

    assert outside.agree
    assert outside.total == (B * T - 2) * V
    assert not inside.agree


@pytest.mark.parametrize("side", ["left", "right", "oracle"])
def test_nan_is_a_greedy_divergence_whatever_the_bound(side):
    sides = {"left": logits(), "right": logits(), "oracle": logits()}
    sides[side][1, 3, 2] = np.nan

    with pytest.raises(Disagreement):
        assert_greedy_agree(sides["left"], sides["right"], oracle=sides["oracle"], bound=1e9)


def test_greedy_ids_alone_do_not_hide_a_difference():
    left = logits()
    left[:, :, :] *= 1 + 1e-6

    comparison = compare(left, logits(), semantic(), name="logits")

    assert comparison.greedy.agree
    assert not comparison.agree


def test_a_decoder_of_other_weights_disagrees(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    other = arrays | {"norm.weight": arrays["norm.weight"] * (1 + 1e-6)}

    with pytest.raises(Disagreement):
        assert_agree(
            decode(config, other, ids_BT), decode(config, arrays, ids_BT), semantic(), name="logits"
        )
