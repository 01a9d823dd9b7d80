"""The toy's forward pass, one row at a time: right because it is short.

Letters: T tokens, S slots, D width, N query heads, K key/value heads, H head width, C latent width,
E encoder positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.toys.config import ToyConfig, Weights
from tests.toys.ops import attend, rms_norm, rope, silu
from tests.toys.stores import View

Put = Callable[[int, NDArray, NDArray], View]
Tap = Callable[[str, NDArray], None]


@dataclass(frozen=True)
class Row:
    """What one row feeds.

    Attributes:
        ids_T: Real tokens only.
        index_T: Where they stand in the row's text.
        position_T: What rotates them, or picks a learned position.
        see: (index_S, window) -> bool [T, S].
        put: (layer, k, v) -> what the queries read.
        cross: layer -> keys and values of the encoder [E, N, H]; None without.
    """

    ids_T: NDArray
    index_T: NDArray
    position_T: NDArray
    see: Callable[[NDArray, int | None], NDArray]
    put: Put
    cross: Callable[[int], tuple[NDArray, NDArray]] | None = None


def run_row(c: ToyConfig, w: Weights, form: str, row: Row, tap: Tap) -> NDArray:
    """Return logits [T, V] of one row's tokens."""
    x_TD = w["embed"][row.ids_T]
    if c.learned:
        x_TD = x_TD + w["position"][row.position_T]
    tap("embed", x_TD)
    for i in range(len(c.windows)):
        n_TD = rms_norm(x_TD, w[f"{i}.attn_norm"])
        attention = _latent_attention if c.kind == "mla" else _attention
        attn_TD = _linear(w, f"{i}.out", attention(c, w, i, form, row, n_TD).reshape(len(x_TD), -1))
        tap(f"layers.{i}.attn", attn_TD)
        x_TD = x_TD + attn_TD
        if row.cross is not None:
            x_TD = x_TD + _cross_attention(c, w, i, row, rms_norm(x_TD, w[f"{i}.cross_norm"]))
        mlp_TD = _mlp(w, i, rms_norm(x_TD, w[f"{i}.mlp_norm"]))
        tap(f"layers.{i}.mlp", mlp_TD)
        x_TD = x_TD + mlp_TD
        tap(f"layers.{i}.resid", x_TD)
    logits_TV = rms_norm(x_TD, w["norm"]) @ w["head"] + w["head_bias"]
    tap("logits", logits_TV)
    return logits_TV


def _linear(w: Weights, name: str, x_TD: NDArray) -> NDArray:
    return x_TD @ w[name] + w[f"{name}_bias"]


def _rotate(c: ToyConfig, x_TNH: NDArray, position_T: NDArray, rotary: int) -> NDArray:
    return x_TNH if c.learned else rope(x_TNH, position_T, rotary=rotary, theta=c.theta)


def _attention(c: ToyConfig, w: Weights, i: int, form: str, row: Row, n_TD: NDArray) -> NDArray:
    t = len(n_TD)
    q_TNH = _linear(w, f"{i}.q", n_TD).reshape(t, c.heads, c.head)
    k_TKH = _linear(w, f"{i}.k", n_TD).reshape(t, c.kv_heads, c.head)
    v_TKH = _linear(w, f"{i}.v", n_TD).reshape(t, c.kv_heads, c.head)
    q_TNH = _rotate(c, q_TNH, row.position_T, c.rotary)
    k_TKH = _rotate(c, k_TKH, row.position_T, c.rotary)
    if form == "gqa_as_mha":
        groups = c.heads // c.kv_heads
        k_TKH, v_TKH = np.repeat(k_TKH, groups, axis=1), np.repeat(v_TKH, groups, axis=1)
    k_SKH, v_SKH, index_S = row.put(i, k_TKH, v_TKH)
    return attend(q_TNH, k_SKH, v_SKH, row.see(index_S, c.windows[i]), scale=c.head**-0.5)


def _latent_attention(
    c: ToyConfig, w: Weights, i: int, form: str, row: Row, n_TD: NDArray
) -> NDArray:
    """Latent attention: the up-projections absorbed into query and output, or expanded."""
    t, nope = len(n_TD), c.head - c.rope_head
    q_TNH = _linear(w, f"{i}.q", n_TD).reshape(t, c.heads, c.head)
    q_rope = _rotate(c, q_TNH[..., nope:], row.position_T, c.rope_head)
    kv = _linear(w, f"{i}.kv_a", n_TD)
    c_TC = rms_norm(kv[:, : c.latent], w[f"{i}.latent_norm"])
    k_rope = _rotate(c, kv[:, None, c.latent :], row.position_T, c.rope_head)
    up_CNH = w[f"{i}.kv_b"].reshape(c.latent, c.heads, nope + c.head)
    up_k, up_v = up_CNH[..., :nope], up_CNH[..., nope:]
    scale = c.head**-0.5
    if form == "mla_naive":
        k_TNH = np.einsum("TC,CNH->TNH", c_TC, up_k)
        k_TNH = np.concatenate([k_TNH, np.repeat(k_rope, c.heads, axis=1)], axis=-1)
        view = row.put(i, k_TNH, np.einsum("TC,CNH->TNH", c_TC, up_v))
        q_TNH = np.concatenate([q_TNH[..., :nope], q_rope], axis=-1)
        see_TS = row.see(view.index_S, c.windows[i])
        return attend(q_TNH, view.k_SKH, view.v_SKH, see_TS, scale=scale)
    view = row.put(i, np.concatenate([c_TC[:, None], k_rope], axis=-1), c_TC[:, None])
    q_TNC = np.einsum("TNH,CNH->TNC", q_TNH[..., :nope], up_k)
    q_TNC = np.concatenate([q_TNC, q_rope], axis=-1)
    see_TS = row.see(view.index_S, c.windows[i])
    o_TNC = attend(q_TNC, view.k_SKH, view.v_SKH, see_TS, scale=scale)
    return np.einsum("TNC,CNH->TNH", o_TNC, up_v)


def _cross_attention(c: ToyConfig, w: Weights, i: int, row: Row, n_TD: NDArray) -> NDArray:
    assert row.cross is not None
    q_TNH = _linear(w, f"{i}.cross_q", n_TD).reshape(len(n_TD), c.heads, c.head)
    k_ENH, v_ENH = row.cross(i)
    see_TE = np.ones((len(n_TD), len(k_ENH)), bool)
    o_TNH = attend(q_TNH, k_ENH, v_ENH, see_TE, scale=c.head**-0.5)
    return _linear(w, f"{i}.cross_out", o_TNH.reshape(len(n_TD), -1))


def cross_kv(c: ToyConfig, w: Weights, i: int, encoder_ED: NDArray) -> tuple[NDArray, NDArray]:
    """Return one layer's keys and values of an encoder's result [E, N, H]."""
    shape = (len(encoder_ED), c.heads, c.head)
    k = _linear(w, f"{i}.cross_k", encoder_ED).reshape(shape)
    return k, _linear(w, f"{i}.cross_v", encoder_ED).reshape(shape)


def _mlp(w: Weights, i: int, n_TD: NDArray) -> NDArray:
    gate = silu(_linear(w, f"{i}.gate", n_TD))
    return _linear(w, f"{i}.down", gate * _linear(w, f"{i}.up", n_TD))
