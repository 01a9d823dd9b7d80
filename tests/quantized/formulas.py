"""KIVI's, quanto's and the per-token formulas once more, number by number in plain numpy.

Letters: G numbers of a group, C codes.
"""

import numpy as np


def kivi(x, bits):
    """Return code, scale and zero point of the last axis's groups, as KIVI computes them.

    jy-yuan/KIVI 876b4d2, quant/new_pack.py: mn, mx, scale = (mx - mn) / max_int,
    data = (x - mn) / scale, clamped to [0, max_int] and rounded to int. It has no answer for a
    constant group; ours is scale 1.
    """
    most = 2**bits - 1
    mn, mx = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    scale = (mx - mn) / x.dtype.type(most)
    scale = np.where(mx == mn, x.dtype.type(1), scale)
    code = np.rint(np.clip((x - mn) / scale, 0, most)).astype(np.uint8)
    return code, scale[..., 0], mn[..., 0]


def quanto(x, bits):
    """Return code, scale and shift as optimum-quanto's MaxOptimizer and quantize_affine do.

    The cache layer of transformers 5.24 calls them: code = clamp(round((x + shift) / scale)).
    """
    most = 2**bits - 1
    shift = -x.min(axis=-1, keepdims=True)
    scale = (x.max(axis=-1, keepdims=True) + shift) / x.dtype.type(most)
    code = np.clip(np.rint((x + shift) / scale), 0, most).astype(np.uint8)
    return code, scale[..., 0], shift[..., 0]


def pack_words(code, bits):
    """Return KIVI's int32 words: element j of a word occupies bits [j * b, (j + 1) * b)."""
    each = 32 // bits
    by_word = code.reshape(*code.shape[:-1], -1, each).astype(np.uint64)
    words = np.zeros(by_word.shape[:-1], np.uint64)
    for j in range(each):
        words |= by_word[..., j] << np.uint64(j * bits)
    return words.astype(np.uint32)


def per_token(x, peak):
    """Return the ratio that is rounded, and the scale, of a symmetric code with that peak."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / x.dtype.type(peak)
    return x / np.where(scale == 0, 1, scale), scale[..., 0]


def fp8_grid(x):
    """Return the nearest float8_e4m3fn of each number, by its exponent, ties to even."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    step = np.ldexp(1.0, exponent - 3)
    return np.rint(x / step) * step
