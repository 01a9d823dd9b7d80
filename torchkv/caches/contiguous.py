"""The contiguous layout: one key and one value buffer a layer.

Token number p of a row stands in slot p. An attention to latents has no value buffer: its values
are the first `rank` channels of the keys.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, S slots = capacity.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Attention
from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step


@dataclass(frozen=True)
class ContiguousSite:
    """One attention's buffers; slots at and beyond a row's length are never read."""

    k_BKSH: Float[Array, "B K S H"]
    v_BKSH: Float[Array, "B K S H"] | None
    rank: int | None


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
    slack: int = 0,
    shared: None = None,
) -> ContiguousSite:
    """Return empty buffers; `slack` is not needed, every length can be rolled back to.

    Cost: allocates 2 * batch * K * capacity * H elements; half of them for a latent's keys alone.
    """
    shape = (batch, attention.num_kv_heads, capacity, attention.head_dim)
    keys = torch.zeros(shape, dtype=dtype)
    if attention.latent is not None:
        return ContiguousSite(keys, None, attention.latent.rank)
    return ContiguousSite(keys, torch.zeros(shape, dtype=dtype), None)


def check(
    site: ContiguousSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or there are values beside latents.
        ShapeError: Batch, K, H or dtype differ.
    """
    slots.check_new(site.k_BKSH, k_BTKH, v_BTKH, rank=site.rank)


def attend(
    site: ContiguousSite,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N _"], ContiguousSite]:
    """Return the attention output of T new tokens, and the site, written in place.

    Row b writes its first step.count_B[b] tokens at slots [length_B[b], length_B[b] + count_B[b]);
    query i of row b sees the slots whose position is at most length_B[b] + i.

    Args:
        site: One attention's buffers, written in place.
        step: From `begin`: positions, counts, room. The same for all layers.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values; None where they are the first channels of the keys.
        rule: Scale, soft cap, window; static.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: From latents, with their rotary keys turned, to the keys and values of all heads;
            None to attend to the latents themselves.

    Raises:
        ShapeError: Batch, K, H or dtype differ from the site; see `caches.attend`.

    Not checked here: room for the tokens; `begin` refuses the row.
    Cost: writes 2*B*T*K*H elements; reads from the oldest slot that a query sees to the longest
    row's last, or nothing but the new tokens when the step is fresh.
    """
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    _write(site, step, k_BTKH, v_BTKH)
    if step.fresh:
        k_BTKH, v_BTKH = slots.new_values(k_BTKH, v_BTKH, expand, rank=site.rank)
        out_BTNH = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        return out_BTNH, site
    first = 0 if rule.window is None else max(0, step.oldest + 1 - rule.window)
    v_BKSH = slots.values_of(site.k_BKSH, site.v_BKSH, rank=site.rank)
    k_BKSH, v_BKSH = (x.narrow(2, first, step.used - first) for x in (site.k_BKSH, v_BKSH))
    if expand is not None:
        k_BKSH, v_BKSH = slots.expanded(k_BKSH, expand)
    if step.start is not None and q_BTNH.shape[1] == 1 and bias is None and rule.soft_cap is None:
        return slots.attend_all(q_BTNH, k_BKSH, v_BKSH, rule=rule), site
    key_BS, valid_BS = _places(step.length_B + step.count_B, first, step.used)
    out_BTNH = slots.attend_slots(
        q_BTNH,
        k_BKSH,
        v_BKSH,
        query_BT=step.position_BT,
        key_BS=key_BS,
        valid_BS=valid_BS,
        rule=rule,
        clean=step.clean,
        bias=bias,
    )
    return out_BTNH, site


def fault(site: ContiguousSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values = site.k_BKSH, site.v_BKSH
    slots = keys.shape[2]
    if slots != cache.capacity:
        return f"has {slots} slots, the cache has capacity {cache.capacity}"
    if values is None:
        return None if site.rank is not None else "has no values beside its keys"
    if values.shape != keys.shape or values.dtype != keys.dtype:
        beside = f"{values.dtype}{tuple(values.shape)} beside keys {keys.dtype}{tuple(keys.shape)}"
        return f"has values {beside}"
    return None


def read(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold a token.

    A probe for tests and crosscheck.
    """
    key_BS, valid_BS = _places(length_B, 0, site.k_BKSH.shape[2])
    v_BKSH = slots.values_of(site.k_BKSH, site.v_BKSH, rank=site.rank)
    return *slots.by_row(site.k_BKSH, v_BKSH), key_BS, valid_BS


def floor(site: ContiguousSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to: always 0."""
    return torch.zeros_like(cache.length_B)


def gather_site(site: ContiguousSite, rows_B: Int[Array, " C"], *, batch: int) -> ContiguousSite:
    """Return a copy of the site's named rows, in their order; rows may repeat."""
    values = None if site.v_BKSH is None else slots.gather_rows(site.v_BKSH, rows_B)
    return ContiguousSite(slots.gather_rows(site.k_BKSH, rows_B), values, site.rank)


def narrow_site(site: ContiguousSite, *, slots: int) -> ContiguousSite:
    """Return a site of the first slots, on the same memory."""
    values = None if site.v_BKSH is None else site.v_BKSH[:, :, :slots]
    return ContiguousSite(site.k_BKSH[:, :, :slots], values, site.rank)


def widen_site(site: ContiguousSite, old: ContiguousSite) -> ContiguousSite:
    """Return the old, larger site with its first slots replaced, if they are not its own."""
    slots.copy_front(site.k_BKSH, old.k_BKSH)
    if site.v_BKSH is not None and old.v_BKSH is not None:
        slots.copy_front(site.v_BKSH, old.v_BKSH)
    return old


def scrub_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return the site with 0 in every slot that holds no token, in place."""
    _, valid_BS = _places(length_B, 0, site.k_BKSH.shape[2])
    slots.scrub_values(site.k_BKSH, valid_BS)
    if site.v_BKSH is not None:
        slots.scrub_values(site.v_BKSH, valid_BS)
    return site


def poison_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return a copy of the site with NaN in every slot that holds no token."""
    _, valid_BS = _places(length_B, 0, site.k_BKSH.shape[2])
    return ContiguousSite(*slots.poison(site.k_BKSH, site.v_BKSH, valid_BS), site.rank)


def _places(length_B: Array, first: int, end: int) -> tuple[Array, Array]:
    key_S = torch.arange(first, end, dtype=torch.int32, device=length_B.device)
    key_BS = key_S.expand(length_B.shape[0], -1)
    return key_BS, key_BS < length_B.unsqueeze(1)


def _write(site: ContiguousSite, step: Step, k_BTKH: Array, v_BTKH: Array | None) -> None:
    if step.start is not None:
        slots.write_slice(site.k_BKSH, site.v_BKSH, k_BTKH, v_BTKH, start=step.start)
        return
    row_P, token_P = step.real
    slot_P = step.position_BT[row_P, token_P].long()
    slots.write_slots(
        site.k_BKSH,
        site.v_BKSH,
        k_BTKH,
        v_BTKH,
        row_P=row_P,
        token_P=token_P,
        slot_P=slot_P,
    )
