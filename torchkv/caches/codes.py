"""Quantizers: numbers to small codes and back, on tensors alone.

Rounding is half to even. Everything is computed in at least float32; scales and zero points are
kept in the dtype of the numbers. A group with a number that is not finite comes back as NaN, whole,
so that it shows. Letters: A any axes, G numbers of one group, E bytes, P codes in a byte.
Sources: KIVI (Liu et al. 2024; jy-yuan/KIVI 876b4d2, quant/new_pack.py) for groups and packing,
optimum-quanto's MaxOptimizer for the same affine rule.
"""

import torch
from jaxtyping import Float, Int8, Shaped, UInt8
from torch import Tensor as Array

from torchkv.ops import wide

INT8_PEAK, FP8_PEAK = 127, 448


def pack(code: UInt8[Array, "*A C"], *, bits: int) -> UInt8[Array, "*A E"]:
    """Return codes of `bits` bits as bytes, the first one in the lowest bits.

    In a machine of little-endian order these are the bytes of KIVI's int32 words. The last axis
    must be whole bytes.
    """
    each = 8 // bits
    packed = code[..., 0::each].clone()
    for place in range(1, each):
        packed |= code[..., place::each] << (place * bits)
    return packed


def planes(packed: UInt8[Array, "*A E"], *, bits: int) -> list[UInt8[Array, "*A E"]]:
    """Return the codes of each byte apart: code number p + P * e of a line is the e-th of plane p.

    One shift and mask a plane, on whole vectors; no code has to change its place.
    """
    mask = (1 << bits) - 1
    return [(packed >> shift) & mask for shift in range(0, 8, bits)]


def unpack(packed: UInt8[Array, "*A E"], *, bits: int) -> UInt8[Array, "*A C"]:
    """Return the codes in their order: the inverse of `pack`."""
    return torch.stack(planes(packed, bits=bits), -1).flatten(-2)


def quantize(
    x: Float[Array, "*A G"], *, bits: int
) -> tuple[UInt8[Array, "*A G"], Float[Array, "*A"], Float[Array, "*A"]]:
    """Return code, scale and zero point of each group: x is about code * scale + zero.

    zero = min, scale = (max - min) / (2^bits - 1), code = round((x - zero) / scale) within 0 to
    2^bits - 1. The error is at most half a scale, and as much rounding as one product and one sum
    have. A group of equal numbers has scale 1 and codes 0, and comes back exactly.
    """
    top, up = (1 << bits) - 1, x.to(wide(x.dtype))
    low, high = torch.aminmax(up, dim=-1)
    scale = _kept((high - low) / top, x.dtype).masked_fill(high == low, 1.0)
    code = ((up - low.unsqueeze(-1)) / scale.unsqueeze(-1)).round_().nan_to_num_(0.0, top, 0.0)
    zero = low.masked_fill(scale.isnan(), torch.nan)
    return code.clamp_(0, top).to(torch.uint8), scale.to(x.dtype), zero.to(x.dtype)


def dequantize(
    code: UInt8[Array, "*A G"], scale: Float[Array, "*A"], zero: Float[Array, "*A"]
) -> Float[Array, "*A G"]:
    """Return code * scale + zero in at least float32."""
    up = wide(scale.dtype)
    return torch.addcmul(zero.to(up).unsqueeze(-1), code.to(up), scale.to(up).unsqueeze(-1))


def quantize_int8(x: Float[Array, "*A H"]) -> tuple[Int8[Array, "*A H"], Float[Array, "*A"]]:
    """Return code and scale of each line: scale = max |x| / 127, code = round(x / scale).

    The error is at most half a scale. A line of zeros has scale 1.
    """
    ratio, scale = _scaled(x, INT8_PEAK)
    return ratio.round_().clamp_(-INT8_PEAK, INT8_PEAK).to(torch.int8), scale


def quantize_fp8(x: Float[Array, "*A H"]) -> tuple[Shaped[Array, "*A H"], Float[Array, "*A"]]:
    """Return code (float8_e4m3fn) and scale of each line: scale = max |x| / 448, code = x / scale.

    The error of a number is at most 1/16 of itself, or 2^-10 scales near zero. The ratio is
    rounded to float32 first.
    """
    ratio, scale = _scaled(x, FP8_PEAK)
    return ratio.clamp_(-FP8_PEAK, FP8_PEAK).float().to(torch.float8_e4m3fn), scale


def _scaled(x: Array, peak: int) -> tuple[Array, Array]:
    up = x.to(wide(x.dtype))
    most = up.abs().amax(-1)
    scale = _kept(most / peak, x.dtype).masked_fill(most == 0, 1.0)
    return (up / scale.unsqueeze(-1)).nan_to_num_(0.0), scale.to(x.dtype)


def _kept(scale: Array, dtype: torch.dtype) -> Array:
    """Return a scale as its dtype keeps it: rounded, and at least the smallest normal number.

    Below that processors differ. NaN for one that is not finite.
    """
    rounded = scale.to(dtype).to(scale.dtype).clamp(min=torch.finfo(dtype).tiny)
    return rounded.masked_fill_(rounded == torch.inf, torch.nan)
