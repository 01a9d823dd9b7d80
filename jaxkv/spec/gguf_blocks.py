"""Blocks of quantized GGUF tensors as numbers: the commonest kinds at once, the others by `gguf`.

Source of the formats: ggml's ggml-common.h and ggml-quants.c. A block is 32 weights: a scale and,
for Q4_1, a least value, both float16, then codes; of 4 bits those of the first 16 weights stand in
the low halves of 16 bytes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

WEIGHTS = 32
# Blocks worked on at a time: their numbers stay in a core's cache, and a thread that converts
# leaves Python's lock to others for long enough.
_AT_ONCE = 4096


def dequantize(bytes_OJ: np.ndarray, kind: Any) -> np.ndarray:
    """Return the float32 numbers, (O, I), of O outputs whose blocks lie in J bytes each.

    Bit for bit what `gguf.dequantize` gives.

    Args:
        bytes_OJ: uint8, or for a tensor that is not quantized the file's own numbers.
        kind: A `gguf.GGMLQuantizationType`.

    Raises:
        NotImplementedError: `gguf` does not know how to.

    Cost: three passes over each chunk of blocks; `gguf` works on 16 outputs at a time, in arrays of
    their own.
    """
    import gguf

    decode = _DECODERS.get(kind.name)
    if decode is None:
        return gguf.dequantize(bytes_OJ, kind)
    size_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = bytes_OJ.reshape(-1, size_bytes)
    numbers = np.empty((len(blocks), WEIGHTS), np.float32)
    for at in range(0, len(blocks), _AT_ONCE):
        decode(blocks[at : at + _AT_ONCE], numbers[at : at + _AT_ONCE])
    return numbers.reshape(*bytes_OJ.shape[:-1], -1)


def _float16(blocks: np.ndarray, at: int) -> np.ndarray:
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _halves(bytes_NJ: np.ndarray) -> np.ndarray:
    """Return the codes of 4 bits, low halves first."""
    low = bytes_NJ.shape[1]
    codes = np.empty((len(bytes_NJ), 2 * low), np.uint8)
    np.bitwise_and(bytes_NJ, 15, out=codes[:, :low])
    np.right_shift(bytes_NJ, 4, out=codes[:, low:])
    return codes


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    out[:] = _halves(blocks[:, 2:])
    out -= 8
    out *= _float16(blocks, 0)


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    out[:] = _halves(blocks[:, 4:])
    out *= _float16(blocks, 0)
    out += _float16(blocks, 2)


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _float16(blocks, 0)


_DECODERS: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
