"""StreamingLLM's own loop in numpy: raw keys, evicted one token at a time, rotated by index.

mit-han-lab/streaming-llm 2e50426: kv_cache.py (`evict_for_space`, `__call__`) and
pos_shift/modify_llama.py. Letters: T tokens, N query heads, K key/value heads, H head width.
"""

import numpy as np

from tests.quantized.alone import WIDTH


def turn(x_SAH, position_S, theta):
    """Return each token's heads turned by half-split rotary positions."""
    pairs = x_SAH.shape[-1] // 2
    angle = np.reshape(position_S, (-1, 1, 1)) * theta ** (-np.arange(pairs) / pairs)
    first, second = x_SAH[..., :pairs], x_SAH[..., pairs:]
    return np.concatenate(
        [
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ],
        axis=-1,
    )


def before(held, sinks, window, coming=1):
    """Return the tokens kept by `evict_for_space(coming)`: room is made before the forward."""
    if len(held) + coming <= sinks + window:
        return held
    # Of a chunk longer than the window its slice begins behind its end: no recent token is kept.
    return held[:sinks] + held[max(len(held) - window + coming, sinks) :]


def after(held, sinks, window):
    """Return the tokens kept by `__call__` after a forward, with one recent token less."""
    if len(held) <= sinks + window - 1:
        return held
    return held[:sinks] + held[len(held) - (window - 1) :]


def stream(qkv, *, sinks, window, theta, evict=before, absolute=False, bias=None):
    """Return outputs [B, T, N, H], and of each query its place and those of the keys it saw.

    bias: as `attend` takes it, of positions in the text; the published loop has none.
    """
    q, k, v = qkv
    out, seen = np.zeros(q.shape), []
    for b in range(q.shape[0]):
        held = []
        for t in range(q.shape[1]):
            held = before(held, sinks, window) if evict is before else held
            place, held = len(held), [*held, t]
            places = held if absolute else list(range(len(held)))
            own = t if absolute else place
            added_NS = 0 if bias is None else bias(np.array([[t]]), np.array([held]))[0, :, 0]
            out[b, t] = _attend(q[b, t], k[b, held], v[b, held], own, places, theta, added_NS)
            if b == 0:
                seen.append((own, dict(zip(held, places, strict=True))))
            held = after(held, sinks, window) if evict is after else held
    return out, seen


def stream_in_chunks(qkv, sizes, *, sinks, window, theta):
    """Return outputs [B, T, N, H] of the published loop over forwards of several tokens.

    A forward makes room for all its tokens first; its token i then sees what was kept, and the
    forward's own tokens up to itself.
    """
    q, k, v = qkv
    out = np.zeros(q.shape)
    for b in range(q.shape[0]):
        held, at = [], 0
        for size in sizes:
            held = before(held, sinks, window, size)
            for t in range(at, at + size):
                held = [*held, t]
                places = list(range(len(held)))
                out[b, t] = _attend(q[b, t], k[b, held], v[b, held], places[-1], places, theta, 0)
            at += size
    return out


def _attend(q_NH, k_SKH, v_SKH, own, places, theta, added_NS):
    groups = q_NH.shape[0] // k_SKH.shape[1]
    k_SNH, v_SNH = (x.repeat(groups, 1) for x in (turn(k_SKH, places, theta), v_SKH))
    q_NH = turn(q_NH[None], own, theta)[0]
    score_NS = np.einsum("SNH,NH->NS", k_SNH, q_NH) * WIDTH**-0.5 + added_NS
    weight_NS = np.exp(score_NS - score_NS.max(1, keepdims=True))
    weight_NS = weight_NS / weight_NS.sum(1, keepdims=True)
    return np.einsum("NS,SNH->NH", weight_NS, v_SNH)
