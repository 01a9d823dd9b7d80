"""Quantizers: numbers to small codes and back, on arrays alone.

Rounding is half to even. Everything is computed in at least float32; scales and zero points are
kept in the dtype of the numbers. A group with a number that is not finite comes back as NaN, whole,
so that it shows.
Letters: A any axes, G numbers of one group, E bytes, P codes in a byte.
Sources: KIVI (Liu et al. 2024; jy-yuan/KIVI 876b4d2, quant/new_pack.py) for groups and packing,
optimum-quanto's MaxOptimizer for the same affine rule.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, Shaped, UInt8

from jaxkv.ops import wide

INT8_PEAK, FP8_PEAK = 127, 448


def pack(code: UInt8[Array, "*A C"], *, bits: int) -> UInt8[Array, "*A E"]:
    """Return codes of `bits` bits as bytes, the first one in the lowest bits.

    In a machine of little-endian order these are the bytes of KIVI's int32 words. The last axis
    must be whole bytes.
    """
    *axes, count = code.shape
    shift_P = jnp.arange(0, 8, bits, dtype=jnp.uint8)
    by_byte = code.reshape(*axes, count * bits // 8, 8 // bits)
    return jnp.sum(by_byte << shift_P, axis=-1, dtype=jnp.uint8)


def planes(packed: UInt8[Array, "*A E"], *, bits: int) -> list[UInt8[Array, "*A E"]]:
    """Return the codes of each byte apart: code number p + P * e of a line is the e-th of plane p.

    One shift and mask a plane, on whole vectors; no code has to change its place.
    """
    mask = jnp.uint8(2**bits - 1)
    return [(packed >> jnp.uint8(shift)) & mask for shift in range(0, 8, bits)]


def unpack(packed: UInt8[Array, "*A E"], *, bits: int) -> UInt8[Array, "*A C"]:
    """Return the codes in their order: the inverse of `pack`."""
    by_byte = jnp.stack(planes(packed, bits=bits), axis=-1)
    return by_byte.reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def quantize(
    x: Float[Array, "*A G"], *, bits: int
) -> tuple[UInt8[Array, "*A G"], Float[Array, "*A"], Float[Array, "*A"]]:
    """Return code, scale and zero point of each group: x is about code * scale + zero.

    zero = min, scale = (max - min) / (2^bits - 1), code = round((x - zero) / scale) within 0 to
    2^bits - 1. The error is at most half a scale, and as much rounding as one product and one sum
    have. A group of equal numbers has scale 1 and codes 0, and comes back exactly.
    """
    up, dtype = x.astype(wide(x.dtype)), x.dtype
    low, high = jnp.min(up, axis=-1), jnp.max(up, axis=-1)
    scale = _kept(_over(high - low, 2**bits - 1), dtype)
    scale = jnp.where(high == low, jnp.ones_like(scale), scale)
    code = jnp.round(_over(up - low[..., None], scale[..., None]))
    code = jnp.clip(jnp.where(jnp.isnan(code), 0, code), 0, 2**bits - 1).astype(jnp.uint8)
    zero = jnp.where(jnp.isnan(scale), jnp.nan, low)
    return code, scale.astype(dtype), zero.astype(dtype)


def dequantize(
    code: UInt8[Array, "*A G"], scale: Float[Array, "*A"], zero: Float[Array, "*A"]
) -> Float[Array, "*A G"]:
    """Return code * scale + zero in at least float32."""
    up = wide(scale.dtype)
    return code.astype(up) * scale.astype(up)[..., None] + zero.astype(up)[..., None]


def quantize_int8(x: Float[Array, "*A H"]) -> tuple[Int8[Array, "*A H"], Float[Array, "*A"]]:
    """Return code and scale of each line: scale = max |x| / 127, code = round(x / scale).

    The error is at most half a scale. A line of zeros has scale 1.
    """
    ratio, scale = _scaled(x, INT8_PEAK)
    code = jnp.clip(jnp.round(ratio), -INT8_PEAK, INT8_PEAK)
    return code.astype(jnp.int8), scale


def quantize_fp8(x: Float[Array, "*A H"]) -> tuple[Shaped[Array, "*A H"], Float[Array, "*A"]]:
    """Return code (float8_e4m3fn) and scale of each line: scale = max |x| / 448, code = x / scale.

    The error of a number is at most 1/16 of itself, or 2^-10 scales near zero. The ratio is
    rounded to float32 first.
    """
    ratio, scale = _scaled(x, FP8_PEAK)
    clipped = jnp.clip(ratio, -FP8_PEAK, FP8_PEAK)
    return clipped.astype(jnp.float32).astype(jnp.float8_e4m3fn), scale


def _scaled(x: Array, peak: int) -> tuple[Array, Array]:
    up, dtype = x.astype(wide(x.dtype)), x.dtype
    most = jnp.max(jnp.abs(up), axis=-1)
    scale = _kept(_over(most, peak), dtype)
    scale = jnp.where(most == 0, jnp.ones_like(scale), scale)
    ratio = _over(up, scale[..., None])
    return jnp.where(jnp.isnan(ratio), 0, ratio), scale.astype(dtype)


def _over(x: Array, divisor: Array | int) -> Array:
    """Return x / divisor; NaN where x is not finite.

    XLA multiplies by the rounded inverse of a divisor that is a constant, or one for a whole line.
    A zero that it cannot know keeps the division, and with it the last bit.
    """
    return x / (divisor + (x - x))


def _kept(scale: Array, dtype: jnp.dtype) -> Array:
    """Return a scale as its dtype keeps it: rounded, and at least the smallest normal number.

    Below that processors differ. NaN for one that is not finite. A cast there and back is a pair
    that XLA may leave out.
    """
    limits = jnp.finfo(dtype)
    if limits.bits < jnp.finfo(scale.dtype).bits:
        scale = jax.lax.reduce_precision(scale, limits.nexp, limits.nmant)
    scale = jnp.maximum(scale, jnp.asarray(limits.smallest_normal, scale.dtype))
    return jnp.where(jnp.isfinite(scale), scale, jnp.nan)
