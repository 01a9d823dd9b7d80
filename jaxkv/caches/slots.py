"""Writing to and reading from one attention's buffers, addressed by slot.

Used by every layout with plain buffers.

Keys are kept as (B*K, H, S), values as (B*K, S, H): the orders in which a decode step's two
products read them without a copy. Rank 3, because XLA on CPUs copies a rank-4 (B, K, S, H) buffer
at batch 1 in every step of a loop. Letters: B rows, K key/value heads, X = B*K, T new tokens, S
slots, H head width, C the first channels of keys that are values where there are no others.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxkv import ops
from jaxkv.caches import causal, fused
from jaxkv.caches.state import Bias, Expand
from jaxkv.spec.errors import ShapeError, Unsupported


def heads_first(x_BTKH: Float[Array, "B T K H"]) -> Float[Array, "X T H"]:
    """Return new keys or values with one line per row and head."""
    b, t, k, h = x_BTKH.shape
    return x_BTKH.swapaxes(1, 2).reshape(b * k, t, h)


def write_slice(
    k_XHS: Float[Array, "X H S"],
    v_XSH: Float[Array, "X S H"] | None,
    new_k_XTH: Float[Array, "X T H"],
    new_v_XTH: Float[Array, "X T H"] | None,
    *,
    start: Int[Array, ""],
    keep_X: Bool[Array, " X"],
) -> tuple[Float[Array, "X H S"], Float[Array, "X S H"] | None]:
    """Return the buffers with T slots from `start` replaced in the lines that `keep_X` names.

    One slice update each; None for values that are not kept.

    Not checked here: start + T within S; the callers make it so, because an update past the end
    would be moved back.
    """
    keep = keep_X[:, None, None]
    new_k_XHT = new_k_XTH.swapaxes(1, 2)
    old_k = jax.lax.dynamic_slice_in_dim(k_XHS, start, new_k_XHT.shape[2], axis=2)
    k_XHS = jax.lax.dynamic_update_slice_in_dim(
        k_XHS, jnp.where(keep, new_k_XHT, old_k).astype(k_XHS.dtype), start, axis=2
    )
    if v_XSH is None or new_v_XTH is None:
        return k_XHS, None
    old_v = jax.lax.dynamic_slice_in_dim(v_XSH, start, new_v_XTH.shape[1], axis=1)
    v_XSH = jax.lax.dynamic_update_slice_in_dim(
        v_XSH, jnp.where(keep, new_v_XTH, old_v).astype(v_XSH.dtype), start, axis=1
    )
    return k_XHS, v_XSH


def write_slots(
    k_XHS: Float[Array, "X H S"],
    v_XSH: Float[Array, "X S H"] | None,
    new_k_XTH: Float[Array, "X T H"],
    new_v_XTH: Float[Array, "X T H"] | None,
    *,
    slot_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "X H S"], Float[Array, "X S H"] | None]:
    """Return the buffers with each token at its own slot; None for values that are not kept.

    A slot of S or more means: do not write.
    """
    line_X1 = jnp.arange(k_XHS.shape[0], dtype=jnp.int32)[:, None]
    slot_XT = jnp.repeat(slot_BT, k_XHS.shape[0] // slot_BT.shape[0], axis=0)
    k_XHS = k_XHS.at[line_X1, :, slot_XT].set(new_k_XTH.astype(k_XHS.dtype), mode="drop")
    if v_XSH is None or new_v_XTH is None:
        return k_XHS, None
    v_XSH = v_XSH.at[line_X1, slot_XT].set(new_v_XTH.astype(v_XSH.dtype), mode="drop")
    return k_XHS, v_XSH


def values_of(
    k_XHS: Float[Array, "X H S"], v_XSH: Float[Array, "X S _"] | None, *, rank: int | None
) -> Float[Array, "X S _"]:
    """Return the values: their own buffer, or the view of the keys' first `rank` channels."""
    return k_XHS[:, :rank].swapaxes(1, 2) if v_XSH is None else v_XSH


def expanded(
    k_XHS: Float[Array, "X H S"], expand: Expand, *, rows: int
) -> tuple[Float[Array, "Y _ S"], Float[Array, "Y S _"]]:
    """Return the keys and values of all heads that latents expand to, in the buffers' order.

    Y = B*N lines, for one a row.
    """
    k_BKHS = k_XHS.reshape(rows, k_XHS.shape[0] // rows, *k_XHS.shape[1:])
    k_BSNH, v_BSNH = expand(k_BKHS.transpose(0, 3, 1, 2))
    return heads_first(k_BSNH).swapaxes(1, 2), heads_first(v_BSNH)


def new_values(
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K _"] | None,
    expand: Expand | None,
    *,
    rank: int | None,
) -> tuple[Float[Array, "B T N _"], Float[Array, "B T N _"]]:
    """Return the keys and values that a fresh step reads: new ones, or what latents expand to.

    Args:
        k_BTKH: New keys, rotated.
        v_BTKH: New values, None where they are the keys' first channels.
        expand: From latents to the keys and values of all heads, if that form is wanted.
        rank: How many channels of the keys are the values.
    """
    if expand is not None:
        return expand(k_BTKH)
    return k_BTKH, k_BTKH[..., :rank] if v_BTKH is None else v_BTKH


def attend_slots(
    q_BTNH: Float[Array, "B T N H"],
    k_XHS: Float[Array, "X H S"],
    v_XSH: Float[Array, "X S _"],
    *,
    query_BT: Int[Array, "B T"],
    key_BS: Int[Array, "B S"],
    valid_BS: Bool[Array, "B S"],
    rule: ops.Rule,
    clean: bool,
    bias: Bias | None = None,
) -> Float[Array, "B T N _"]:
    """Return attention of T queries to S slots.

    In blocks of queries so that scores never exceed block x S.

    Slots that are not valid may hold anything, NaN included: their scores are masked and their
    values replaced by 0.
    """
    if not clean:
        v_XSH = scrub_values(v_XSH, valid_BS)
    return _in_blocks(
        q_BTNH,
        query_BT,
        lambda q, at, _: _attend(q, k_XHS, v_XSH, at, key_BS, valid_BS, rule, bias),
    )


def attend_fresh(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K _"],
    *,
    position_BT: Int[Array, "B T"],
    valid_BT: Bool[Array, "B T"],
    rule: ops.Rule,
    bias: Bias | None = None,
) -> Float[Array, "B T N _"]:
    """Return attention of T first tokens to themselves.

    Each block of queries reads only the keys that it can see.

    Rows must be empty before these tokens, so that token i stands at position i.
    """
    if bias is None:
        out_BTNH = fused.attend_fresh(q_BTNH, k_BTKH, v_BTKH, valid_BT=valid_BT, rule=rule)
        if out_BTNH is not None:
            return out_BTNH
    k_XTH, v_XTH = heads_first(k_BTKH), heads_first(v_BTKH)
    if bias is None and causal.is_served(q_BTNH.shape[1], rule=rule):
        return causal.attend(q_BTNH, k_XTH, v_XTH, valid_BT=valid_BT, rule=rule)
    k_XHT = k_XTH.swapaxes(1, 2)

    def block(q: Array, at: Array, span: slice) -> Array:
        first = 0 if rule.window is None else max(0, span.start - rule.window + 1)
        keys = slice(first, span.stop if rule.causal else None)
        return _attend(
            q,
            k_XHT[:, :, keys],
            v_XTH[:, keys],
            at,
            position_BT[:, keys],
            valid_BT[:, keys],
            rule,
            bias,
        )

    return _in_blocks(q_BTNH, position_BT, block)


def _in_blocks(
    q_BTNH: Array, query_BT: Array, block: Callable[[Array, Array, slice], Array]
) -> Array:
    tokens = q_BTNH.shape[1]
    spans = [
        slice(at, min(at + ops.QUERY_BLOCK, tokens)) for at in range(0, tokens, ops.QUERY_BLOCK)
    ]
    parts = [block(q_BTNH[:, span], query_BT[:, span], span) for span in spans]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _attend(
    q_BTNH: Array,
    k_XHS: Array,
    v_XSH: Array,
    query_BT: Array,
    key_BS: Array,
    valid_BS: Array,
    rule: ops.Rule,
    bias: Bias | None,
) -> Array:
    rows, tokens, heads, _ = q_BTNH.shape
    kv_heads = k_XHS.shape[0] // rows
    score_XMS = ops.score(ops.group_queries(q_BTNH, kv_heads), k_XHS, rule=rule)
    if bias is not None:
        added_BNTS = bias(query_BT, key_BS)
        check_bias(added_BNTS, expected=(rows, heads, tokens, key_BS.shape[1]))
        score_XMS = score_XMS + ops.group_bias(added_BNTS, num_kv_heads=kv_heads)
    visible_BTS = ops.is_visible(query_BT, key_BS, valid_BS, rule=rule)
    visible_XMS = ops.spread(visible_BTS, num_kv_heads=kv_heads, groups=heads // kv_heads)
    weight_XMS, total_XM1 = ops.weigh(score_XMS, visible_XMS)
    sum_XMH = jnp.einsum("XMS,XSH->XMH", weight_XMS.astype(v_XSH.dtype), v_XSH)
    out_XMH = (sum_XMH / total_XM1).astype(v_XSH.dtype)
    return ops.ungroup(out_XMH, rows=rows, tokens=tokens)


def check_bias(added_BNTS: Array, *, expected: tuple[int, ...]) -> None:
    """Refuse an addend of the scores that would be spread over keys or queries.

    Raises:
        ShapeError: One key's bias for all keys is none at all, softmax cancels it.
    """
    if added_BNTS.shape != expected:
        raise ShapeError(
            f"attend: bias has shape {tuple(added_BNTS.shape)}, expected {expected}, one number a "
            "row, head, query and key. Build it from the positions it is given."
        )


def check_new(
    keys: Array,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rank: int | None = None,
) -> None:
    """Refuse new keys and values that were not made for these buffers.

    Raises:
        Unsupported: There are none, and this layout stores the step's own; or values beside keys
            whose first `rank` channels they are.
        ShapeError: Batch, K, H or dtype differ.
    """
    new_k_BTKH, _ = both(k_BTKH, v_BTKH, rank=rank)
    check_form(keys, new_k_BTKH)
    rows, _, kv_heads, _ = new_k_BTKH.shape
    if keys.shape[0] != rows * kv_heads:
        raise ShapeError(
            f"attend: k_BTKH has B*K={rows * kv_heads} lines, the cache has {keys.shape[0]}. "
            "Was the cache made for another batch or model?"
        )


def check_sees_all(rule: ops.Rule) -> None:
    """Refuse an attention that a layout for whole causal texts does not serve.

    Raises:
        Unsupported: It has a window or sees the future.
    """
    if rule.window is not None or not rule.causal:
        raise Unsupported(
            f"attend: rule has window {rule.window} and causal {rule.causal}, expected None and "
            "True: a layer with a window keeps a ring beside this layout. Make the cache with "
            "`init`."
        )


def check_form(keys: Array, new_k_BTKH: Float[Array, "B T K H"]) -> None:
    """Refuse new keys of another width or dtype than the buffers'.

    Raises:
        ShapeError: H or dtype differ.
    """
    width = new_k_BTKH.shape[3]
    if keys.shape[1] != width:
        raise ShapeError(
            f"attend: k_BTKH has H={width}, the cache has H={keys.shape[1]}. Was the cache made "
            "for another model?"
        )
    if keys.dtype != new_k_BTKH.dtype:
        raise ShapeError(
            f"attend: k_BTKH is {new_k_BTKH.dtype}, the cache {keys.dtype}. Make the cache with "
            f"dtype={new_k_BTKH.dtype}."
        )


def both(
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rank: int | None = None,
) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"] | None]:
    """Return new keys and values that are there, and alike; with a rank, keys alone.

    Raises:
        Unsupported: One is missing, or there with a rank.
        ShapeError: Their shapes differ.
    """
    if rank is not None:
        if k_BTKH is None or v_BTKH is not None:
            raise Unsupported(
                f"attend: expected k_BTKH, and None for v_BTKH: values are the first {rank} "
                "channels of the keys that this site keeps. Pass latents beside rotary keys."
            )
        return k_BTKH, None
    if k_BTKH is None or v_BTKH is None:
        raise Unsupported(
            "attend: k_BTKH or v_BTKH is None, expected both: this layout stores the step's own "
            "keys and values. Pass them."
        )
    if k_BTKH.shape != v_BTKH.shape:
        raise ShapeError(
            f"attend: k_BTKH is {tuple(k_BTKH.shape)}, v_BTKH is {tuple(v_BTKH.shape)}; they must "
            "be alike."
        )
    return k_BTKH, v_BTKH


def by_row(
    k_XHS: Float[Array, "X H S"], v_XSH: Float[Array, "X S _"], *, rows: int
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"]]:
    """Return copies of the buffers in the order that people compare: row, slot, head, channel."""
    x, h, s = k_XHS.shape
    k_BKHS, v_BKSH = k_XHS.reshape(rows, x // rows, h, s), v_XSH.reshape(rows, x // rows, s, -1)
    return k_BKHS.transpose(0, 3, 1, 2), v_BKSH.transpose(0, 2, 1, 3)


def gather_rows(
    x_X: Shaped[Array, "X ..."], rows_B: Int[Array, " B"], *, batch: int
) -> Shaped[Array, "Y ..."]:
    """Return the lines of the named rows, in their order.

    Rows may repeat and their number may differ.
    """
    by_row = x_X.reshape(batch, x_X.shape[0] // batch, *x_X.shape[1:])
    taken = jnp.take(by_row, rows_B, axis=0, mode="clip")
    return taken.reshape(-1, *x_X.shape[1:])


def scrub_values(
    v_XSH: Float[Array, "X S H"], valid_BS: Bool[Array, "B S"]
) -> Float[Array, "X S H"]:
    """Return the values with 0 in every slot that holds no token, because 0 * NaN is NaN."""
    valid_XS = jnp.repeat(valid_BS, v_XSH.shape[0] // valid_BS.shape[0], axis=0)
    return jnp.where(valid_XS[:, :, None], v_XSH, 0)


def poison(
    k_XHS: Float[Array, "X H S"], v_XSH: Float[Array, "X S H"] | None, valid_BS: Bool[Array, "B S"]
) -> tuple[Float[Array, "X H S"], Float[Array, "X S H"] | None]:
    """Return the buffers with NaN in every slot that holds no token."""
    valid_XS = jnp.repeat(valid_BS, k_XHS.shape[0] // valid_BS.shape[0], axis=0)
    k_XHS = jnp.where(valid_XS[:, None, :], k_XHS, jnp.nan)
    return k_XHS, None if v_XSH is None else jnp.where(valid_XS[:, :, None], v_XSH, jnp.nan)
