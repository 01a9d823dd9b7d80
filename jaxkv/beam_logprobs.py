"""Log-probabilities of the tokens in beams, kept beside their texts.

Letters: B rows, J beams of a row, M texts among which J are chosen, S new tokens at most, A
likeliest tokens, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv.pytree import pytree


@pytree
class Told:
    """What the model's own distribution made of each new token, where it stands in its text.

    Attributes:
        logprob_BJS: float32, of the token.
        id_BJSA: int32, the likeliest at its place, the likeliest first; A may be 0.
        top_BJSA: float32, their log-probabilities.
    """

    logprob_BJS: Float[Array, "B J S"]
    id_BJSA: Int[Array, "B J S A"]
    top_BJSA: Float[Array, "B J S A"]


def nothing_told(batch: int, beams: int, slots: int, *, top: int) -> Told:
    """Return room for the log-probabilities of as many texts, and of the `top` likeliest tokens."""
    shape = (batch, beams, slots)
    logprob_BJS, top_BJSA = jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, top), jnp.float32)
    return Told(logprob_BJS, jnp.zeros((*shape, top), jnp.int32), top_BJSA)


def tell(
    told: Told,
    logprob_BJV: Float[Array, "B J V"],
    beam_BM: Int[Array, "B M"],
    token_BM: Int[Array, "B M"],
    at: Int[Array, ""],
) -> Told:
    """Return what is told of continuations: of the beams that they continue, and of their tokens.

    Args:
        told: Of the beams.
        logprob_BJV: Of the next tokens, before any processor.
        beam_BM: int32, which beam each continues.
        token_BM: int32, by which token.
        at: int32, where it will stand.

    Cost: sorts the vocabulary, if the likeliest tokens are wanted.
    """
    moved = take(told, beam_BM)
    line_BMV = jnp.take_along_axis(logprob_BJV, beam_BM[:, :, None], axis=1)
    own_BM = jnp.take_along_axis(line_BMV, token_BM[:, :, None], axis=2)[:, :, 0]
    top_BMA, id_BMA = jax.lax.top_k(line_BMV, told.id_BJSA.shape[3])
    return Told(
        moved.logprob_BJS.at[:, :, at].set(own_BM.astype(jnp.float32)),
        moved.id_BJSA.at[:, :, at].set(id_BMA.astype(jnp.int32)),
        moved.top_BJSA.at[:, :, at].set(top_BMA.astype(jnp.float32)),
    )


def join(first: Told, second: Told) -> Told:
    """Return what is told of the texts of both, one after the other."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), first, second)


def take(told: Told, place_BJ: Int[Array, "B J"]) -> Told:
    """Return what is told of the texts at those places of each row."""

    def each(x: Array) -> Array:
        return jnp.take_along_axis(x, place_BJ.reshape(*place_BJ.shape, *[1] * (x.ndim - 2)), 1)

    return jax.tree.map(each, told)
