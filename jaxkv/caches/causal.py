"""Attention of a whole text's tokens to themselves, masked only where a mask can matter.

Block i of the queries sees all of the blocks of keys before its own, so that those need no mask;
the keys of its own block are masked, for all blocks in one product. Each part gives its weighted
values, the sum of its weights and the peak that they were taken from, and two parts are joined as
in flash attention (Dao et al. 2022, section 3.1). Letters: B rows, T new tokens, N query heads, K
key/value heads, G = N/K, H head width; X = B*K lines, M queries of one line, S keys, P tokens of a
block, I blocks.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxkv import ops


class _Part(NamedTuple):
    """What queries read of some of their keys, not yet divided by all weights."""

    sum_XMH: Float[Array, "X M _"]
    total_XM1: Float[Array, "X M 1"]
    peak_XM1: Float[Array, "X M 1"]


def is_served(tokens: int, *, rule: ops.Rule) -> bool:
    """Return whether T tokens are more than a block, and each sees all that stand before it."""
    sees_all = rule.causal and (rule.window is None or rule.window >= tokens)
    return sees_all and tokens > ops.QUERY_BLOCK


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_XTH: Float[Array, "X T H"],
    v_XTH: Float[Array, "X T _"],
    *,
    valid_BT: Bool[Array, "B T"],
    rule: ops.Rule,
) -> Float[Array, "B T N _"]:
    """Return attention of T tokens to themselves and to all before them.

    Zeros for tokens that are not real. Scores and sums are in at least float32.

    Args:
        q_BTNH: Queries.
        k_XTH: Keys, a line for each row and key/value head.
        v_XTH: Values, in the same order; their width may differ from the keys'.
        valid_BT: Which tokens are real, a row's first ones: no real one sees another kind.
        rule: Scale and soft cap. Its window, if any, holds all T tokens.

    Cost: scores of X*G*P*T numbers a block of queries; XLA on CPUs keeps room for all blocks'.
    """
    rows, tokens = q_BTNH.shape[:2]
    heads, kv_heads = q_BTNH.shape[2], k_XTH.shape[0] // rows
    size, groups = ops.QUERY_BLOCK, heads // kv_heads
    if q_BTNH.dtype == ops.wide(q_BTNH.dtype):
        # On queries the scale is a pass over T*H numbers, on scores one over T*T.
        q_BTNH, rule = q_BTNH * rule.scale, replace(rule, scale=1.0)
    blocks = -(-tokens // size)
    missing = blocks * size - tokens
    q_XMH = ops.group_queries(_lengthened(q_BTNH, missing), kv_heads)
    k_XSH = _lengthened(k_XTH, missing)
    v_XSH = _lengthened(v_XTH, missing)
    own = _own_blocks(q_XMH, k_XSH, v_XSH, size=size, groups=groups, rule=rule)
    before = _blocks_before(q_XMH, k_XSH, v_XSH, size=size, groups=groups, rule=rule)
    step = size * groups
    first = _Part(*(x[:, :step] for x in own))
    others = _joined(_Part(*(x[:, step:] for x in own)), before)
    out_XMH = jnp.concatenate([first.sum_XMH / first.total_XM1, others], axis=1)
    out_BTNH = ops.ungroup(out_XMH.astype(v_XTH.dtype), rows=rows, tokens=blocks * size)
    return jnp.where(valid_BT[:, :, None, None], out_BTNH[:, :tokens], 0)


def _lengthened(x: Array, missing: int) -> Array:
    """Return x with zeros behind its second axis, which no real query sees."""
    return jnp.pad(x, [(0, missing) if axis == 1 else (0, 0) for axis in range(x.ndim)])


def _own_blocks(
    q_XMH: Array, k_XSH: Array, v_XSH: Array, *, size: int, groups: int, rule: ops.Rule
) -> _Part:
    """Return what each block of queries reads of its own keys, all blocks as lines of one read."""
    lines, tokens, width = k_XSH.shape
    blocks = tokens // size
    at_1P = jnp.arange(size, dtype=jnp.int32)[None]
    seen_1PP = ops.is_visible(at_1P, at_1P, jnp.ones((1, size), bool), rule=ops.Rule(scale=1.0))
    part = _read(
        q_XMH.reshape(lines * blocks, size * groups, width),
        k_XSH.reshape(lines * blocks, size, width),
        v_XSH.reshape(lines * blocks, size, -1),
        rule=rule,
        visible_XMS=ops.spread(seen_1PP, num_kv_heads=lines * blocks, groups=groups),
    )
    return _Part(*(x.reshape(lines, tokens * groups, -1) for x in part))


def _blocks_before(
    q_XMH: Array, k_XSH: Array, v_XSH: Array, *, size: int, groups: int, rule: ops.Rule
) -> _Part:
    """Return what each block of queries but the first reads of all keys before its own."""
    step = size * groups
    parts = [
        _read(
            q_XMH[:, i * step : (i + 1) * step],
            k_XSH[:, : i * size],
            v_XSH[:, : i * size],
            rule=rule,
        )
        for i in range(1, k_XSH.shape[1] // size)
    ]
    return _Part(*(jnp.concatenate(each, axis=1) for each in zip(*parts, strict=True)))


def _read(
    q_XMH: Array,
    k_XSH: Array,
    v_XSH: Array,
    *,
    rule: ops.Rule,
    visible_XMS: Bool[Array, "X M S"] | None = None,
) -> _Part:
    """Return what queries read of keys of which each sees one at least; None: all of them."""
    score_XMS = ops.score(q_XMH, k_XSH.swapaxes(1, 2), rule=rule)
    if visible_XMS is not None:
        score_XMS = jnp.where(visible_XMS, score_XMS, jnp.finfo(score_XMS.dtype).min)
    peak_XM1 = jnp.max(score_XMS, axis=-1, keepdims=True)
    weight_XMS = jnp.exp(score_XMS - peak_XM1)
    total_XM1 = jnp.sum(weight_XMS, axis=-1, keepdims=True)
    sum_XMH = jnp.einsum(
        "XMS,XSH->XMH",
        weight_XMS.astype(v_XSH.dtype),
        v_XSH,
        preferred_element_type=score_XMS.dtype,
    )
    return _Part(sum_XMH, total_XM1, peak_XM1)


def _joined(a: _Part, b: _Part) -> Float[Array, "X M _"]:
    """Return the attention to both parts' keys."""
    peak_XM1 = jnp.maximum(a.peak_XM1, b.peak_XM1)
    a_XM1, b_XM1 = jnp.exp(a.peak_XM1 - peak_XM1), jnp.exp(b.peak_XM1 - peak_XM1)
    total_XM1 = a.total_XM1 * a_XM1 + b.total_XM1 * b_XM1
    return (a.sum_XMH * a_XM1 + b.sum_XMH * b_XM1) / total_XM1
