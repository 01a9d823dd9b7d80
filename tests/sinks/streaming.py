"""StreamingLLM's own loop in numpy: raw keys, evicted one token at a time, rotated by index.

mit-han-lab/streaming-llm 2e50426: kv_cache.py (`evict_for_space`, `__call__`) and
pos_shift/modify_llama.py. Letters: T tokens, N query heads, K key/value heads, H head width.
"""

import numpy as np

from tests.quantized.alone import WIDTH


def turn(x_H, position, theta):
    """Return one head turned by half-split rotary positions."""
    pairs = x_H.shape[-1] // 2
    angle = position * theta ** (-np.arange(pairs) / pairs)
    first, second = x_H[..., :pairs], x_H[..., pairs:]
    return np.concatenate(
        [
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ],
        axis=-1,
    )


def before(held, sinks, window):
    """Return the tokens kept by `evict_for_space(1)`: room for one is made before the forward."""
    if len(held) + 1 <= sinks + window:
        return held
    return held[:sinks] + held[len(held) - (window - 1) :]


def after(held, sinks, window):
    """Return the tokens kept by `__call__` after a forward, with one recent token less."""
    if len(held) <= sinks + window - 1:
        return held
    return held[:sinks] + held[len(held) - (window - 1) :]


def stream(qkv, *, sinks, window, theta, evict=before, absolute=False):
    """Return outputs [B, T, N, H], and of each query its place and those of the keys it saw."""
    q, k, v = qkv
    out, seen = np.zeros(q.shape), []
    for b in range(q.shape[0]):
        held = []
        for t in range(q.shape[1]):
            held = before(held, sinks, window) if evict is before else held
            place, held = len(held), [*held, t]
            places = held if absolute else list(range(len(held)))
            own = t if absolute else place
            out[b, t] = _attend(q[b, t], k[b, held], v[b, held], own, places, theta)
            if b == 0:
                seen.append((own, dict(zip(held, places, strict=True))))
            held = after(held, sinks, window) if evict is after else held
    return out, seen


def _attend(q_NH, k_SKH, v_SKH, own, places, theta):
    groups = q_NH.shape[0] // k_SKH.shape[1]
    out = np.zeros(q_NH.shape)
    for n in range(q_NH.shape[0]):
        keys = np.stack(
            [turn(k[n // groups], p, theta) for k, p in zip(k_SKH, places, strict=True)]
        )
        score = keys @ turn(q_NH[n], own, theta) * WIDTH**-0.5
        weight = np.exp(score - score.max())
        out[n] = weight @ v_SKH[:, n // groups] / weight.sum()
    return out
