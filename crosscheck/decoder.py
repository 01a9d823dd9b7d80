"""An independent decoder without a cache: the formulas, written out slowly, one row at a time.

It shares no code with the models that it checks, and computes in the dtype of the weights, softmax
and angles included.
Where rotary speeds follow the length of a row, all of it is one step here.
Letters: B rows, T tokens of a row, D width, N query heads, K key/value heads, H head width, F
feed-forward width, Z experts, V vocabulary. Matrices are (out, in).
Sources: Vaswani et al. 2017 (attention), Zhang and Sennrich 2019 (RMSNorm), Ainslie et al. 2023
(GQA), Beltagy et al. 2020 (window), Shazeer 2020 (gated units), Hendrycks and Gimpel 2016 (GELU and
its approximation), Gemma 2 report 2024, section 2 (soft caps, norms before and after), Henry et al.
2020 (norms of queries and keys), Jiang et al. 2024, section 2.1 (experts). Routers and attention to
latents have files of their own.
"""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosscheck.decoder_experts import choose
from crosscheck.decoder_inputs import (
    Weights,
    check_config,
    check_counts,
    check_encoder,
    check_ids,
)
from crosscheck.decoder_latent import attend_latent
from crosscheck.decoder_relative import relative_bias
from crosscheck.decoder_rope import rotate
from crosscheck.errors import DecoderError

Taps = MutableMapping[str, NDArray]


def decode(
    config: Mapping[str, Any],
    arrays: Mapping[str, NDArray],
    ids_BT: ArrayLike,
    *,
    count_B: ArrayLike | None = None,
    encoder_BE: ArrayLike | None = None,
    taps: Taps | None = None,
) -> NDArray:
    """Return logits_BTV of a full forward pass, in the dtype of the weights.

    Row b holds count_B[b] real tokens at positions 0 .. count_B[b] - 1; its other outputs (and
    taps) are zeros.

    Args:
        config: The plain data of a model's config, as `ModelConfig.to_dict` gives it.
        arrays: Weights under canonical names, (out, in), all float64 or all float32.
        ids_BT: Token ids, any integer dtype.
        count_B: Real tokens of each row; by default all T.
        encoder_BE: Of a config with an encoder, the ids that it reads for each row; -1 stands for
            no token, behind a row's last.
        taps: Filled with the points of the forward pass, in its order: `embed`, then for each layer
            i `layers.{i}.attn_norm`, `.q`, `.k`, `.v` [B, T, heads, H] (after bias and rotation;
            the `.v` of latents is the latents, one head), `.attn` (after the output projection),
            `.mlp_norm`, `.mlp`, `.resid` (after the block), then `norm` and `logits`.

    Raises:
        DecoderError: The config holds what this decoder does not compute; a weight is missing,
            unused or misshapen; ids or counts are out of range.

    Not checked here: whether the weights are finite.
    """
    try:
        check_config(config)
        ids_BT = check_ids(ids_BT, config["vocab_size"], config["max_positions"])
        count_B = check_counts(count_B, *ids_BT.shape)
        weights = Weights(arrays)
        read = check_encoder(encoder_BE, config, len(ids_BT))
        rows = [
            _row(config, weights, ids_T[:c], read_E)
            for ids_T, c, read_E in zip(ids_BT, count_B, read, strict=True)
        ]
        weights.check_all_used()
    except DecoderError as error:
        raise DecoderError(f"decode: {error}") from None
    padded = {name: _pad_rows([row[name] for row in rows], ids_BT.shape[1]) for name in rows[0]}
    if taps is not None:
        taps.update(padded)
    return padded["logits"]


def greedy(
    config: Mapping[str, Any], arrays: Mapping[str, NDArray], prompt_ids: Sequence[int], n: int
) -> list[int]:
    """Return n new greedy ids, recomputing everything for each; ties go to the lowest id.

    Args:
        config: As for `decode`.
        arrays: As for `decode`.
        prompt_ids: At least one id.
        n: How many new ids, 0 or more.

    Raises:
        DecoderError: n is negative, or what `decode` refuses (a prompt that is empty or, with the
            new ids that are fed back, longer than max_positions).
    """
    if n < 0:
        raise DecoderError(f"greedy: n is {n}, expected at least 0.")
    ids = [int(i) for i in prompt_ids]
    for _ in range(n):
        logits_BTV = decode(config, arrays, np.asarray([ids], dtype=np.int64))
        ids.append(int(np.argmax(logits_BTV[0, -1])))
    return ids[len(prompt_ids) :]


def _row(
    config: Mapping[str, Any], w: Weights, ids_T: NDArray, read_E: NDArray | None
) -> dict[str, NDArray]:
    taps: dict[str, NDArray] = {}
    read_ED = None
    if read_E is not None:
        read_ED = _stack(config, config["encoder"], w, "encoder.", read_E, None, {})
    taps["norm"] = x_TD = _stack(config, config, w, "", ids_T, read_ED, taps)
    if config.get("scaled_head", False):
        x_TD = x_TD / x_TD.dtype.type(math.sqrt(config["width"]))
    vocab, bias = config["vocab_size"], config["head_bias"]
    name = "embed.weight" if config["tied_head"] else "head.weight"
    logits_TV = x_TD @ w.take(name, vocab, config["width"]).T
    logits_TV = logits_TV + w.take("head.bias", vocab) if bias else logits_TV
    taps["logits"] = _capped(logits_TV, config.get("logit_soft_cap"))
    return taps


def _stack(
    config: Mapping[str, Any],
    stack: Mapping[str, Any],
    w: Weights,
    prefix: str,
    ids_T: NDArray,
    read_ED: NDArray | None,
    taps: dict[str, NDArray],
) -> NDArray:
    x_TD = _embed(config, stack, w, prefix, ids_T)
    taps["embed"] = x_TD
    bias_NTT = relative_bias(
        [layer["attention"] for layer in stack["layers"]], w, prefix, len(x_TD)
    )
    for i, layer in enumerate(stack["layers"]):
        x_TD = _layer(config, layer, w, f"{prefix}layers.{i}", x_TD, bias_NTT, read_ED, taps)
    if not config.get("final_norm", True):
        return x_TD
    return _norm(config["norm"], w, f"{prefix}norm", x_TD)


def _embed(
    config: Mapping[str, Any], stack: Mapping[str, Any], w: Weights, prefix: str, ids_T: NDArray
) -> NDArray:
    width = config["width"]
    embed_VD = w.take("embed.weight", config["vocab_size"], width)
    x_TD = embed_VD[ids_T]
    if config.get("scaled_embedding", False):
        x_TD = x_TD * embed_VD.dtype.type(math.sqrt(width))
    if config["learned_positions"]:
        first = config.get("position_offset", 0)
        place = w.take(f"{prefix}position.weight", stack["max_positions"] + first, width)
        x_TD = x_TD + place[first : first + len(ids_T)]
    if config.get("embed_norm", False):
        return _norm(config["norm"], w, f"{prefix}embed_norm", x_TD)
    return x_TD


def _layer(
    config: Mapping[str, Any],
    layer: Mapping[str, Any],
    w: Weights,
    name: str,
    x_TD: NDArray,
    bias_NTT: NDArray | None,
    read_ED: NDArray | None,
    taps: dict[str, NDArray],
) -> NDArray:
    norm, is_after = config["norm"], layer.get("norm_after", False)

    def before(part: str, x_TD: NDArray) -> NDArray:
        return x_TD if is_after else _norm(norm, w, f"{name}.{part}_norm", x_TD)

    def after(part: str, x_TD: NDArray) -> NDArray:
        return _norm(norm, w, f"{name}.{part}_norm", x_TD) if is_after else x_TD

    taps[f"{name}.attn_norm"] = n_TD = before("attn", x_TD)
    attn_TD = _attention(layer["attention"], w, name, n_TD, bias_NTT, taps)
    taps[f"{name}.attn"] = attn_TD
    if layer.get("post_norms", False):
        attn_TD = _norm(norm, w, f"{name}.attn_post_norm", attn_TD)
    sum_TD = after("attn", x_TD + attn_TD)
    if layer.get("cross") is not None and read_ED is not None:
        cross_TD = _cross(layer["cross"], w, f"{name}.cross", before("cross", sum_TD), read_ED)
        taps[f"{name}.cross"] = cross_TD
        sum_TD = after("cross", sum_TD + cross_TD)
    taps[f"{name}.mlp_norm"] = n_TD = before("mlp", x_TD if layer.get("parallel") else sum_TD)
    mlp_TD = _mlp(layer["mlp"], w, f"{name}.mlp", n_TD)
    taps[f"{name}.mlp"] = mlp_TD
    if layer.get("post_norms", False):
        mlp_TD = _norm(norm, w, f"{name}.mlp_post_norm", mlp_TD)
    taps[f"{name}.resid"] = after("mlp", sum_TD + mlp_TD)
    return taps[f"{name}.resid"]


def _norm(norm: Mapping[str, Any], w: Weights, name: str, x_TD: NDArray) -> NDArray:
    eps, width = norm["eps"], x_TD.shape[-1]
    gain_D = w.take(f"{name}.weight", width) + (1 if norm.get("plus_one", False) else 0)
    if norm["kind"] == "rms":
        return x_TD / np.sqrt(np.mean(x_TD**2, axis=-1, keepdims=True) + eps) * gain_D
    centered_TD = x_TD - np.mean(x_TD, axis=-1, keepdims=True)
    variance_T1 = np.mean(centered_TD**2, axis=-1, keepdims=True)
    return centered_TD / np.sqrt(variance_T1 + eps) * gain_D + w.take(f"{name}.bias", width)


def _capped(x: NDArray, cap: float | None) -> NDArray:
    return x if cap is None else cap * np.tanh(x / cap)


def _linear(w: Weights, name: str, x: NDArray, out_width: int, *, bias: bool) -> NDArray:
    y = x @ w.take(f"{name}.weight", out_width, x.shape[-1]).T
    return y + w.take(f"{name}.bias", out_width) if bias else y


def _cross(a: Mapping[str, Any], w: Weights, name: str, x_TD: NDArray, read_ED: NDArray) -> NDArray:
    n_heads, k_heads, h = a["num_heads"], a["num_kv_heads"], a["head_dim"]
    inputs = {"q": (x_TD, n_heads), "k": (read_ED, k_heads), "v": (read_ED, k_heads)}
    q_TNH, k_EKH, v_EKH = (
        _linear(w, f"{name}.{part}", x, count * h, bias=a["qkv_bias"]).reshape(len(x), count, h)
        for part, (x, count) in inputs.items()
    )
    o_TNH = np.zeros_like(q_TNH)
    for n in range(n_heads):
        k = n // (n_heads // k_heads)
        o_TNH[:, n] = _attend_one_head(a, q_TNH[:, n], k_EKH[:, k], v_EKH[:, k])
    flat_TE = o_TNH.reshape(len(x_TD), n_heads * h)
    return _linear(w, f"{name}.o", flat_TE, x_TD.shape[-1], bias=a["out_bias"])


def _attention(
    a: Mapping[str, Any],
    w: Weights,
    layer: str,
    x_TD: NDArray,
    bias_NTT: NDArray | None,
    taps: dict[str, NDArray],
) -> NDArray:
    t, width = x_TD.shape
    if a.get("latent") is not None:
        o_TE = attend_latent(a, w, layer, x_TD, taps, _linear)
        return _linear(w, f"{layer}.attn.o", o_TE, width, bias=a["out_bias"])
    n_heads, k_heads, h = a["num_heads"], a["num_kv_heads"], a["head_dim"]
    heads = {"q": n_heads, "k": k_heads, "v": k_heads}
    for part, count in heads.items():
        y = _linear(w, f"{layer}.attn.{part}", x_TD, count * h, bias=a["qkv_bias"])
        taps[f"{layer}.{part}"] = y.reshape(t, count, h)
    for part in ("q", "k"):
        x_TNH = taps[f"{layer}.{part}"]
        if a.get("qk_norm") is not None:
            x_TNH = _norm(a["qk_norm"], w, f"{layer}.attn.{part}_norm", x_TNH)
        taps[f"{layer}.{part}"] = x_TNH if a["rope"] is None else rotate(a["rope"], x_TNH)
    q_TNH, k_TKH, v_TKH = (taps[f"{layer}.{part}"] for part in heads)
    o_TNH = np.zeros_like(q_TNH)
    for n in range(n_heads):
        k = n // (n_heads // k_heads)
        bias_TT = None if bias_NTT is None or a.get("relative") is None else bias_NTT[n]
        o_TNH[:, n] = _attend_one_head(a, q_TNH[:, n], k_TKH[:, k], v_TKH[:, k], bias_TT)
    return _linear(w, f"{layer}.attn.o", o_TNH.reshape(t, n_heads * h), width, bias=a["out_bias"])


def _attend_one_head(
    a: Mapping[str, Any],
    q_TH: NDArray,
    k_SH: NDArray,
    v_SH: NDArray,
    bias_TS: NDArray | None = None,
) -> NDArray:
    width = a["head_dim"] if a.get("score_width") is None else a["score_width"]
    scores_TS = _capped((q_TH @ k_SH.T) * width**-0.5, a["soft_cap"])
    scores_TS = scores_TS if bias_TS is None else scores_TS + bias_TS
    visible_TS = np.ones(scores_TS.shape, dtype=np.bool_)
    for query in range(len(q_TH) if a.get("causal", True) else 0):
        oldest = 0 if a["window"] is None else max(0, query - a["window"] + 1)
        visible_TS[query, :oldest] = False
        visible_TS[query, query + 1 :] = False
    scores_TS = np.where(visible_TS, scores_TS, -np.inf)
    top_T1 = np.max(scores_TS, axis=-1, keepdims=True, initial=-np.inf)
    weights_TS = np.exp(scores_TS - top_T1)
    return (weights_TS / np.sum(weights_TS, axis=-1, keepdims=True)) @ v_SH


def _mlp(m: Mapping[str, Any], w: Weights, name: str, x_TD: NDArray) -> NDArray:
    if "num_experts" in m:
        return _experts(m, w, name, x_TD)
    matrices = [w.take(f"{name}.up.weight", m["width"], x_TD.shape[-1])]
    if m["gated"]:
        matrices.append(w.take(f"{name}.gate.weight", m["width"], x_TD.shape[-1]))
    inside = [x_TD @ matrix_FD.T for matrix_FD in matrices]
    if m["bias"]:
        parts = ("up", "gate")[: len(inside)]
        inside = [
            y + w.take(f"{name}.{part}.bias", m["width"])
            for y, part in zip(inside, parts, strict=True)
        ]
    hidden_TF = _hidden(m, inside)
    return _linear(w, f"{name}.down", hidden_TF, x_TD.shape[-1], bias=m["bias"])


def _hidden(m: Mapping[str, Any], inside: list[NDArray]) -> NDArray:
    act = _ACTIVATIONS[m["activation"]]
    return act(inside[1]) * inside[0] if m["gated"] else act(inside[0])


def _experts(m: Mapping[str, Any], w: Weights, name: str, x_TD: NDArray) -> NDArray:
    width, hidden, count = x_TD.shape[-1], m["expert"]["width"], m["num_experts"]
    up_ZFD = w.take(f"{name}.experts.up.weight", count, hidden, width)
    gate_ZFD = w.take(f"{name}.experts.gate.weight", count, hidden, width)
    down_ZDF = w.take(f"{name}.experts.down.weight", count, width, hidden)
    score_TZ = _linear(w, f"{name}.router", x_TD, count, bias=False)
    has_bias = (m.get("routing") or {}).get("choice_bias", False)
    bias_Z = w.take(f"{name}.router.bias", count) if has_bias else None
    result_TD = np.zeros_like(x_TD)
    for t, x_D in enumerate(x_TD):
        for z, weight in choose(m, score_TZ[t], bias_Z):
            hidden_F = _hidden(m["expert"], [up_ZFD[z] @ x_D, gate_ZFD[z] @ x_D])
            result_TD[t] += weight * (down_ZDF[z] @ hidden_F)
    shared = m.get("shared")
    return result_TD if shared is None else result_TD + _mlp(shared, w, f"{name}.shared", x_TD)


def _silu(x: NDArray) -> NDArray:
    # exp of a negative number on both branches: exp(-x) overflows for very negative x.
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _gelu(x: NDArray) -> NDArray:
    # erfc keeps the tail: 1 + erf(x) loses every digit below x = -6.
    tail = np.vectorize(math.erfc, otypes=[np.float64])(-x.astype(np.float64) / math.sqrt(2.0))
    return x * (0.5 * tail).astype(x.dtype)


def _gelu_tanh(x: NDArray) -> NDArray:
    # (1 + tanh(z)) / 2 is the logistic function of 2z, which keeps its tail.
    doubled = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
    e = np.exp(-np.abs(doubled))
    return x * np.where(doubled >= 0, 1 / (1 + e), e / (1 + e))


def _relu(x: NDArray) -> NDArray:
    return np.where(x > 0, x, np.zeros_like(x))


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu": _relu}


def _pad_rows(rows: list[NDArray], t: int) -> NDArray:
    padded = np.zeros((len(rows), t, *rows[0].shape[1:]), dtype=rows[0].dtype)
    for b, row in enumerate(rows):
        padded[b, : len(row)] = row
    return padded
