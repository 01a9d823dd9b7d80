"""The quantized layout: KIVI's codes of 2 or 4 bits, and the last tokens as they are.

Keys are quantized per channel in groups of g tokens, values per token in groups of g channels,
each with a scale and a zero point. After t tokens the keys below R * floor(t / R) and the values
below t - R are read from their codes, the rest from a ring of R + slack tokens. Of the two orders
"chunk_invariant" applies that rule to each query by its own t, so that no partition of a text
changes a result; "kivi" is the published one: a step reads what was stored before it, and its own
tokens as they are, so that what a prompt gives depends on how it was cut.

What is stored and how it is written stands in `coded`; with bits of 8 or "fp8" a site is one of
`per_token`. Letters: B rows, X = B*K lines, T new tokens, N query heads, K key/value heads, M
grouped queries, H head width, S slots read, R residual length, g group size. Source: KIVI (Liu et
al. 2024).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import carried, coded, per_token, ring, slots
from jaxkv.caches.carried import Carried
from jaxkv.caches.coded import QuantizedSite
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.caches.view import View
from jaxkv.spec.compression import QUANTIZED_OPTIONS, PerToken, quantization, refuse_latent
from jaxkv.spec.config import Attention

OPTIONS = QUANTIZED_OPTIONS
# Tokens of a tile, which is dequantized one plane of codes after the other.
TILE = 256


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: None = None,
    **options: Any,
) -> QuantizedSite | per_token.PerTokenSite:
    """Return an empty site of the scheme that the options name, see `quantization`.

    Raises:
        RequestError: There is no such scheme, or its groups do not divide the head.
        Unsupported: The attention is to latents.

    Cost: allocates bits/8 bytes a number of `capacity` tokens in whole blocks of R, two numbers a
    group, and keys and values of R + slack tokens.
    """
    refuse_latent(attention, "quantized")
    width = attention.head_dim
    form = quantization(width=width, **options)
    sizes = {"batch": batch, "kv_heads": attention.num_kv_heads, "width": width}
    if isinstance(form, PerToken):
        return per_token.empty(form, **sizes, capacity=capacity, dtype=dtype)
    form.check_width(width)
    return coded.empty(form, **sizes, capacity=capacity, slack=slack, dtype=dtype)


def check(
    site: QuantizedSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or the attention has a window or sees the future.
        ShapeError: Batch, K, H or dtype differ.
    """
    slots.check_new(site.k_ring_XHA, k_BTKH, v_BTKH)
    slots.check_sees_all(rule)


def attend(
    site: QuantizedSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], QuantizedSite]:
    """Return the attention output of T new tokens, and the site with their keys and values.

    A block of queries reads what lies two blocks of R or more behind it from the codes alone, in
    tiles with a carried softmax; and what lies nearer from the codes or as it is, as the order
    says.

    Args:
        site: One attention's codes and ring.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the ring.
        v_BTKH: Values.
        rule: Without a window.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention; not offered here.

    Raises:
        Unsupported: The rule has a window.
        ShapeError: Batch, K, H or dtype differ from the site (at trace time under jit); see
            `caches.attend`.

    Cost: reads the codes of the used tiles, 256 tokens dequantized at once, and 2R + T tokens as
    they are.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    new_k, new_v = slots.heads_first(k_BTKH), slots.heads_first(v_BTKH)
    whole = coded.beside(site, new_k, new_v)
    written = coded.write(site, step, new_k, new_v)
    if step.fresh and site.form.order == "kivi":
        out = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        return out, written
    tokens = q_BTNH.shape[1]
    spans = [
        slice(at, min(at + ops.QUERY_BLOCK, tokens)) for at in range(0, tokens, ops.QUERY_BLOCK)
    ]
    parts = [_attend(written, whole, step, q_BTNH[:, span], span, rule, bias) for span in spans]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1), written


def fault(site: QuantizedSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and ring beside block."""
    least = site.form.residual_length + site.slack
    if site.slots < cache.capacity:
        return f"has {site.slots} slots, the cache has capacity {cache.capacity}"
    if site.ring < least:
        return f"has a ring of {site.ring} tokens, its residual length and slack need {least}"
    lines, width = site.k_ring_XHA.shape[:2]
    if site.v_ring_XAH.shape != (lines, site.ring, width):
        shapes = f"{site.v_ring_XAH.shape} beside keys {site.k_ring_XHA.shape}"
        return f"has a ring of values {shapes}"
    return None


def read(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys and values as a query sees them, the position of each slot, and which hold one.

    Dequantized below the edges, as they are from there on: a probe for tests and crosscheck, which
    dequantizes the cache whole.
    """
    rows, block = length_B.shape[0], site.form.residual_length
    key_BS = jnp.broadcast_to(jnp.arange(site.slots, dtype=jnp.int32), (rows, site.slots))
    first_B = jnp.zeros_like(length_B)
    place_BS = jnp.mod(key_BS, site.ring)
    k_XHS = _chosen(
        key_BS[:, None] < (length_B // block * block)[:, None, None],
        coded.keys_from(site, first_B, site.slots),
        coded.take_keys(site.k_ring_XHA, place_BS),
    )
    v_XSH = _chosen(
        (key_BS < (length_B - block)[:, None])[:, :, None],
        coded.values_from(site, first_B, site.slots),
        coded.take_values(site.v_ring_XAH, place_BS),
    )
    k_BSKH, v_BSKH = slots.by_row(k_XHS, v_XSH, rows=rows)
    return k_BSKH, v_BSKH, key_BS, key_BS < length_B[:, None]


def floor(site: QuantizedSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped: then every token that is no longer to be read
    from its code is still there as it was. Longer ago, only codes are left.
    """
    return ring.floor(cache.length_B, cache.peak_B, site.ring, site.slack)


def gather_site(site: QuantizedSite, rows_B: Int[Array, " C"], *, batch: int) -> QuantizedSite:
    """Return the site of the named rows, in their order: codes, scales, zero points and ring."""
    return jax.tree.map(lambda x: slots.gather_rows(x, rows_B, batch=batch), site)


def narrow_site(site: QuantizedSite, *, slots: int) -> QuantizedSite:
    """Return the site: a step reads its used tiles, however many there are."""
    return site


def widen_site(site: QuantizedSite, old: QuantizedSite) -> QuantizedSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> QuantizedSite:
    """Return the site with 0 in every scale, zero point and slot that no later query reads."""
    return _blotted(site, length_B, peak_B, 0.0)


def poison_site(
    site: QuantizedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> QuantizedSite:
    """Return the site with NaN in every scale, zero point and slot that no later query reads."""
    return _blotted(site, length_B, peak_B, jnp.nan)


def _attend(
    site: QuantizedSite,
    whole: tuple[Array, Array],
    step: Step,
    q_BTNH: Array,
    span: slice,
    rule: ops.Rule,
    bias: Bias | None,
) -> Array:
    """Return the outputs of one block of queries."""
    rows, tokens, heads, _ = q_BTNH.shape
    block, is_kivi = site.form.residual_length, site.form.order == "kivi"
    kv_heads = whole[0].shape[0] // rows
    q_XMH = ops.group_queries(q_BTNH, kv_heads).astype(ops.wide(q_BTNH.dtype))
    view = View(step, q_XMH, span, heads, rule, bias)
    state = carried.start(q_XMH)
    # Where the near part begins: a whole block before the one that the first query stands in.
    first_B = step.length_B + (0 if is_kivi else span.start)
    near_B = jnp.maximum(first_B // block - 1, 0) * block
    state = _far(state, site, view, near_B)
    reach = 2 * block - 1 + (span.stop if is_kivi else tokens)
    state = _near(state, site, view, whole, near_B, -(-reach // block) * block)
    out_XMH = carried.finish(state).astype(whole[1].dtype)
    return ops.ungroup(out_XMH, rows=rows, tokens=tokens)


def _far(state: Carried, site: QuantizedSite, view: View, near_B: Array) -> Carried:
    """Return the state with all keys before the near part, tile by tile."""
    rows, tokens = view.query_BT.shape
    block = site.form.residual_length
    size = min(max(TILE // block, 1) * block, site.slots)

    def add(tile: Any, state: Carried) -> Carried:
        # The last tile begins earlier than its turn would be, and leaves out what was read before.
        start = jnp.minimum(tile * size, site.slots - size)
        key_BS = jnp.broadcast_to(start + jnp.arange(size, dtype=jnp.int32), (rows, size))
        seen_BS = (key_BS >= tile * size) & (key_BS < near_B[:, None])
        visible_XMS = view.spread(jnp.broadcast_to(seen_BS[:, None], (rows, tokens, size)))
        product_XMS = coded.score_tile(site, view.q_XMH, start, size)
        score_XMS = view.scored(product_XMS, key_BS)
        return carried.add(
            state, score_XMS, visible_XMS, lambda w: coded.weigh_tile(site, w, start, size)
        )

    end = jnp.max(jnp.where(view.step.count_B > 0, near_B, 0))
    return jax.lax.fori_loop(jnp.int32(0), (end + (size - 1)) // size, add, state)


def _near(
    state: Carried,
    site: QuantizedSite,
    view: View,
    whole: tuple[Array, Array],
    near_B: Array,
    count: int,
) -> Carried:
    """Return the state with the keys of the near part, dequantized or as they are."""
    step, form = view.step, site.form
    block = form.residual_length
    coded_count = 2 * block if form.order == "kivi" else count
    key_BS = near_B[:, None] + jnp.arange(count, dtype=jnp.int32)
    end_B1 = (step.length_B + step.count_B)[:, None]
    tokens = whole[1].shape[1] - site.ring
    place_BS = coded.places_beside(key_BS, step.length_B, site.ring, tokens)
    k_XHS, v_XSH = coded.take_keys(whole[0], place_BS), coded.take_values(whole[1], place_BS)
    key_edge_BT, value_edge_BT = _edges(site, view)
    # Of what no query reads as it is, the ring may hold another token, or nothing.
    v_XSH = slots.scrub_values(v_XSH, (key_BS >= value_edge_BT[:, :1]) & (key_BS < end_B1))
    key_coded_XMS, value_coded_XMS = (
        view.spread(key_BS[:, None] < edge_BT[:, :, None])
        for edge_BT in (key_edge_BT, value_edge_BT)
    )
    up = view.q_XMH.dtype
    product_XMS = jnp.einsum("XMH,XHS->XMS", view.q_XMH, k_XHS.astype(up))
    coded_k_XHS = coded.keys_from(site, near_B, coded_count)
    coded_XMS = jnp.einsum("XMH,XHS->XMS", view.q_XMH, coded_k_XHS)
    product_XMS = _front(key_coded_XMS, coded_XMS, product_XMS)
    visible_BTS = ops.is_visible(view.query_BT, key_BS, key_BS < end_B1, rule=view.rule)
    coded_v_XSH = coded.values_from(site, near_B, coded_count)
    coded_v_XSH = slots.scrub_values(coded_v_XSH, (key_BS < end_B1)[:, :coded_count])

    def weigh(weight_XMS: Array) -> Array:
        plain_XMS = jnp.where(value_coded_XMS, 0, weight_XMS)
        coded_XMS = jnp.where(value_coded_XMS, weight_XMS, 0)[:, :, :coded_count]
        return jnp.einsum("XMS,XSH->XMH", plain_XMS, v_XSH.astype(up)) + jnp.einsum(
            "XMS,XSH->XMH", coded_XMS, coded_v_XSH
        )

    score_XMS = view.scored(product_XMS, key_BS)
    return carried.add(state, score_XMS, view.spread(visible_BTS), weigh)


def _edges(site: QuantizedSite, view: View) -> tuple[Array, Array]:
    """Return below which position each query reads keys, and values, from their codes."""
    block = site.form.residual_length
    held_BT = view.query_BT + 1
    if site.form.order == "kivi":
        held_BT = jnp.broadcast_to(view.step.length_B[:, None], held_BT.shape)
    return held_BT // block * block, held_BT - block


def _front(mask_XMS: Array, front_XMC: Array, plain_XMS: Array) -> Array:
    """Return what the mask chooses of a longer array and of one that covers its beginning."""
    count = front_XMC.shape[2]
    chosen = jnp.where(mask_XMS[:, :, :count], front_XMC, plain_XMS[:, :, :count])
    return jnp.concatenate([chosen, plain_XMS[:, :, count:]], axis=2)


def _chosen(mask_B: Array, coded_X: Array, plain_X: Array) -> Array:
    mask_X = jnp.repeat(mask_B, coded_X.shape[0] // mask_B.shape[0], axis=0)
    return jnp.where(mask_X, coded_X.astype(plain_X.dtype), plain_X)


def _blotted(site: QuantizedSite, length_B: Array, peak_B: Array, blot: float) -> QuantizedSite:
    heads = site.v_code_XCY.shape[0] // length_B.shape[0]
    block, size = site.form.residual_length, site.form.group_size
    length_X1 = jnp.repeat(length_B, heads)[:, None]
    slot_C, group_U = (jnp.arange(n, dtype=jnp.int32) for n in (site.slots, site.slots // size))
    value_X = (slot_C < length_X1)[:, :, None]
    key_X = (group_U * size < length_X1 // block * block)[:, None, :]
    _, intact_BA = ring.intact(length_B, peak_B, site.ring)
    intact_XA = jnp.repeat(intact_BA, heads, axis=0)

    def kept(mask: Array, x: Array) -> Array:
        return jnp.where(mask, x, jnp.asarray(blot, x.dtype))

    return dataclasses.replace(
        site,
        k_scale_XHU=kept(key_X, site.k_scale_XHU),
        k_zero_XHU=kept(key_X, site.k_zero_XHU),
        v_scale_XCZ=kept(value_X, site.v_scale_XCZ),
        v_zero_XCZ=kept(value_X, site.v_zero_XCZ),
        k_ring_XHA=kept(intact_XA[:, None, :], site.k_ring_XHA),
        v_ring_XAH=kept(intact_XA[:, :, None], site.v_ring_XAH),
    )
