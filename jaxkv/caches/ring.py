"""A ring: token number p of a row stands in slot p mod A, over the one that it displaces.

Letters: B rows, X = B*K lines, T new tokens, A slots of the ring, H head width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv.caches import slots
from jaxkv.caches.state import Step


def places(length_B: Int[Array, " B"], ring: int) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Return the position of the newest token that each slot can hold, and whether there is one.

    After a rollback a slot may hold a later token than it says here.
    """
    newest_B1 = length_B[:, None] - 1
    slot_A = jnp.arange(ring, dtype=jnp.int32)
    position_BA = newest_B1 - jnp.mod(newest_B1 - slot_A, ring)
    return position_BA, position_BA >= 0


def intact(
    length_B: Int[Array, " B"], peak_B: Int[Array, " B"], ring: int
) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Return the position of each slot, and whether it still holds the token of that position."""
    position_BA, held_BA = places(length_B, ring)
    return position_BA, held_BA & (position_BA >= peak_B[:, None] - ring)


def floor(length_B: Int[Array, " B"], peak_B: Int[Array, " B"], ring: int, slack: int) -> Array:
    """Return the shortest length to roll back to: slack below the peak once the ring is full."""
    return jnp.where(peak_B > ring, peak_B - slack, jnp.zeros_like(length_B))


def write(
    k_XHA: Float[Array, "X H A"],
    v_XAH: Float[Array, "X A H"],
    new_k_XTH: Float[Array, "X T H"],
    new_v_XTH: Float[Array, "X T H"],
    step: Step,
) -> tuple[Float[Array, "X H A"], Float[Array, "X A H"]]:
    """Return the ring with each row's real tokens in it; of a longer chunk only the last A."""
    ring = k_XHA.shape[2]
    if new_k_XTH.shape[1] == 1 and step.rectangular:
        start = jnp.max(jnp.where(step.count_B > 0, step.length_B, 0)) % ring
        keep_X = jnp.repeat(step.count_B > 0, new_k_XTH.shape[0] // step.count_B.shape[0])
        k, v = slots.write_slice(k_XHA, v_XAH, new_k_XTH, new_v_XTH, start=start, keep_X=keep_X)
        assert v is not None  # there were values
        return k, v
    end_B1 = (step.length_B + step.count_B)[:, None]
    survives_BT = step.valid_BT & (step.position_BT >= end_B1 - ring)
    slot_BT = jnp.where(survives_BT, step.position_BT % ring, ring)
    k, v = slots.write_slots(k_XHA, v_XAH, new_k_XTH, new_v_XTH, slot_BT=slot_BT)
    assert v is not None  # there were values
    return k, v
