"""The window layout: a ring of W + slack slots for a layer trained with a window of W tokens.

Token number p of a row stands in slot p mod C. A query sees W keys, its own among them; the slack
keeps that many older tokens alive, so that a row can be rolled back by up to slack tokens and still
find its whole window. Letters: B rows, T new tokens, N query heads, K key/value heads, H head
width, W window, C slots of the ring, X = B*K.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree, static
from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError, Unsupported


@pytree
class WindowSite:
    """One attention's ring; which tokens it still holds follows from lengths and peaks alone."""

    k_XHC: Float[Array, "X H C"]
    v_XCH: Float[Array, "X C H"]
    window: int = static()
    slack: int = static()


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: None = None,
) -> WindowSite:
    """Return an empty ring of min(W + slack, capacity) slots.

    A row that never exceeds the ring evicts nothing.

    Raises:
        Unsupported: The attention is to latents.

    Cost: allocates 2 * batch * K * min(W + slack, capacity) * H elements, whatever the text's
    length.
    """
    assert attention.window is not None  # caches.init sends only windowed layers here
    if attention.latent is not None:
        raise Unsupported(
            "init: layout 'window' keeps no latents: no family trains them with a window. Take "
            "'contiguous' or 'paged'."
        )
    lines, width = batch * attention.num_kv_heads, attention.head_dim
    ring = min(attention.window + slack, capacity)
    zeros_k, zeros_v = (
        jnp.zeros((lines, width, ring), dtype),
        jnp.zeros((lines, ring, width), dtype),
    )
    return WindowSite(zeros_k, zeros_v, attention.window, slack)


def check(
    site: WindowSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing.
        ShapeError: Batch, K, H, dtype or window differ.
    """
    slots.check_new(site.k_XHC, k_BTKH, v_BTKH)
    if site.window != rule.window:
        raise ShapeError(
            f"attend: rule.window is {rule.window}, the ring was made for {site.window}. Make a "
            "new cache."
        )


def attend(
    site: WindowSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], WindowSite]:
    """Return the attention output of T new tokens, and the ring with their keys and values written.

    Up to slack + 1 tokens displace nothing that their first query needs, so they are written first
    and the ring is read once; a longer chunk reads the ring as it was and the new keys beside it,
    and is written afterwards.

    Args:
        site: One attention's ring.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values.
        rule: Its window is the ring's.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention, which this layout refuses: no family has it with a window.

    Raises:
        ShapeError: Batch, K, H, dtype or window differ from the site (at trace time under jit); see
            `caches.attend`.

    Cost: writes 2*B*min(T, C)*K*H elements; reads the ring, and for a long chunk a copy of it
    joined with the chunk.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    new_k, new_v = slots.heads_first(k_BTKH), slots.heads_first(v_BTKH)
    written = _write(site, step, new_k, new_v)
    if step.fresh:
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
    if q_BTNH.shape[1] <= site.slack + 1:
        keys, values = written.k_XHC, written.v_XCH
        key_BS, valid_BS = _seen(written, step.length_B + step.count_B, step)
    else:
        old_BC, held_BC = _seen(site, step.length_B, step)
        keys = jnp.concatenate([site.k_XHC, new_k.swapaxes(1, 2)], axis=2)
        values = jnp.concatenate([site.v_XCH, new_v], axis=1)
        key_BS = jnp.concatenate([old_BC, step.position_BT], axis=1)
        valid_BS = jnp.concatenate([held_BC, step.valid_BT], axis=1)
    out = slots.attend_slots(
        q_BTNH,
        keys,
        values,
        query_BT=step.position_BT,
        key_BS=key_BS,
        valid_BS=valid_BS,
        rule=rule,
        clean=step.clean,
        bias=bias,
    )
    return out, written


def fault(site: WindowSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values = site.k_XHC, site.v_XCH
    lines, width, slots = keys.shape
    least = min(site.window, cache.capacity)
    if slots < least:
        return f"has {slots} slots, its window and the capacity need {least}"
    if values.shape != (lines, slots, width) or values.dtype != keys.dtype:
        return f"has values {values.dtype}{values.shape} beside keys {keys.dtype}{keys.shape}"
    return None


def read(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot.

    And which slots hold the token of that position.
    """
    key_BC, intact_BC = _intact(site, length_B, peak_B)
    k_BSKH, v_BSKH = slots.by_row(site.k_XHC, site.v_XCH, rows=length_B.shape[0])
    return k_BSKH, v_BSKH, key_BC, intact_BC


def floor(site: WindowSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped.
    """
    wrapped_B = cache.peak_B > site.k_XHC.shape[2]
    return jnp.where(wrapped_B, cache.peak_B - site.slack, 0)


def gather_site(site: WindowSite, rows_B: Int[Array, " C"], *, batch: int) -> WindowSite:
    """Return the site of the named rows, in their order; rows may repeat."""
    keys = slots.gather_rows(site.k_XHC, rows_B, batch=batch)
    return WindowSite(
        keys, slots.gather_rows(site.v_XCH, rows_B, batch=batch), site.window, site.slack
    )


def narrow_site(site: WindowSite, *, slots: int) -> WindowSite:
    """Return the site: a ring's size has nothing to do with the capacity."""
    return site


def widen_site(site: WindowSite, old: WindowSite) -> WindowSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> WindowSite:
    """Return the ring with values of 0 in every slot that holds no token, or not the one it did."""
    _, intact_BC = _intact(site, length_B, peak_B)
    values = slots.scrub_values(site.v_XCH, intact_BC)
    return WindowSite(site.k_XHC, values, site.window, site.slack)


def poison_site(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> WindowSite:
    """Return the site with NaN in every slot that holds no token, or no longer the one it held."""
    _, intact_BC = _intact(site, length_B, peak_B)
    return _with(site, *slots.poison(site.k_XHC, site.v_XCH, intact_BC))


def _with(site: WindowSite, k_XHC: Array, v_XCH: Array | None) -> WindowSite:
    assert v_XCH is not None  # a ring keeps both
    return WindowSite(k_XHC, v_XCH, site.window, site.slack)


def _seen(site: WindowSite, length_B: Array, step: Step) -> tuple[Array, Array]:
    # What the step's first query does not see, no query of the step sees.
    key_BC, held_BC = _places(site, length_B)
    return key_BC, held_BC & (key_BC > step.length_B[:, None] - site.window)


def _intact(site: WindowSite, length_B: Array, peak_B: Array) -> tuple[Array, Array]:
    key_BC, held_BC = _places(site, length_B)
    return key_BC, held_BC & (key_BC >= peak_B[:, None] - site.k_XHC.shape[2])


def _places(site: WindowSite, length_B: Array) -> tuple[Array, Array]:
    # After a rollback a slot may hold a token past the length; the position given to it here then
    # lies outside of every later query's window, because `floor` keeps rollbacks within the slack.
    ring = site.k_XHC.shape[2]
    slot_C = jnp.arange(ring, dtype=jnp.int32)
    newest_B1 = length_B[:, None] - 1
    position_BC = newest_B1 - jnp.mod(newest_B1 - slot_C, ring)
    return position_BC, position_BC >= 0


def _write(site: WindowSite, step: Step, new_k_XTH: Array, new_v_XTH: Array) -> WindowSite:
    ring, tokens = site.k_XHC.shape[2], new_k_XTH.shape[1]
    if tokens == 1 and step.rectangular:
        start = jnp.max(jnp.where(step.count_B > 0, step.length_B, 0)) % ring
        keep_X = jnp.repeat(step.count_B > 0, new_k_XTH.shape[0] // step.count_B.shape[0])
        buffers = slots.write_slice(
            site.k_XHC, site.v_XCH, new_k_XTH, new_v_XTH, start=start, keep_X=keep_X
        )
        return _with(site, *buffers)
    # Of a chunk longer than the ring only the last C tokens are written: two tokens never meet in
    # one slot.
    end_B1 = (step.length_B + step.count_B)[:, None]
    survives_BT = step.valid_BT & (step.position_BT >= end_B1 - ring)
    slot_BT = jnp.where(survives_BT, step.position_BT % ring, ring)
    buffers = slots.write_slots(site.k_XHC, site.v_XCH, new_k_XTH, new_v_XTH, slot_BT=slot_BT)
    return _with(site, *buffers)
