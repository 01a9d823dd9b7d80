"""Writing to and reading from one attention's buffers, addressed by slot.

Used by every layout with plain buffers.

Keys and values are both kept as (B, K, S, H): one row and head is one contiguous (S, H) matrix, and
a slice of used slots is a view. Writing is in place. Letters: B rows, K key/value heads, T new
tokens, S slots, N query heads, M = G*T grouped queries, H head width, P real tokens of all rows.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor as Array

from jaxkv.spec.errors import ShapeError, Unsupported
from torchkv import ops
from torchkv.caches import causal
from torchkv.caches.state import Bias, Expand, Rotate, Step


def heads_first(x_BTKH: Float[Array, "B T K H"]) -> Float[Array, "B K T H"]:
    """Return a view of new keys or values in the buffers' order."""
    return x_BTKH.transpose(1, 2)


def write_slice(
    k_BKSH: Float[Array, "B K S H"],
    v_BKSH: Float[Array, "B K S H"] | None,
    new_k_BTKH: Float[Array, "B T K H"],
    new_v_BTKH: Float[Array, "B T K H"] | None,
    *,
    start: int,
) -> None:
    """Write T slots from `start` in every row, in place; None for values that are not kept.

    Raises:
        RuntimeError: start + T exceeds S; `begin` refuses such rows before.
    """
    tokens = new_k_BTKH.shape[1]
    k_BKSH.narrow(2, start, tokens).copy_(heads_first(new_k_BTKH))
    if v_BKSH is not None and new_v_BTKH is not None:
        v_BKSH.narrow(2, start, tokens).copy_(heads_first(new_v_BTKH))


def write_slots(
    k_BKSH: Float[Array, "B K S H"],
    v_BKSH: Float[Array, "B K S H"] | None,
    new_k_BTKH: Float[Array, "B T K H"],
    new_v_BTKH: Float[Array, "B T K H"] | None,
    *,
    row_P: Int[Array, " P"],
    token_P: Int[Array, " P"],
    slot_P: Int[Array, " P"],
) -> None:
    """Write P tokens, each at its own row and slot, in place; no two may share both.

    None for values that are not kept.
    """
    k_BKSH.transpose(1, 2)[row_P, slot_P] = new_k_BTKH[row_P, token_P]
    if v_BKSH is not None and new_v_BTKH is not None:
        v_BKSH.transpose(1, 2)[row_P, slot_P] = new_v_BTKH[row_P, token_P]


def write_tokens(
    x_BKC: Shaped[Array, "B K C ..."], new_BTK: Shaped[Array, "B T K ..."], step: Step
) -> None:
    """Write a step's real tokens at their positions, in place; padding may be anything."""
    if step.start is not None:
        x_BKC.narrow(2, step.start, new_BTK.shape[1]).copy_(new_BTK.transpose(1, 2))
        return
    row_P, token_P = step.real
    slot_P = step.position_BT[row_P, token_P].long()
    x_BKC.transpose(1, 2)[row_P, slot_P] = new_BTK[row_P, token_P]


def turned(
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K _"],
    step: Step,
    rotate: Rotate | None,
) -> tuple[Float[Array, "B T N _"], Float[Array, "B T K _"]]:
    """Return queries and keys turned by their positions, both at once if they are as wide."""
    if rotate is None:
        return q_BTNH, k_BTKH
    if q_BTNH.shape[3] != k_BTKH.shape[3]:
        return rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    both_BTNH = rotate(torch.cat((q_BTNH, k_BTKH), 2), step.position_BT)
    q_BTNH, k_BTKH = both_BTNH.split_with_sizes((q_BTNH.shape[2], k_BTKH.shape[2]), 2)
    return q_BTNH, k_BTKH


def first(step: Step, bias: Bias | None) -> Int[Array, "B S"] | None:
    """Return the positions of all slots that a step uses, if a bias asks where keys stand."""
    if bias is None:
        return None
    key_S = torch.arange(step.used, dtype=torch.int32, device=step.length_B.device)
    return key_S.expand(len(step.length_B), -1)


def values_of(
    k_BKSH: Float[Array, "B K S H"], v_BKSH: Float[Array, "B K S _"] | None, *, rank: int | None
) -> Float[Array, "B K S _"]:
    """Return the values: their own buffer, or the view of the keys' first `rank` channels."""
    return k_BKSH[..., :rank] if v_BKSH is None else v_BKSH


def expanded(
    k_BKSH: Float[Array, "B K S H"], expand: Expand
) -> tuple[Float[Array, "B N S _"], Float[Array, "B N S _"]]:
    """Return the keys and values of all heads that latents expand to, in the buffers' order."""
    k_BSNH, v_BSNH = expand(k_BKSH.transpose(1, 2))
    return heads_first(k_BSNH), heads_first(v_BSNH)


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


def attend_all(
    q_BTNH: Float[Array, "B 1 N H"],
    k_BKSH: Float[Array, "B K S H"],
    v_BKSH: Float[Array, "B K S _"],
    *,
    rule: ops.Rule,
) -> Float[Array, "B 1 N _"]:
    """Return attention of one query a row to every slot given.

    No mask, because all of them are valid and visible.

    Not checked here: that the rule has no soft cap, which the fused kernel does not know.
    """
    q_BKMH = ops.group_queries(q_BTNH, k_BKSH.shape[1])
    o_BKMH = F.scaled_dot_product_attention(q_BKMH, k_BKSH, v_BKSH, scale=rule.scale)
    return ops.ungroup(o_BKMH, tokens=1)


def attend_slots(
    q_BTNH: Float[Array, "B T N H"],
    k_BKSH: Float[Array, "B K S H"],
    v_BKSH: Float[Array, "B K S _"],
    *,
    query_BT: Int[Array, "B T"],
    key_BS: Int[Array, "B S"],
    valid_BS: Bool[Array, "B S"],
    rule: ops.Rule,
    clean: bool,
    bias: Bias | None = None,
) -> Float[Array, "B T N _"]:
    """Return attention of T queries to S slots, in blocks of queries: scores stay at block x S.

    Slots that are not valid may hold anything, NaN included, and are replaced by 0, unless they are
    known to be `clean`.
    """
    if not clean:
        empty_B1S1 = ~valid_BS[:, None, :, None]
        k_BKSH, v_BKSH = (x.masked_fill(empty_B1S1, 0.0) for x in (k_BKSH, v_BKSH))
    blocks = zip(q_BTNH.split(ops.QUERY_BLOCK, 1), query_BT.split(ops.QUERY_BLOCK, 1), strict=True)
    parts = [_attend(q, k_BKSH, v_BKSH, at, key_BS, valid_BS, rule, bias) for q, at in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


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

    By PyTorch's kernel for causal texts, or in blocks of queries, each reading only the keys that
    it can see.

    Rows must be empty before these tokens, so that token i stands at position i.
    """
    alike = bias is None and k_BTKH.shape == v_BTKH.shape
    if alike and causal.is_served(q_BTNH.shape[1], rule=rule):
        return causal.attend(q_BTNH, k_BTKH, v_BTKH, valid_BT=valid_BT, rule=rule)
    k_BKTH, v_BKTH = heads_first(k_BTKH).contiguous(), heads_first(v_BTKH).contiguous()
    parts, tokens = [], q_BTNH.shape[1]
    for begin in range(0, tokens, ops.QUERY_BLOCK):
        end = min(begin + ops.QUERY_BLOCK, tokens)
        oldest = 0 if rule.window is None else max(0, begin + 1 - rule.window)
        newest = end if rule.causal else tokens
        part_BTNH = _attend(
            q_BTNH[:, begin:end],
            k_BKTH[:, :, oldest:newest],
            v_BKTH[:, :, oldest:newest],
            position_BT[:, begin:end],
            position_BT[:, oldest:newest],
            valid_BT[:, oldest:newest],
            rule,
            bias,
        )
        parts.append(part_BTNH)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _attend(
    q_BTNH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    query_BT: Array,
    key_BS: Array,
    valid_BS: Array,
    rule: ops.Rule,
    bias: Bias | None,
) -> Array:
    _, tokens, heads, _ = q_BTNH.shape
    kv_heads = k_BKSH.shape[1]
    q_BKMH = ops.group_queries(q_BTNH, kv_heads)
    visible_BTS = ops.is_visible(query_BT, key_BS, valid_BS, rule=rule)
    visible_B1MS = ops.spread(visible_BTS, groups=heads // kv_heads)
    if bias is None and rule.soft_cap is None:
        # The fused kernel never writes the scores out: a third of the time at 2048 tokens.
        o_BKMH = F.scaled_dot_product_attention(
            q_BKMH, k_BKSH, v_BKSH, attn_mask=visible_B1MS, scale=rule.scale
        )
        return ops.ungroup(o_BKMH, tokens=tokens)
    score_BKMS = ops.score(q_BKMH, k_BKSH, rule=rule)
    if bias is not None:
        added_BNTS = bias(query_BT, key_BS)
        check_bias(
            added_BNTS, expected=(*q_BTNH.shape[:1], q_BTNH.shape[2], tokens, key_BS.shape[1])
        )
        score_BKMS = score_BKMS + ops.group_bias(added_BNTS, num_kv_heads=kv_heads)
    weight_BKMS = ops.softmax(score_BKMS, visible_B1MS)
    return ops.ungroup(torch.matmul(weight_BKMS.to(v_BKSH.dtype), v_BKSH), tokens=tokens)


def check_bias(added_BNTS: Array, *, expected: tuple[int, ...]) -> None:
    """Refuse an addend of the scores that would be spread over keys or queries.

    Raises:
        ShapeError: One key's bias for all keys is none at all, softmax cancels it.
    """
    if tuple(added_BNTS.shape) != expected:
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
    if tuple(keys.shape[:2]) != (rows, kv_heads):
        raise ShapeError(
            f"attend: k_BTKH has B*K={rows * kv_heads} lines, the cache has "
            f"{keys.shape[0] * keys.shape[1]}. Was the cache made for another batch or model?"
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
    if keys.shape[3] != width:
        raise ShapeError(
            f"attend: k_BTKH has H={width}, the cache has H={keys.shape[3]}. Was the cache made "
            "for another model?"
        )
    if keys.dtype != new_k_BTKH.dtype:
        given, have = (str(x.dtype).removeprefix("torch.") for x in (new_k_BTKH, keys))
        raise ShapeError(
            f"attend: k_BTKH is {given}, the cache {have}. Make the cache with dtype={given}."
        )
    if keys.device != new_k_BTKH.device:
        raise ShapeError(
            f"attend: k_BTKH is on {new_k_BTKH.device}, the cache on {keys.device}. "
            f"Make the cache under `with torch.device({str(new_k_BTKH.device)!r})`."
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
    k_BKSH: Float[Array, "B K S H"], v_BKSH: Float[Array, "B K S _"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"]]:
    """Return copies of the buffers in the order that people compare: row, slot, head, channel."""
    k_BSKH, v_BSKH = k_BKSH.transpose(1, 2), v_BKSH.transpose(1, 2)
    return (
        k_BSKH.clone(memory_format=torch.contiguous_format),
        v_BSKH.clone(memory_format=torch.contiguous_format),
    )


def gather_rows(x_B: Shaped[Array, "B ..."], rows_B: Int[Array, " C"]) -> Shaped[Array, "C ..."]:
    """Return a copy of the named rows, in their order.

    Rows may repeat and their number may differ.
    """
    return x_B.index_select(0, rows_B)


def scrub_values(v_BKSH: Float[Array, "B K S H"], valid_BS: Bool[Array, "B S"]) -> None:
    """Write 0 into every slot of a buffer that holds no token, in place: 0 * NaN is NaN."""
    v_BKSH.masked_fill_(~valid_BS[:, None, :, None], 0.0)


def poison(
    k_BKSH: Float[Array, "B K S H"],
    v_BKSH: Float[Array, "B K S H"] | None,
    valid_BS: Bool[Array, "B S"],
) -> tuple[Float[Array, "B K S H"], Float[Array, "B K S H"] | None]:
    """Return copies of the buffers with NaN in every slot that is not valid."""
    empty_B1S1 = ~valid_BS[:, None, :, None]
    values = None if v_BKSH is None else v_BKSH.masked_fill(empty_B1S1, torch.nan)
    return k_BKSH.masked_fill(empty_B1S1, torch.nan), values


def copy_front(x_BKSH: Float[Array, "B K S H"], into_BKCH: Float[Array, "B K C H"]) -> None:
    """Write a buffer over the first S slots of a larger one, in place.

    Nothing to do if it is a view of them.
    """
    if x_BKSH.data_ptr() != into_BKCH.data_ptr():
        into_BKCH[:, :, : x_BKSH.shape[2]] = x_BKSH
