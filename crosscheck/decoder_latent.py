"""Attention to latents in the reference decoder: expanded, head by head and query by query.

Letters: T tokens of a row, D width, N query heads, H channels of a head, C channels of the latent.
Sources: DeepSeek-V2 (2024), section 2.1; DeepSeek-V3 (2024), section 2.1.1; the squared factor of
the scores as in DeepSeek-V3's inference/model.py.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.decoder_inputs import Weights
from crosscheck.decoder_rope import rotate

Linear = Callable[..., NDArray]


def attend_latent(
    a: Mapping[str, Any],
    w: Weights,
    layer: str,
    x_TD: NDArray,
    taps: dict[str, NDArray],
    linear: Linear,
) -> NDArray:
    """Return what the heads of one row see, side by side, before the output projection.

    Args:
        a: Plain data of the attention; its latent is not None.
        w: All weights.
        layer: Its name, as `layers.0`.
        x_TD: The stream, normed.
        taps: Filled with q and k as scores take them, and v: the normed latents, [T, 1, C].
        linear: (weights, name, x, outputs, bias=) -> x times a named matrix.
    """
    latent, rotary, heads = a["latent"], a["rope"]["rotary_dim"], a["num_heads"]
    rank, nope = latent["rank"], latent["nope_width"]
    name, t = f"{layer}.attn", len(x_TD)
    q_TNH = _queries(a, w, name, x_TD, linear).reshape(t, heads, nope + rotary)
    down_TC = linear(w, f"{name}.kv_down", x_TD, rank + rotary, bias=a["qkv_bias"])
    c_TC = _normed(latent, w, f"{name}.kv_norm", down_TC[:, :rank])
    turned_T1H = rotate(a["rope"], down_TC[:, None, rank:])
    q_TNH = np.concatenate([q_TNH[..., :nope], rotate(a["rope"], q_TNH[..., nope:])], axis=-1)
    k_TNH = linear(w, f"{name}.k_up", c_TC, heads * nope, bias=False).reshape(t, heads, nope)
    k_TNH = np.concatenate([k_TNH, np.repeat(turned_T1H, heads, axis=1)], axis=-1)
    value = latent["value_width"]
    v_TNH = linear(w, f"{name}.v_up", c_TC, heads * value, bias=False).reshape(t, heads, value)
    taps |= {f"{layer}.q": q_TNH, f"{layer}.k": k_TNH, f"{layer}.v": c_TC[:, None]}
    o_TNH = np.zeros_like(v_TNH)
    for query in range(t):
        oldest = 0 if a["window"] is None else max(0, query - a["window"] + 1)
        seen = slice(oldest, query + 1)
        for n in range(heads):
            weight_S = _shares(a, k_TNH[seen, n] @ q_TNH[query, n])
            o_TNH[query, n] = weight_S @ v_TNH[seen, n]
    return o_TNH.reshape(t, -1)


def _queries(a: Mapping[str, Any], w: Weights, name: str, x_TD: NDArray, linear: Linear) -> NDArray:
    width = a["num_heads"] * (a["latent"]["nope_width"] + a["rope"]["rotary_dim"])
    rank = a["latent"].get("query_rank")
    if rank is None:
        return linear(w, f"{name}.q", x_TD, width, bias=False)
    c_TC = linear(w, f"{name}.q_down", x_TD, rank, bias=a["qkv_bias"])
    c_TC = _normed(a["latent"], w, f"{name}.q_norm", c_TC)
    return linear(w, f"{name}.q_up", c_TC, width, bias=False)


def _normed(latent: Mapping[str, Any], w: Weights, name: str, c_TC: NDArray) -> NDArray:
    size_T1 = np.sqrt(np.mean(c_TC**2, axis=-1, keepdims=True) + latent["norm_eps"])
    return c_TC / size_T1 * w.take(f"{name}.weight", c_TC.shape[-1])


def _shares(a: Mapping[str, Any], product_S: NDArray) -> NDArray:
    width = a.get("score_width") or a["latent"]["nope_width"] + a["rope"]["rotary_dim"]
    score_S = product_S / math.sqrt(width)
    scaling, mscale = a["rope"]["scaling"], a["latent"].get("mscale")
    if mscale is not None and scaling is not None and scaling["kind"] == "yarn":
        score_S = score_S * (1 + 0.1 * mscale * math.log(scaling["factor"])) ** 2
    if a["soft_cap"] is not None:
        score_S = a["soft_cap"] * np.tanh(score_S / a["soft_cap"])
    share_S = np.exp(score_S - score_S.max())
    return share_S / share_S.sum()
