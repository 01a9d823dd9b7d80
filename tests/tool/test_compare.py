"""Where two sides first differ, and which tolerance would have passed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import Place, bitwise, bounded, close, compare, ratio, semantic

POINTS = ("k.0", "v.0", "resid.0", "k.1", "v.1", "resid.1", "logits")
B, T = 2, 7
PLANT = st.tuples(st.sampled_from(POINTS), st.integers(0, 1), st.integers(0, 6))
UP = 1 + 1e-12


def points(seed=0):
    rng = np.random.default_rng(seed)
    tail = {"k": (3, 5), "v": (3, 5), "resid": (8,), "logits": (11,)}
    return {p: rng.standard_normal((B, T, *tail[p.split(".")[0]])) for p in POINTS}


@given(plants=st.lists(PLANT, min_size=1))
def test_first_is_the_earliest_position_then_the_earliest_point_then_the_first_row(plants):
    left, right = points(), points()
    for name, row, position in plants:
        left[name][row, position, 2] += 1.0

    first = compare(left, right, semantic(), name="pass").first

    expected = min(plants, key=lambda p: (p[2], POINTS.index(p[0]), p[1]))
    assert (first.name, first.row, first.position) == expected


def test_first_gives_the_rest_of_the_index():
    left, right = points(), points()
    left["k.1"][1, 4, 2, 3] += 1.0

    assert compare(left, right, semantic(), name="pass").first == Place("k.1", 1, 4, (2, 3))


@pytest.mark.parametrize("order", [POINTS, POINTS[::-1]], ids=["forward", "reversed"])
def test_the_order_is_that_of_the_left_mapping(order):
    left = {p: points()[p] + 1.0 for p in order}

    assert compare(left, points(), semantic(), name="pass").first.name == order[0]


def test_the_mask_restores_rows_and_positions():
    left, right, valid = points(), points(), np.zeros((B, T), bool)
    valid[1, 2:5] = True
    left["v.0"][1, 3, 0, 1] += 1.0

    first = compare(left, right, semantic(), name="pass", valid=valid).first

    assert first == Place("v.0", 1, 3, (0, 1))


def test_each_point_is_judged_by_its_own_scale():
    left, right = points(), points()
    left["logits"], right["logits"] = left["logits"] * 1e9, right["logits"] * 1e9
    left["k.0"][0, 0, 0, 0] += 1e-3

    comparison = compare(left, right, semantic(), name="pass")

    assert not comparison.agree
    assert comparison.worst_at.name == "k.0"


def test_worst_and_first_are_different_places():
    left, right = points(), points()
    left["logits"][0, 6, 1] += 5.0
    left["resid.1"][0, 2, 1] += 1e-3

    comparison = compare(left, right, semantic(), name="pass")

    assert comparison.worst_at == Place("logits", 0, 6, (1,))
    assert comparison.first == Place("resid.1", 0, 2, (1,))


def test_worst_is_the_largest_multiple_of_what_is_allowed():
    right = np.ones((B, T, 8))
    right[0, 0, 0] = 1e6
    left = right.copy()
    left[0, 0, 0] += 10.0
    left[1, 3, 2] += 1.0

    comparison = compare(left, right, close(rtol=1e-6, atol=1e-6), name="resid")

    assert comparison.worst_at == Place("resid", 1, 3, (2,))
    assert (comparison.worst, comparison.count) == (1.0, 2)


def test_the_required_tolerance_is_that_of_the_worst_point():
    left, right = points(), points()
    left["v.0"] = left["v.0"] * (1 + 1e-6)
    left["k.1"] = left["k.1"] * (1 + 1e-3)

    comparison = compare(left, right, semantic(), name="pass")

    assert comparison.required_tolerance == pytest.approx(1e-3)


def _again(level, required):
    return {
        "semantic": lambda: semantic(rtol=required),
        "bounded": lambda: bounded(required),
        "close": lambda: close(rtol=1e-9 * required * UP, atol=1e-9 * required * UP),
    }[level]()


@given(seed=st.integers(0, 10_000), size=st.floats(1e-7, 1e-2))
@pytest.mark.parametrize("level", ["semantic", "bounded", "close"])
def test_the_required_tolerance_passes_and_a_little_less_does_not(level, seed, size):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((B, T, 5)) * 10.0 ** rng.integers(-3, 4)
    left = right + size * np.abs(right).max() * rng.standard_normal(right.shape)
    start = {"semantic": semantic(), "bounded": bounded(0.0), "close": close(rtol=1e-9, atol=1e-9)}

    required = compare(left, right, start[level], name="logits").required_tolerance

    assert compare(left, right, _again(level, required), name="logits").agree
    assert not compare(left, right, _again(level, required * 0.999), name="logits").agree


@given(seed=st.integers(0, 10_000), scale=st.floats(3.0, 1e4))
def test_the_required_k_of_a_ratio_passes_and_a_little_less_does_not(seed, scale):
    rng = np.random.default_rng(seed)
    oracle = rng.standard_normal((B, T, 11))
    left = oracle + scale * 1e-6 * rng.standard_normal(oracle.shape)
    right = oracle + 1e-6 * rng.standard_normal(oracle.shape)

    def judge(k):
        return compare(
            left, right, ratio(k=k, k_max=1.5 * k, floor=0), name="logits", oracle=oracle
        )

    required = judge(1e-3).required_tolerance

    assert judge(required * UP).agree
    assert not judge(required * 0.999).agree


def _rounded(dtype, seed, factor):
    oracle = np.random.default_rng(seed).standard_normal((4, 32, 97))
    noise = (
        np.random.default_rng(seed + 1).standard_normal((2, *oracle.shape)) * np.finfo(dtype).eps
    )
    return (
        (oracle + factor * 64 * noise[0]).astype(dtype),
        (oracle + 64 * noise[1]).astype(dtype),
        oracle,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("factor", "agree"), [(1.0, True), (1.8, True), (2.5, False)])
def test_ratio_allows_twice_the_reference_s_rounding(dtype, factor, agree):
    left, right, oracle = _rounded(dtype, 3, factor)

    assert compare(left, right, ratio(), name="logits", oracle=oracle).agree is agree


@pytest.mark.parametrize(("factor", "agree"), [(2.5, True), (3.5, False)])
def test_ratio_allows_three_times_in_16_bits(factor, agree):
    left, right, oracle = _rounded(np.float16, 3, factor)

    assert compare(left, right, ratio(), name="logits", oracle=oracle).agree is agree


def test_one_large_error_fails_by_the_maximum_though_the_rms_is_fine():
    left, right, oracle = _rounded(np.float32, 3, 1.0)
    left[2, 9, 40] += 5 * np.abs(right - oracle).max()

    comparison = compare(left, right, ratio(), name="logits", oracle=oracle)

    assert (comparison.measure, comparison.count) == ("|a-o|", 1)
    assert comparison.first == Place("logits", 2, 9, (40,))


def test_bitwise_compares_integers():
    left, right = np.arange(14).reshape(2, 7), np.arange(14).reshape(2, 7)
    left[1, 1] += 3

    comparison = compare(left, right, bitwise(), name="ids")

    assert (comparison.worst, comparison.required_tolerance, comparison.count) == (3.0, 3.0, 1)


def test_bfloat16_is_a_float_with_its_own_roundoff():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    oracle = np.random.default_rng(3).standard_normal((4, 32, 97))
    right = oracle.astype(bfloat16)
    left = (oracle + 2.0**-8 * np.abs(oracle).max()).astype(bfloat16)

    comparison = compare(left, right, ratio(), name="logits", oracle=oracle)

    assert "ratio, bfloat16, 3 x" in str(comparison)
