"""The window layout: a ring of W + slack slots for a layer trained with a window of W tokens.

Token number p of a row stands in slot p mod C. A query sees W keys, its own among them; the slack
keeps that many older tokens alive, so that a row can be rolled back by up to slack tokens and still
find its whole window. Letters: B rows, T new tokens, N query heads, K key/value heads, H head
width, W window, C slots of the ring.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError, Unsupported
from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step


@dataclass(frozen=True)
class WindowSite:
    """One attention's ring.

    Which slots still hold a needed token follows from lengths and peaks alone.
    """

    k_BKCH: Float[Array, "B K C H"]
    v_BKCH: Float[Array, "B K C H"]
    window: int
    slack: int


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
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
    ring = min(attention.window + slack, capacity)
    shape = (batch, attention.num_kv_heads, ring, attention.head_dim)
    k_BKCH, v_BKCH = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    return WindowSite(k_BKCH, v_BKCH, attention.window, slack)


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
    slots.check_new(site.k_BKCH, k_BTKH, v_BTKH)
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
    """Return the attention output of T new tokens, and the ring, written in place.

    Up to slack + 1 tokens displace nothing that their first query needs, so they are written first
    and the ring is read once; a longer chunk reads the ring as it was and the new keys beside it,
    and is written afterwards.

    Args:
        site: One attention's ring, written in place.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values.
        rule: Its window is the ring's.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention, which this layout refuses: no family has it with a window.

    Raises:
        ShapeError: Batch, K, H, dtype or window differ from the site; see `caches.attend`.

    Cost: writes 2*B*min(T, C)*K*H elements; reads the ring's used slots, and for a long chunk a
    copy of them joined with the chunk.
    """
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    if step.fresh:
        out_BTNH = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        _write(site, step, k_BTKH, v_BTKH)
    elif q_BTNH.shape[1] <= site.slack + 1:
        _write(site, step, k_BTKH, v_BTKH)
        out_BTNH = _attend_written(site, step, q_BTNH, rule, bias)
    else:
        out_BTNH = _attend_beside(site, step, q_BTNH, k_BTKH, v_BTKH, rule, bias)
        _write(site, step, k_BTKH, v_BTKH)
    return out_BTNH, site


def fault(site: WindowSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values = site.k_BKCH, site.v_BKCH
    slots = keys.shape[2]
    least = min(site.window, cache.capacity)
    if slots < least:
        return f"has {slots} slots, its window and the capacity need {least}"
    if values.shape != keys.shape or values.dtype != keys.dtype:
        beside = f"{values.dtype}{tuple(values.shape)} beside keys {keys.dtype}{tuple(keys.shape)}"
        return f"has values {beside}"
    return None


def read(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold its token."""
    key_BC, intact_BC = _intact(site, length_B, peak_B)
    return *slots.by_row(site.k_BKCH, site.v_BKCH), key_BC, intact_BC


def floor(site: WindowSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped.
    """
    return (cache.peak_B - site.slack).masked_fill(cache.peak_B <= site.k_BKCH.shape[2], 0)


def gather_site(site: WindowSite, rows_B: Int[Array, " C"], *, batch: int) -> WindowSite:
    """Return a copy of the site's named rows, in their order; rows may repeat."""
    k_BKCH, v_BKCH = (slots.gather_rows(x, rows_B) for x in (site.k_BKCH, site.v_BKCH))
    return WindowSite(k_BKCH, v_BKCH, site.window, site.slack)


def narrow_site(site: WindowSite, *, slots: int) -> WindowSite:
    """Return the site: a ring's size has nothing to do with the capacity."""
    return site


def widen_site(site: WindowSite, old: WindowSite) -> WindowSite:
    """Return the site in the old one's memory, unless it is there already."""
    slots.copy_front(site.k_BKCH, old.k_BKCH)
    slots.copy_front(site.v_BKCH, old.v_BKCH)
    return old


def scrub_site(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> WindowSite:
    """Return the ring with 0 in every slot that no later query can see, in place."""
    needed_BC = _needed(site, length_B, peak_B)
    slots.scrub_values(site.k_BKCH, needed_BC)
    slots.scrub_values(site.v_BKCH, needed_BC)
    return site


def poison_site(
    site: WindowSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> WindowSite:
    """Return a copy of the ring with NaN in every slot that no later query can see."""
    k_BKCH, v_BKCH = slots.poison(site.k_BKCH, site.v_BKCH, _needed(site, length_B, peak_B))
    assert v_BKCH is not None  # a ring keeps both
    return WindowSite(k_BKCH, v_BKCH, site.window, site.slack)


def _attend_written(
    site: WindowSite, step: Step, q_BTNH: Array, rule: ops.Rule, bias: Bias | None
) -> Array:
    ring = site.k_BKCH.shape[2]
    used = min(step.used, ring)
    k_BKSH, v_BKSH = site.k_BKCH[:, :, :used], site.v_BKCH[:, :, :used]
    # Without slack, or before the window is full, every used slot lies in the one query's window.
    whole = step.used <= site.window or ring <= site.window
    alone = step.start is not None and q_BTNH.shape[1] == 1
    if whole and alone and bias is None and rule.soft_cap is None:
        return slots.attend_all(q_BTNH, k_BKSH, v_BKSH, rule=rule)
    key_BS, held_BS = _places(step.length_B + step.count_B, ring, used)
    return slots.attend_slots(
        q_BTNH,
        k_BKSH,
        v_BKSH,
        query_BT=step.position_BT,
        key_BS=key_BS,
        valid_BS=held_BS & _in_reach(site, step, key_BS),
        rule=rule,
        clean=step.clean,
        bias=bias,
    )


def _attend_beside(
    site: WindowSite,
    step: Step,
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    rule: ops.Rule,
    bias: Bias | None,
) -> Array:
    ring = site.k_BKCH.shape[2]
    used = min(max(length for length, _ in step.spans), ring)
    old_BS, held_BS = _places(step.length_B, ring, used)
    return slots.attend_slots(
        q_BTNH,
        torch.cat((site.k_BKCH[:, :, :used], slots.heads_first(k_BTKH)), 2),
        torch.cat((site.v_BKCH[:, :, :used], slots.heads_first(v_BTKH)), 2),
        query_BT=step.position_BT,
        key_BS=torch.cat((old_BS, step.position_BT), 1),
        valid_BS=torch.cat((held_BS & _in_reach(site, step, old_BS), step.valid_BT), 1),
        rule=rule,
        clean=step.clean,
        bias=bias,
    )


def _intact(site: WindowSite, length_B: Array, peak_B: Array) -> tuple[Array, Array]:
    # The peak's own lap has overwritten what lies more than one ring below it.
    ring = site.k_BKCH.shape[2]
    key_BC, held_BC = _places(length_B, ring, ring)
    return key_BC, held_BC & (key_BC >= peak_B.unsqueeze(1) - ring)


def _needed(site: WindowSite, length_B: Array, peak_B: Array) -> Array:
    key_BC, intact_BC = _intact(site, length_B, peak_B)
    return intact_BC & (key_BC > length_B.unsqueeze(1) - (site.window + site.slack))


def _in_reach(site: WindowSite, step: Step, key_BS: Array) -> Array:
    # What the step's first query does not see, none does: it may be anything.
    return key_BS > (step.length_B - site.window).unsqueeze(1)


def _places(length_B: Array, ring: int, used: int) -> tuple[Array, Array]:
    # A slot's newest token lies as many whole laps after its first one as fit below the length.
    # After a rollback it may hold a later one; the position given here is then outside of every
    # later query's window, because `floor` keeps rollbacks within the slack.
    slot_S = torch.arange(used, dtype=torch.int32, device=length_B.device)
    laps_BS = torch.div(length_B.unsqueeze(1) - 1 - slot_S, ring, rounding_mode="floor")
    return slot_S + laps_BS * ring, laps_BS >= 0


def _write(site: WindowSite, step: Step, k_BTKH: Array, v_BTKH: Array) -> None:
    # Of a chunk longer than the ring only the last C tokens are written: two tokens never meet in
    # one slot.
    ring, tokens = site.k_BKCH.shape[2], k_BTKH.shape[1]
    if step.start is not None:
        if tokens == 1:
            slots.write_slice(site.k_BKCH, site.v_BKCH, k_BTKH, v_BTKH, start=step.start % ring)
            return
        last = slice(max(0, tokens - ring), tokens)
        slot_T = step.position_BT[0, last].long() % ring
        site.k_BKCH.index_copy_(2, slot_T, slots.heads_first(k_BTKH[:, last]))
        site.v_BKCH.index_copy_(2, slot_T, slots.heads_first(v_BTKH[:, last]))
        return
    row_P, token_P = step.real
    if tokens > ring:
        survives_P = token_P >= step.count_B[row_P] - ring
        row_P, token_P = row_P[survives_P], token_P[survives_P]
    slot_P = step.position_BT[row_P, token_P].long() % ring
    slots.write_slots(
        site.k_BKCH,
        site.v_BKCH,
        k_BTKH,
        v_BTKH,
        row_P=row_P,
        token_P=token_P,
        slot_P=slot_P,
    )
