"""Places of tokens behind sinks, where a ring's keys stand turned by their slot and never again.

A score follows from how far apart query and key stand, so that any clock will do which both are
turned by. Keys of a ring of C slots behind s sinks are turned by the number of their slot: token p
by p if p < s, else by s + (p - s) mod C. A query that sees W <= C recent tokens meets its own lap
of the ring and the one before it, whose keys stand C places farther back than their slots say: it
is turned once for each, and a third time for the sinks, from its index in the cache, min(p, s + W -
1). No place is ever beyond s + 2C, however long the text.

Letters: B rows, T new tokens, N query heads, X = B*K lines, M grouped queries, H head width, S
keys, the first s of them sinks.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv.caches.state import Rotate
from jaxkv.caches.view import View
from jaxkv.spec.compression import Sinks


def slot_of(position: Int[Array, "..."], *, sinks: int, ring: int) -> Int[Array, "..."]:
    """Return the slots of tokens, by their positions in the text."""
    return jnp.where(position < sinks, position, sinks + jnp.mod(position - sinks, ring))


def turned(
    q_BTNH: Float[Array, "B T N H"],
    query_BT: Int[Array, "B T"],
    rotate: Rotate,
    *,
    form: Sinks,
    ring: int,
) -> Float[Array, "B _ N H"]:
    """Return queries turned for keys of their own lap, then for the lap before, then for sinks.

    Args:
        q_BTNH: Queries, not rotated.
        query_BT: Their positions in the text.
        rotate: Of the attention.
        form: How many sinks and recent tokens a query sees.
        ring: Slots behind the sinks.
    """
    own_BT = slot_of(query_BT, sinks=form.sinks, ring=ring)
    index_BT = jnp.minimum(query_BT, form.sinks + form.window - 1)
    at_BT = jnp.concatenate([own_BT, own_BT + ring, index_BT], axis=1)
    return rotate(jnp.concatenate([q_BTNH] * 3, axis=1), at_BT)


def products(
    view: View,
    k_XHS: Float[Array, "X H S"],
    key_BS: Int[Array, "B S"],
    *,
    sinks: int,
    ring: int,
) -> Float[Array, "X M S"]:
    """Return the products of a block of queries with keys that stand turned by their slots.

    Args:
        view: Of queries as `turned` gives them, grouped.
        k_XHS: Keys, the sinks first.
        key_BS: Their positions in the text.
        sinks: How many sinks there are.
        ring: Slots behind them.

    Cost: two products with all keys, which are read once.
    """
    count, first = view.q_XMH.shape[1] // 3, min(sinks, k_XHS.shape[2])
    k_XHS = k_XHS.astype(view.q_XMH.dtype)
    both_XMS = jnp.einsum("XMH,XHS->XMS", view.q_XMH[:, : 2 * count], k_XHS)
    lap_BT = view.query_BT - jnp.mod(view.query_BT - sinks, ring)
    is_own_XMS = view.spread(key_BS[:, None] >= lap_BT[:, :, None])
    recent_XMS = jnp.where(is_own_XMS, both_XMS[:, :count], both_XMS[:, count:])
    to_sinks_XMS = jnp.einsum("XMH,XHS->XMS", view.q_XMH[:, 2 * count :], k_XHS[:, :, :first])
    return jax.lax.dynamic_update_slice_in_dim(recent_XMS, to_sinks_XMS, 0, axis=2)
