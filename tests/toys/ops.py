"""One formula each, for one row of a batch.

Letters: T tokens, S slots, D width, N query heads, K key/value heads, G = N / K, H head width.
"""

import numpy as np
from numpy.typing import NDArray


def rms_norm(x_TD: NDArray, gain_D: NDArray) -> NDArray:
    scale_T1 = np.sqrt(np.mean(x_TD * x_TD, axis=-1, keepdims=True) + 1e-5)
    return x_TD / scale_T1 * gain_D


def rope(x_TNH: NDArray, position_T: NDArray, *, rotary: int, theta: float) -> NDArray:
    """Rotate the first `rotary` channels of each head, half-split pairs."""
    half = rotary // 2
    frequency_R = (1.0 / theta ** (np.arange(half) / half)).astype(x_TNH.dtype)
    angle_TR = position_T[:, None].astype(x_TNH.dtype) * frequency_R
    cos, sin = np.cos(angle_TR)[:, None], np.sin(angle_TR)[:, None]
    a, b, rest = x_TNH[..., :half], x_TNH[..., half:rotary], x_TNH[..., rotary:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attend(
    q_TNH: NDArray, k_SKH: NDArray, v_SKH: NDArray, see_TS: NDArray, *, scale: float
) -> NDArray:
    """Return [T, N, H]; a query that sees nothing gets zeros."""
    t, heads, _ = q_TNH.shape
    kv_heads = k_SKH.shape[1]
    q_TKGH = q_TNH.reshape(t, kv_heads, heads // kv_heads, -1)
    scores = np.einsum("TKGH,SKH->KGTS", q_TKGH, k_SKH) * scale
    scores = np.where(see_TS, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    # What nobody sees may hold NaN, and 0 x NaN is NaN.
    v_SKH = np.where(see_TS.any(axis=0)[:, None, None], v_SKH, 0)
    return np.einsum("KGTS,SKH->TKGH", weights, v_SKH).reshape(t, heads, v_SKH.shape[-1])


def silu(x: NDArray) -> NDArray:
    return x / (1 + np.exp(-x))
