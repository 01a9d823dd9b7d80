"""A softmax carried along over tiles of keys: running maximum, sum and weighted values.

So attention reads a cache piece by piece, and no row of scores is ever whole. Letters: X = B*K, M
grouped queries, S keys of a tile, H head width. Source: online softmax (Milakov and Gimelshein
2018).
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxkv.pytree import pytree

Weigh = Callable[[Float[Array, "X M S"]], Float[Array, "X M H"]]


@pytree
class Carried:
    """What the tiles so far gave."""

    out_XMH: Float[Array, "X M H"]
    peak_XM: Float[Array, "X M"]
    total_XM: Float[Array, "X M"]


def start(q_XMH: Float[Array, "X M H"]) -> Carried:
    """Return the state of these queries before any tile, in their dtype."""
    total_XM = jnp.zeros(q_XMH.shape[:2], q_XMH.dtype)
    return Carried(
        jnp.zeros_like(q_XMH), jnp.full_like(total_XM, jnp.finfo(q_XMH.dtype).min), total_XM
    )


def add(
    state: Carried,
    score_XMS: Float[Array, "X M S"],
    visible_XMS: Bool[Array, "X M S"],
    weigh: Weigh,
) -> Carried:
    """Return the state with one more tile; scores that are not visible may be anything.

    Args:
        state: Of the tiles before.
        score_XMS: In the state's dtype.
        visible_XMS: Which of them count.
        weigh: Takes weights, not normalized and 0 where nothing is visible, to weighted values.
    """
    masked_XMS = jnp.where(visible_XMS, score_XMS, jnp.finfo(score_XMS.dtype).min)
    peak_XM = jnp.maximum(state.peak_XM, jnp.max(masked_XMS, axis=-1))
    weight_XMS = jnp.where(visible_XMS, jnp.exp(masked_XMS - peak_XM[:, :, None]), 0)
    shrink_XM = jnp.exp(state.peak_XM - peak_XM)
    return Carried(
        state.out_XMH * shrink_XM[:, :, None] + weigh(weight_XMS),
        peak_XM,
        state.total_XM * shrink_XM + jnp.sum(weight_XMS, axis=-1),
    )


def finish(state: Carried) -> Float[Array, "X M H"]:
    """Return the weighted means; zeros for a query that has seen nothing."""
    total_XM = jnp.where(state.total_XM > 0, state.total_XM, 1)
    return state.out_XMH / total_XM[:, :, None]
