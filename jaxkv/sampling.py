"""Logits -> token. Letters: B rows, V vocabulary."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def greedy(logits_BV: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Return the id of each row's largest logit, int32; of equal ones the lowest id."""
    return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
