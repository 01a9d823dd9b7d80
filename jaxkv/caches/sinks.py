"""StreamingLLM: the first s tokens of a text and its last W, what lies between is dropped.

Query p sees key j if j < s or j > p - W, its own among them, so that no partition of a text changes
a result; it is not full attention once a text is longer than s + W. Positions are indices in the
cache: the newest query stands at min(p, s + W - 1), a sink at j, a recent key as many places before
the query as in the text. The published loop keeps keys before rotation and turns all of them at
each step; here each is turned once, by its slot, and it is queries that are turned for them
(`laps`). The published policy evicts once a forward; this one equals it for forwards of one token.

`sinks_absolute` makes the other variant: keys turned once, by their position in the text, as they
are in mlx-lm and llama.cpp. Token p stands in slot p if p < s, else in slot s + (p - s) mod C,
where C = W + slack, or what the capacity leaves.

Letters: B rows, X = B*K lines, T new tokens, N query heads, K key/value heads, M grouped queries, H
head width, S slots = s + C, or those and the step's tokens. Source: StreamingLLM (Xiao et al. 2023;
mit-han-lab/streaming-llm 2e50426).
"""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import laps, ring, slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.caches.view import View
from jaxkv.pytree import pytree, static
from jaxkv.spec.compression import SINK_OPTIONS, Sinks, refuse_latent
from jaxkv.spec.config import Attention
from jaxkv.spec.errors import Unsupported

OPTIONS = SINK_OPTIONS
TurnedBy = Literal["slot", "position"]


@pytree
class SinkSite:
    """One attention's sinks and ring of recent tokens, whose keys stand turned.

    `turned_by` says what number each is turned by: that of its "slot", or its "position" in the
    text.
    """

    k_XHS: Float[Array, "X H S"]
    v_XSH: Float[Array, "X S H"]
    form: Sinks = static()
    slack: int = static()
    turned_by: TurnedBy = static()


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: None = None,
    **options: Any,
) -> SinkSite:
    """Return an empty site for positions that are indices in the cache.

    Raises:
        RequestError: An option is out of range.
        Unsupported: The attention is to latents, has no rotary positions, or some that follow the
            text's length.

    Cost: allocates 2 * batch * K * (s + W + slack) * H elements, whatever the text's length.
    """
    refuse_latent(attention, "sinks")
    if attention.rope is None or attention.rope.follows_length:
        what = "no rotary positions" if attention.rope is None else "rotary speeds by the length"
        raise Unsupported(
            f"init: layout 'sinks' turns keys by their index in the cache, but the attention has "
            f"{what}. Use layout='sinks_absolute'."
        )
    sizes = {"batch": batch, "capacity": capacity, "dtype": dtype, "slack": slack}
    return empty(attention, **sizes, turned_by="slot", form=Sinks(**options))


def empty(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int,
    turned_by: TurnedBy,
    form: Sinks,
) -> SinkSite:
    """Return a site without tokens.

    Raises:
        RequestError: The sinks leave no room for a recent token.
    """
    form.check_room(capacity)
    lines, width = batch * attention.num_kv_heads, attention.head_dim
    room = form.sinks + min(form.window + slack, capacity - form.sinks)
    k_XHS, v_XSH = jnp.zeros((lines, width, room), dtype), jnp.zeros((lines, room, width), dtype)
    return SinkSite(k_XHS, v_XSH, form, slack, turned_by)


def check(
    site: SinkSite,
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
    slots.check_new(site.k_XHS, k_BTKH, v_BTKH)
    slots.check_sees_all(rule)


def attend(
    site: SinkSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], SinkSite]:
    """Return the attention output of T new tokens, and the site with their keys and values written.

    Up to slack + 1 tokens are written first and read with the rest; a longer chunk is read beside
    what was there, and written afterwards.

    Args:
        site: One attention's sinks and ring.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values.
        rule: Without a window.
        rotate: By slots and indices in the cache; in the absolute variant by positions.
        bias: Addend of the scores from query and key positions in the text.
        expand: For latent attention; not offered here.

    Raises:
        Unsupported: The rule has a window.
        ShapeError: Batch, K, H or dtype differ from the site (at trace time under jit); see
            `caches.attend`.

    Cost: reads all slots; for a long chunk a copy of them joined with it. Unless the variant is
    the absolute one each query is multiplied twice.
    """
    form, tokens = site.form, q_BTNH.shape[1]
    ring_slots = site.k_XHS.shape[2] - form.sinks
    # As long as nothing is dropped, index, slot and position are one.
    is_whole = step.fresh and tokens <= form.sinks + form.window
    by_slot = rotate is not None and site.turned_by == "slot" and not is_whole
    if rotate is not None and by_slot:
        slot_BT = laps.slot_of(step.position_BT, sinks=form.sinks, ring=ring_slots)
        k_BTKH = rotate(k_BTKH, slot_BT)
    elif rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    new_k, new_v = slots.heads_first(k_BTKH), slots.heads_first(v_BTKH)
    written = _write(site, step, new_k, new_v)
    k_XHS, v_XSH, key_BS, held_BS = _read(site, written, step, new_k, new_v)
    # What the step's first query does not see, no query of the step sees.
    held_BS &= (key_BS < form.sinks) | (key_BS > step.length_B[:, None] - form.window)
    if not step.clean:
        v_XSH = slots.scrub_values(v_XSH, held_BS)
    kv_heads = k_BTKH.shape[2]
    spans = [
        slice(at, min(at + ops.QUERY_BLOCK, tokens)) for at in range(0, tokens, ops.QUERY_BLOCK)
    ]
    parts = []
    for span in spans:
        q = q_BTNH[:, span]
        if rotate is not None and by_slot:
            q = laps.turned(q, step.position_BT[:, span], rotate, form=form, ring=ring_slots)
        q_XMH = ops.group_queries(q, kv_heads).astype(ops.wide(q.dtype))
        view = View(step, q_XMH, span, q.shape[2], rule, bias)
        if by_slot:
            sizes = {"sinks": form.sinks, "ring": ring_slots}
            product_XMS = laps.products(view, k_XHS, key_BS, **sizes)
        else:
            product_XMS = jnp.einsum("XMH,XHS->XMS", q_XMH, k_XHS.astype(q_XMH.dtype))
        parts.append(_attend(view, form, product_XMS, v_XSH, key_BS, held_BS))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1), written


def fault(site: SinkSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    lines, width, room = site.k_XHS.shape
    least = site.form.sinks + min(site.form.window, cache.capacity - site.form.sinks)
    if room < least:
        return f"has {room} slots, its sinks, window and the capacity need {least}"
    if site.v_XSH.shape != (lines, room, width) or site.v_XSH.dtype != site.k_XHS.dtype:
        keys, values = site.k_XHS, site.v_XSH
        return f"has values {values.dtype}{values.shape} beside keys {keys.dtype}{keys.shape}"
    return None


def read(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys as stored, values, the position in the text of each slot, and which hold it."""
    key_BS, intact_BS = _intact(site, length_B, peak_B)
    k_BSKH, v_BSKH = slots.by_row(site.k_XHS, site.v_XSH, rows=length_B.shape[0])
    return k_BSKH, v_BSKH, key_BS, intact_BS


def floor(site: SinkSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped.
    """
    wrapped_B = cache.peak_B > site.k_XHS.shape[2]
    return jnp.where(wrapped_B, cache.peak_B - site.slack, jnp.zeros_like(cache.peak_B))


def gather_site(site: SinkSite, rows_B: Int[Array, " C"], *, batch: int) -> SinkSite:
    """Return the site of the named rows, in their order; rows may repeat."""
    k_XHS, v_XSH = (slots.gather_rows(x, rows_B, batch=batch) for x in (site.k_XHS, site.v_XSH))
    return dataclasses.replace(site, k_XHS=k_XHS, v_XSH=v_XSH)


def narrow_site(site: SinkSite, *, slots: int) -> SinkSite:
    """Return the site: its size has nothing to do with the capacity."""
    return site


def widen_site(site: SinkSite, old: SinkSite) -> SinkSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> SinkSite:
    """Return the site with values of 0 in every slot that holds no token, or not the one it did."""
    _, intact_BS = _intact(site, length_B, peak_B)
    return dataclasses.replace(site, v_XSH=slots.scrub_values(site.v_XSH, intact_BS))


def poison_site(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> SinkSite:
    """Return the site with NaN in every slot that holds no token, or no longer the one it held."""
    _, intact_BS = _intact(site, length_B, peak_B)
    k_XHS, v_XSH = slots.poison(site.k_XHS, site.v_XSH, intact_BS)
    return dataclasses.replace(site, k_XHS=k_XHS, v_XSH=v_XSH)


def _attend(
    view: View, form: Sinks, product_XMS: Array, v_XSH: Array, key_BS: Array, held_BS: Array
) -> Array:
    rows, tokens = view.query_BT.shape
    age_BTS = view.query_BT[:, :, None] - key_BS[:, None]
    kept_BTS = (key_BS < form.sinks)[:, None] | (age_BTS < form.window)
    visible_XMS = view.spread(held_BS[:, None] & (age_BTS >= 0) & kept_BTS)
    weight_XMS = ops.softmax(view.scored(product_XMS, key_BS), visible_XMS).astype(v_XSH.dtype)
    out_XMH = jnp.einsum("XMS,XSH->XMH", weight_XMS, v_XSH)
    return ops.ungroup(out_XMH, rows=rows, tokens=tokens)


def _read(
    site: SinkSite, written: SinkSite, step: Step, new_k_XTH: Array, new_v_XTH: Array
) -> tuple[Array, Array, Array, Array]:
    """Return keys, values, positions and which are held, of all that the step's queries may see.

    Sinks first, whether the step brought them or an earlier one.
    """
    if step.fresh:
        return new_k_XTH.swapaxes(1, 2), new_v_XTH, step.position_BT, step.valid_BT
    after = _places(written, step.length_B + step.count_B)
    if new_k_XTH.shape[1] <= site.slack + 1:
        return written.k_XHS, written.v_XSH, *after
    sinks, before = site.form.sinks, _places(site, step.length_B)
    new = step.position_BT, step.valid_BT & (step.position_BT >= sinks)
    key_BS, held_BS = (
        jnp.concatenate([x[:, :sinks], y[:, sinks:], z], axis=1)
        for x, y, z in zip(after, before, new, strict=True)
    )
    keys = written.k_XHS[:, :, :sinks], site.k_XHS[:, :, sinks:], new_k_XTH.swapaxes(1, 2)
    values = written.v_XSH[:, :sinks], site.v_XSH[:, sinks:], new_v_XTH
    return jnp.concatenate(keys, axis=2), jnp.concatenate(values, axis=1), key_BS, held_BS


def _intact(site: SinkSite, length_B: Array, peak_B: Array) -> tuple[Array, Array]:
    key_BS, held_BS = _places(site, length_B)
    sinks, room = site.form.sinks, site.k_XHS.shape[2]
    oldest_B1 = peak_B[:, None] - (room - sinks)
    return key_BS, held_BS & ((key_BS < sinks) | (key_BS >= oldest_B1))


def _places(site: SinkSite, length_B: Array) -> tuple[Array, Array]:
    sinks, room = site.form.sinks, site.k_XHS.shape[2]
    sink_BS = jnp.broadcast_to(jnp.arange(sinks, dtype=jnp.int32), (length_B.shape[0], sinks))
    recent_BS, held_BS = ring.places(length_B - sinks, room - sinks)
    return (
        jnp.concatenate([sink_BS, recent_BS + sinks], axis=1),
        jnp.concatenate([sink_BS < length_B[:, None], held_BS], axis=1),
    )


def _write(site: SinkSite, step: Step, new_k_XTH: Array, new_v_XTH: Array) -> SinkSite:
    sinks, room = site.form.sinks, site.k_XHS.shape[2]
    recents = room - sinks
    # Of a chunk longer than the ring only sinks and the last C tokens are written. One token is no
    # slice update either: XLA fuses that with the sinks' slice, and copies all keys for it.
    position_BT, end_B1 = step.position_BT, (step.length_B + step.count_B)[:, None]
    survives_BT = step.valid_BT & ((position_BT < sinks) | (position_BT >= end_B1 - recents))
    slot_BT = laps.slot_of(position_BT, sinks=sinks, ring=recents)
    slot_BT = jnp.where(survives_BT, slot_BT, room)
    k_XHS, v_XSH = slots.write_slots(site.k_XHS, site.v_XSH, new_k_XTH, new_v_XTH, slot_BT=slot_BT)
    return dataclasses.replace(site, k_XHS=k_XHS, v_XSH=v_XSH)
