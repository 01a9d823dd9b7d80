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

Letters: B rows, T new tokens, N query heads, K key/value heads, M grouped queries, H
head width, S slots = s + C, or those and the step's tokens. Source: StreamingLLM (Xiao et al. 2023;
mit-han-lab/streaming-llm 2e50426).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.compression import SINK_OPTIONS, Sinks, refuse_latent
from jaxkv.spec.config import Attention
from jaxkv.spec.errors import Unsupported
from torchkv import ops
from torchkv.caches import laps, ring, slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step
from torchkv.caches.view import View

OPTIONS = SINK_OPTIONS
TurnedBy = Literal["slot", "position"]


@dataclass(frozen=True)
class SinkSite:
    """One attention's sinks and ring of recent tokens, whose keys stand turned.

    `turned_by` says what number each is turned by: that of its "slot", or its "position" in the
    text.
    """

    k_BKSH: Float[Array, "B K S H"]
    v_BKSH: Float[Array, "B K S H"]
    form: Sinks
    slack: int
    turned_by: TurnedBy


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
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
    dtype: torch.dtype,
    slack: int,
    turned_by: TurnedBy,
    form: Sinks,
) -> SinkSite:
    """Return a site without tokens.

    Raises:
        RequestError: The sinks leave no room for a recent token.
    """
    form.check_room(capacity)
    room = form.sinks + min(form.window + slack, capacity - form.sinks)
    shape = (batch, attention.num_kv_heads, room, attention.head_dim)
    k_BKSH, v_BKSH = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    return SinkSite(k_BKSH, v_BKSH, form, slack, turned_by)


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
    slots.check_new(site.k_BKSH, k_BTKH, v_BTKH)
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
    """Return the attention output of T new tokens, and the site, written in place.

    Up to slack + 1 tokens are written first and read with the rest; a longer chunk is read beside
    what was there, and written afterwards.

    Args:
        site: One attention's sinks and ring, written in place.
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
        ShapeError: Batch, K, H or dtype differ from the site; see
            `caches.attend`.

    Cost: reads the used slots; for a long chunk a copy joined with it. Once something is dropped
    each query is multiplied twice, unless the variant is the absolute one, or each row of one
    length brings one token: then each key is read for one query a head.
    """
    form, tokens = site.form, q_BTNH.shape[1]
    if step.start is not None and tokens == 1:
        return _attend_last(site, step, q_BTNH, k_BTKH, v_BTKH, rule, rotate, bias), site
    sizes = {"sinks": form.sinks, "ring": site.k_BKSH.shape[2] - form.sinks}
    # As long as nothing is dropped, index, slot and position are one.
    is_whole = step.used <= form.sinks + form.window
    by_slot = rotate is not None and site.turned_by == "slot" and not is_whole
    if rotate is not None:
        at_BT = laps.slot_of(step.position_BT, **sizes) if by_slot else step.position_BT
        k_BTKH = rotate(k_BTKH, at_BT)
        q_BTNH = q_BTNH if by_slot else rotate(q_BTNH, at_BT)
    k_BKSH, v_BKSH, key_BS, held_BS = _written(site, step, k_BTKH, v_BTKH)
    # What the step's first query does not see, no query of the step sees.
    held_BS = held_BS & (
        (key_BS < form.sinks) | (key_BS + form.window > step.length_B.unsqueeze(1))
    )
    if not step.clean:
        v_BKSH = v_BKSH.masked_fill(~held_BS[:, None, :, None], 0.0)
    outs, each = [], ops.QUERY_BLOCK
    for at in range(0, tokens, each):
        span = slice(at, min(at + each, tokens))
        q = q_BTNH[:, span]
        if rotate is not None and by_slot:
            q = laps.turned(q, step.position_BT[:, span], rotate, form=form, ring=sizes["ring"])
        q_BKMH = ops.group_queries(q, k_BKSH.shape[1]).to(ops.wide(q.dtype))
        view = View(step, q_BKMH, span, q.shape[2], rule, bias)
        if by_slot:
            product_BKMS = laps.products(view, k_BKSH, key_BS, **sizes)
        else:
            product_BKMS = torch.matmul(q_BKMH, k_BKSH.mT.to(q_BKMH.dtype))
        outs.append(_attend(view, form, product_BKMS, v_BKSH, key_BS, held_BS))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1), site


def fault(site: SinkSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values, form = site.k_BKSH, site.v_BKSH, site.form
    least = form.sinks + min(form.window, cache.capacity - form.sinks)
    if keys.shape[2] < least:
        return f"has {keys.shape[2]} slots, its sinks, window and the capacity need {least}"
    if values.shape != keys.shape or values.dtype != keys.dtype:
        beside = f"{values.dtype}{tuple(values.shape)} beside keys {keys.dtype}{tuple(keys.shape)}"
        return f"has values {beside}"
    return None


def read(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys as stored, values, the position in the text of each slot, and which hold it."""
    key_BS, intact_BS = _intact(site, length_B, peak_B)
    return *slots.by_row(site.k_BKSH, site.v_BKSH), key_BS, intact_BS


def floor(site: SinkSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    Slack below its peak once the ring has wrapped.
    """
    return (cache.peak_B - site.slack).masked_fill(cache.peak_B <= site.k_BKSH.shape[2], 0)


def gather_site(site: SinkSite, rows_B: Int[Array, " C"], *, batch: int) -> SinkSite:
    """Return a copy of the site's named rows, in their order; rows may repeat."""
    k_BKSH, v_BKSH = (slots.gather_rows(x, rows_B) for x in (site.k_BKSH, site.v_BKSH))
    return dataclasses.replace(site, k_BKSH=k_BKSH, v_BKSH=v_BKSH)


def narrow_site(site: SinkSite, *, slots: int) -> SinkSite:
    """Return the site: its size has nothing to do with the capacity."""
    return site


def widen_site(site: SinkSite, old: SinkSite) -> SinkSite:
    """Return the site in the old one's memory, unless it is there already."""
    slots.copy_front(site.k_BKSH, old.k_BKSH)
    slots.copy_front(site.v_BKSH, old.v_BKSH)
    return old


def scrub_site(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> SinkSite:
    """Return the site with 0 in every slot without a token, or with another one, in place."""
    _, intact_BS = _intact(site, length_B, peak_B)
    slots.scrub_values(site.k_BKSH, intact_BS)
    slots.scrub_values(site.v_BKSH, intact_BS)
    return site


def poison_site(
    site: SinkSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> SinkSite:
    """Return a copy with NaN in every slot that holds no token, or no longer the one it held."""
    _, intact_BS = _intact(site, length_B, peak_B)
    k_BKSH, v_BKSH = slots.poison(site.k_BKSH, site.v_BKSH, intact_BS)
    return dataclasses.replace(site, k_BKSH=k_BKSH, v_BKSH=v_BKSH)


def _attend_last(
    site: SinkSite,
    step: Step,
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    rule: ops.Rule,
    rotate: Rotate | None,
    bias: Bias | None,
) -> Array:
    """Write and read one token a row, all rows of one length: what it sees are whole slices."""
    heads, up, at = q_BTNH.shape[2], ops.wide(q_BTNH.dtype), step.used - 1
    ring, by_slot = site.k_BKSH.shape[2] - site.form.sinks, site.turned_by == "slot"
    newest, pieces = laps.pieces(at, form=site.form, ring=ring, by_slot=by_slot)
    if rotate is not None:
        at_BL, both_BLNH = step.position_BT, torch.cat((q_BTNH, k_BTKH), 2)
        if by_slot and len(pieces) > 1:
            at_BL = at_BL.new_tensor([[turn for _, turn in pieces]]).expand(len(at_BL), -1)
            both_BLNH = both_BLNH.expand(-1, len(pieces), -1, -1)
        turned_BLNH = rotate(both_BLNH, at_BL)
        # The last piece ends with the new key, which is turned as the query is for it.
        q_BTNH, k_BTKH = turned_BLNH[:, :, :heads], turned_BLNH[:, -1:, heads:]
    slots.write_slice(site.k_BKSH, site.v_BKSH, k_BTKH, v_BTKH, start=newest)
    if len(pieces) == 1 and bias is None and rule.soft_cap is None:
        k_BKSH, v_BKSH = (x[:, :, : at + 1] for x in (site.k_BKSH, site.v_BKSH))
        return slots.attend_all(q_BTNH, k_BKSH, v_BKSH, rule=rule)
    k_XSH, v_XSH = site.k_BKSH.flatten(0, 1), site.v_BKSH.flatten(0, 1)
    q_BLKMH = q_BTNH.unflatten(2, (site.k_BKSH.shape[1], -1)).to(up)
    queries = q_BLKMH.unbind(1) * (len(pieces) if q_BLKMH.shape[1] == 1 else 1)
    products = [
        torch.bmm(q_BKMH.flatten(0, 1), k_XSH[:, slot_S].mT.to(up))
        for q_BKMH, (slot_S, _) in zip(queries, pieces, strict=True)
    ]
    product_BKMS = torch.cat(products, -1).unflatten(0, site.k_BKSH.shape[:2])
    view = View(step, queries[0], slice(0, 1), heads, rule, bias)
    key_BS = None if bias is None else _positions(site, step, pieces)
    weight_XMS = view.scored(product_BKMS, key_BS).softmax(-1).to(v_XSH.dtype).flatten(0, 1)
    parts = weight_XMS.split([x.shape[2] for x in products], 2)
    out_XMH = torch.bmm(parts[0], v_XSH[:, pieces[0][0]])
    for part_XMS, (slot_S, _) in zip(parts[1:], pieces[1:], strict=True):
        out_XMH = torch.baddbmm(out_XMH, part_XMS, v_XSH[:, slot_S])
    return ops.ungroup(out_XMH.unflatten(0, site.k_BKSH.shape[:2]), tokens=1)


def _positions(site: SinkSite, step: Step, pieces: list[tuple[slice, int]]) -> Array:
    """Return the positions in the text of these slots' tokens."""
    key_BS, _ = _places(site, step.length_B + 1)
    return torch.cat([key_BS[:, slot_S] for slot_S, _ in pieces], 1)


def _attend(
    view: View, form: Sinks, product_BKMS: Array, v_BKSH: Array, key_BS: Array, held_BS: Array
) -> Array:
    age_BTS = view.query_BT.unsqueeze(2) - key_BS.unsqueeze(1)
    kept_BTS = (key_BS < form.sinks).unsqueeze(1) | (age_BTS < form.window)
    visible_B1MS = view.spread(held_BS.unsqueeze(1) & (age_BTS >= 0) & kept_BTS)
    weight_BKMS = ops.softmax(view.scored(product_BKMS, key_BS), visible_B1MS)
    out_BKMH = torch.matmul(weight_BKMS.to(v_BKSH.dtype), v_BKSH)
    return ops.ungroup(out_BKMH, tokens=view.query_BT.shape[1])


def _written(
    site: SinkSite, step: Step, k_BTKH: Array, v_BTKH: Array
) -> tuple[Array, Array, Array, Array]:
    """Write the step's tokens; return keys, values, positions and which are held, sinks first.

    Of all that the step's queries may see: of what its tokens displace, a copy from before.
    """
    k_BKTH, v_BKTH = slots.heads_first(k_BTKH), slots.heads_first(v_BTKH)
    if step.fresh:
        _write(site, step, k_BTKH, v_BTKH)
        return k_BKTH, v_BKTH, step.position_BT, step.valid_BT
    sinks, room = site.form.sinks, site.k_BKSH.shape[2]
    after = _places(site, step.length_B + step.count_B)
    if k_BTKH.shape[1] <= site.slack + 1:
        _write(site, step, k_BTKH, v_BTKH)
        used = min(step.used, room)
        key_BS, held_BS = (x[:, :used] for x in after)
        return site.k_BKSH[:, :, :used], site.v_BKSH[:, :, :used], key_BS, held_BS
    used = min(max(sinks, *(before for before, _ in step.spans)), room)
    k_BKSH = torch.cat((site.k_BKSH[:, :, :used], k_BKTH), 2)
    v_BKSH = torch.cat((site.v_BKSH[:, :, :used], v_BKTH), 2)
    key_BS, held_BS = (x[:, :used].clone() for x in _places(site, step.length_B))
    _write(site, step, k_BTKH, v_BTKH)
    # Sinks are read from their slots, whether the step brought them or an earlier one.
    k_BKSH[:, :, :sinks], v_BKSH[:, :, :sinks] = (
        site.k_BKSH[:, :, :sinks],
        site.v_BKSH[:, :, :sinks],
    )
    key_BS[:, :sinks], held_BS[:, :sinks] = (x[:, :sinks] for x in after)
    is_recent_BT = step.valid_BT & (step.position_BT >= sinks)
    key_BS = torch.cat((key_BS, step.position_BT), 1)
    return k_BKSH, v_BKSH, key_BS, torch.cat((held_BS, is_recent_BT), 1)


def _intact(site: SinkSite, length_B: Array, peak_B: Array) -> tuple[Array, Array]:
    key_BS, held_BS = _places(site, length_B)
    recents = site.k_BKSH.shape[2] - site.form.sinks
    is_young_BS = key_BS + recents >= peak_B.unsqueeze(1)
    return key_BS, held_BS & ((key_BS < site.form.sinks) | is_young_BS)


def _places(site: SinkSite, length_B: Array) -> tuple[Array, Array]:
    sinks, room = site.form.sinks, site.k_BKSH.shape[2]
    sink_S = torch.arange(sinks, dtype=torch.int32, device=length_B.device)
    sink_BS = sink_S.expand(len(length_B), -1)
    recent_BS, held_BS = ring.places(length_B - sinks, room - sinks)
    is_there_BS = sink_BS < length_B.unsqueeze(1)
    return torch.cat((sink_BS, recent_BS + sinks), 1), torch.cat((is_there_BS, held_BS), 1)


def _write(site: SinkSite, step: Step, k_BTKH: Array, v_BTKH: Array) -> None:
    sinks, recents = site.form.sinks, site.k_BKSH.shape[2] - site.form.sinks
    row_P, token_P = step.real
    position_P = step.position_BT[row_P, token_P].long()
    # Of a chunk longer than the ring only sinks and the last C tokens are written.
    end_P = (step.length_B + step.count_B)[row_P]
    survives_P = (position_P < sinks) | (position_P >= end_P - recents)
    row_P, token_P, position_P = row_P[survives_P], token_P[survives_P], position_P[survives_P]
    slots.write_slots(
        site.k_BKSH,
        site.v_BKSH,
        k_BTKH,
        v_BTKH,
        row_P=row_P,
        token_P=token_P,
        slot_P=laps.slot_of(position_P, sinks=sinks, ring=recents),
    )
