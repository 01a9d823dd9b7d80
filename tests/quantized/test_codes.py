"""Codes, scales and zero points: the twins to the bit, and the public implementations' rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.quantized import formulas
from tests.quantized.twins import BITS, DTYPES, codes_of, to_numpy
from tests.tiny import TWINS, shared_by

twins = pytest.mark.parametrize("twin", TWINS)
bits_each = pytest.mark.parametrize("bits", BITS)


def draw(seed, dtype="float32", shape=(3, 5, 8, 16)):
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.normal(size=(*shape[:-1], 1)) * 3)
    return (rng.normal(size=shape) * spread).astype(dtype)


@twins
@bits_each
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_scales_and_zero_points_are_kivis_to_the_bit(twin, bits, dtype):
    x = draw(0, dtype)

    found = [to_numpy(part) for part in codes_of(twin).quantize(x, bits=bits)]

    for have, want in zip(found, formulas.kivi(x, bits), strict=True):
        np.testing.assert_array_equal(have, want)


@twins
@bits_each
def test_codes_and_scales_are_those_of_transformers_quantized_cache(twin, bits):
    """Its zero point is the shift -zero; the rule is the same one."""
    x = draw(1)

    code, scale, zero = (to_numpy(part) for part in codes_of(twin).quantize(x, bits=bits))

    their_code, their_scale, shift = formulas.quanto(x, bits)
    np.testing.assert_array_equal(code, their_code)
    np.testing.assert_array_equal(scale, their_scale)
    np.testing.assert_array_equal(zero, -shift)


@bits_each
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16", "float16"])
def test_the_twins_codes_are_equal_to_the_bit(bits, dtype):
    """In bfloat16 and float16 the scale is rounded before the codes are taken."""
    x = draw(2)

    ours, theirs = (codes_of(twin).quantize(x, bits=bits, dtype=dtype) for twin in TWINS)

    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@shared_by(BITS)
@given(seed=st.integers(0, 2**16), dtype=st.sampled_from(["float32", "float64"]))
def test_the_error_is_at_most_half_a_step(cell, seed, dtype):
    """Half a scale an element, and the rounding of one division, product and sum."""
    x = draw(seed, dtype)
    for twin in TWINS:
        codes = codes_of(twin)
        code, scale, zero = codes.quantize(x, bits=cell)

        back = to_numpy(codes.dequantize(code, scale, zero))

        step = to_numpy(scale)[..., None]
        rounding = 4 * np.finfo(dtype).eps * (np.abs(x) + np.abs(to_numpy(zero))[..., None] + step)
        assert (np.abs(back - x) <= step / 2 + rounding).all()
        assert (np.abs(back - x) > step / 2 * 0.9).any()


@twins
@bits_each
def test_packed_codes_are_the_bytes_of_kivis_words(twin, bits):
    code = np.random.default_rng(3).integers(0, 2**bits, (2, 3, 64)).astype(np.uint8)
    codes = codes_of(twin)

    packed = to_numpy(codes.pack(code, bits=bits))

    words = formulas.pack_words(code, bits)
    assert packed.nbytes == words.nbytes == code.size * bits // 8
    np.testing.assert_array_equal(packed.view("<u4"), words)
    np.testing.assert_array_equal(to_numpy(codes.unpack(packed, bits=bits)), code)
    second = to_numpy(codes.planes(packed, bits=bits)[1])
    np.testing.assert_array_equal(second, code[..., 1 :: 8 // bits])


@twins
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [0.0, 3.0, -7.5, 1e-6, 1e4])
def test_a_constant_group_comes_back_exactly(twin, dtype, value):
    """KV-44: no 0/0, and no reciprocal that is too big for half precision."""
    codes = codes_of(twin)
    x = np.full((2, 8), value, np.float32)

    code, scale, zero = codes.quantize(x, bits=2, dtype=dtype)
    back = codes.dequantize(code, scale, zero)

    np.testing.assert_array_equal(to_numpy(back), to_numpy(codes.array(x, dtype)))
    np.testing.assert_array_equal(to_numpy(scale), 1)
    assert not to_numpy(code).any()


@twins
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_outlier_keeps_its_group_within_half_a_step(twin, dtype):
    """KV-44: all 0 but one 1e4, and numbers a subnormal apart."""
    codes = codes_of(twin)
    outlier = np.zeros((1, 8), np.float32)
    outlier[0, 3] = 1e4
    close_by = np.linspace(0, 1e-7, 8, dtype=np.float32)[None]
    for x in (outlier, close_by):
        code, scale, zero = codes.quantize(x, bits=4, dtype=dtype)
        back, given = to_numpy(codes.dequantize(code, scale, zero)), to_numpy(codes.array(x, dtype))

        assert np.isfinite(back).all()
        step = to_numpy(scale).astype(np.float64)[..., None]
        assert (np.abs(back - given.astype(np.float64)) <= step / 2 * (1 + 1e-2)).all()


@bits_each
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_shows_in_its_whole_group_and_in_no_other(bits, bad):
    """Documented, and alike in both twins: nothing can be raised under jit."""
    x = draw(4, shape=(2, 3, 8))
    x[1, 2, 5] = bad

    found = [[to_numpy(p) for p in codes_of(twin).quantize(x, bits=bits)] for twin in TWINS]
    back = to_numpy(codes_of("jaxkv").dequantize(*found[0]))

    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    bad_BG = np.isnan(back)
    assert bad_BG[1, 2].all()
    assert bad_BG.sum() == 8


@twins
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_codes_are_the_rounded_ratios_to_the_bit(twin, dtype):
    x = draw(5, dtype)

    code, scale = (to_numpy(part) for part in codes_of(twin).quantize_int8(x))

    ratio, want = formulas.per_token(x, 127)
    np.testing.assert_array_equal(scale, want)
    np.testing.assert_array_equal(code, np.rint(ratio).astype(np.int8))
    assert np.abs(code).max(axis=-1).min() == 127


@twins
def test_fp8_codes_are_the_nearest_ones_to_the_bit(twin):
    x = draw(6)

    code, scale = (to_numpy(part) for part in codes_of(twin).quantize_fp8(x))

    ratio, want = formulas.per_token(x, 448)
    np.testing.assert_array_equal(scale, want)
    np.testing.assert_array_equal(code, np.clip(fp8 := formulas.fp8_grid(ratio), -448, 448))
    error, size = np.abs(fp8 - ratio), np.abs(ratio)
    assert (error <= np.maximum(size / 16, 2.0**-10)).all()


@twins
@pytest.mark.parametrize("name", ["quantize_int8", "quantize_fp8"])
def test_a_line_of_zeros_and_a_line_with_an_infinity_are_safe(twin, name):
    """An outlier after earlier tokens is not cut off: each token has a scale of its own."""
    x = np.zeros((3, 8), np.float32)
    x[1, 2], x[2] = np.inf, 1e30

    code, scale = (to_numpy(part) for part in getattr(codes_of(twin), name)(x))

    assert scale[0] == 1
    assert not code[0].any()
    assert np.isnan(scale[1])
    np.testing.assert_allclose(code[2] * scale[2], 1e30, rtol=1e-2)
