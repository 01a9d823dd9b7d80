"""A ring: token number p of a row stands in slot p mod A, over the one that it displaces.

Letters: B rows, K key/value heads, T new tokens, A slots of the ring, H head width.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from torchkv.caches import slots
from torchkv.caches.state import Step


def places(length_B: Int[Array, " B"], ring: int) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Return the position of the newest token that each slot can hold, and whether there is one.

    After a rollback a slot may hold a later token than it says here.
    """
    slot_A = torch.arange(ring, dtype=torch.int32, device=length_B.device)
    laps_BA = torch.div(length_B.unsqueeze(1) - 1 - slot_A, ring, rounding_mode="floor")
    return slot_A + laps_BA * ring, laps_BA >= 0


def intact(
    length_B: Int[Array, " B"], peak_B: Int[Array, " B"], ring: int
) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Return the position of each slot, and whether it still holds the token of that position."""
    position_BA, held_BA = places(length_B, ring)
    return position_BA, held_BA & (position_BA + ring >= peak_B.unsqueeze(1))


def floor(length_B: Int[Array, " B"], peak_B: Int[Array, " B"], ring: int, slack: int) -> Array:
    """Return the shortest length to roll back to: slack below the peak once the ring is full."""
    return (peak_B - slack).masked_fill(peak_B <= ring, 0)


def latest(
    x_BKC: Float[Array, "B K _ _"], first: int, end: int, *, axis: int
) -> Float[Array, "B K _ _"]:
    """Return what the ring along an axis holds of tokens first to end - 1, in their order."""
    slots_in_all, at = x_BKC.shape[axis], first % x_BKC.shape[axis]
    front = x_BKC.narrow(axis, at, min(end - first, slots_in_all - at))
    rest = end - first - front.shape[axis]
    return torch.cat((front, x_BKC.narrow(axis, 0, rest)), axis) if rest else front


def write(
    k_BKHA: Float[Array, "B K H A"],
    v_BKAH: Float[Array, "B K A H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    step: Step,
) -> None:
    """Write each row's real tokens into the ring, in place; of a longer chunk only the last A."""
    ring, tokens = v_BKAH.shape[2], v_BTKH.shape[1]
    if step.start is not None and tokens == 1:
        slots.write_slice(k_BKHA.mT, v_BKAH, k_BTKH, v_BTKH, start=step.start % ring)
        return
    row_P, token_P = step.real
    if tokens > ring:
        survives_P = token_P >= step.count_B[row_P] - ring
        row_P, token_P = row_P[survives_P], token_P[survives_P]
    slot_P = step.position_BT[row_P, token_P].long() % ring
    slots.write_slots(
        k_BKHA.mT, v_BKAH, k_BTKH, v_BTKH, row_P=row_P, token_P=token_P, slot_P=slot_P
    )
