"""Logits -> token. Letters: B rows, S slots, V vocabulary, A likeliest tokens.

Order and ties of the filters are those of transformers 5.24, generation/logits_process.py:
temperature, top-k, top-p, min-p, each on what the one before left.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from jaxkv.pytree import pytree


@pytree
class Sampler:
    """One number a row, all traced: another value costs no compilation.

    Attributes:
        temperature_B: float32; 0 is greedy.
        top_k_B: int32, how many of the likeliest tokens stay.
        tail_B: float32, 1 - top_p.
        min_p_B: float32, the least probability that stays, as a share of the largest.
        seed_B: uint32; with a token's place it decides the token's random number.
    """

    temperature_B: Float[Array, " B"]
    top_k_B: Int[Array, " B"]
    tail_B: Float[Array, " B"]
    min_p_B: Float[Array, " B"]
    seed_B: UInt32[Array, " B"]


@pytree
class TopTokens:
    """The likeliest tokens at each place of each text.

    Attributes:
        id_BSA: int32, the likeliest first; of equal ones the lowest id.
        logprob_BSA: float32, their log-probabilities under the model's own distribution.
    """

    id_BSA: Int[Array, "B S A"]
    logprob_BSA: Float[Array, "B S A"]


def greedy(logits_BV: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Return the id of each row's largest logit, int32; of equal ones the lowest id."""
    return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)


def sample(
    logits_BV: Float[Array, "B V"], sampler: Sampler, place_B: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Return one token a row, int32, drawn as the row's own settings, seed and place say.

    Nothing of a row enters another row's token.

    Args:
        logits_BV: The model's.
        sampler: A row of temperature 0 takes `greedy`.
        place_B: int32, where in its row's text each token will stand.
    """
    drawn_B = choose(warp(logits_BV, sampler), uniform(sampler.seed_B, place_B))
    return jnp.where(sampler.temperature_B > 0, drawn_B, greedy(logits_BV))


def warp(logits_BV: Float[Array, "B V"], sampler: Sampler) -> Float[Array, "B V"]:
    """Return the logits over the temperature, with -inf for every token that a filter drops.

    At least one token stays. In at least float32. A row of temperature 0 is not divided.

    Cost: sorts the vocabulary, if top-k or top-p drop anything in any row.
    """
    logits_BV = _widen(logits_BV)
    # The peak is taken off first: its token stays at 0 however small the temperature.
    peak_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    heat_B = jnp.where(sampler.temperature_B > 0, sampler.temperature_B, 1)
    scaled_BV = (logits_BV - peak_B1) / heat_B[:, None].astype(logits_BV.dtype)
    vocabulary = logits_BV.shape[1]
    has_cut = jnp.any((sampler.top_k_B < vocabulary) | (sampler.tail_B > 0))
    # Only logits pass through this branch; one with a cache in it would copy the cache.
    kept_BV = jax.lax.cond(has_cut, _cut, lambda scaled_BV, _: scaled_BV, scaled_BV, sampler)
    probability_BV = jax.nn.softmax(kept_BV, axis=-1)
    least_B1 = sampler.min_p_B[:, None] * jnp.max(probability_BV, axis=-1, keepdims=True)
    return _drop(kept_BV, probability_BV < least_B1)


def uniform(
    seed_B: UInt32[Array, " B"], place_B: Int[Array, " B"], *, stream: int = 0
) -> Float[Array, " B"]:
    """Return one float32 number of [0, 1) a row: a function of its seed and place alone.

    Args:
        seed_B: Of each row.
        place_B: int32, of the token in its row's text.
        stream: A place has further numbers, independent of the first: one a stream; static.
    """

    def one(seed: Array, place: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), place)
        key = key if stream == 0 else jax.random.fold_in(key, stream)
        bits = jax.random.bits(key, (), jnp.uint32)
        # As many bits as a float32 below 1 holds exactly.
        return (bits >> 8).astype(jnp.float32) * jnp.float32(2**-24)

    return jax.vmap(one)(seed_B, place_B)


def choose(logits_BV: Float[Array, "B V"], uniform_B: Float[Array, " B"]) -> Int[Array, " B"]:
    """Return the token at which each row's cumulative probability first exceeds its number, int32.

    Source: inverse transform sampling, Devroye 1986, section III.2.
    """
    probability_BV = jax.nn.softmax(_widen(logits_BV), axis=-1)
    sum_BV = jnp.cumsum(probability_BV, axis=-1)
    goal_B1 = uniform_B[:, None] * sum_BV[:, -1:]
    # Partial sums are rounded each in its own way: a dropped token could seem to add to them.
    exceeds_BV = (sum_BV > goal_B1) & (probability_BV > 0)
    first_B = jnp.argmax(exceeds_BV, axis=-1)
    found_B = jnp.any(exceeds_BV, axis=-1)
    return jnp.where(found_B, first_B, jnp.argmax(probability_BV, axis=-1)).astype(jnp.int32)


def logprob(logits_BV: Float[Array, "B V"], token_B: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the natural logarithm of each token's probability, float32.

    Under the model's own distribution: no temperature, no filter.
    """
    logits_BV = _widen(logits_BV)
    own_B = jnp.take_along_axis(logits_BV, token_B[:, None], axis=-1)[:, 0]
    return (own_B - jax.nn.logsumexp(logits_BV, axis=-1)).astype(jnp.float32)


def top_logprobs(
    logits_BV: Float[Array, "B V"], *, top: int
) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
    """Return ids, int32, and log-probabilities, float32, of each row's `top` likeliest tokens.

    The likeliest first, of equal ones the lowest id. Under the model's own distribution, as
    `logprob`.

    Cost: sorts the vocabulary.
    """
    logits_BV = _widen(logits_BV)
    logit_BA, id_BA = jax.lax.top_k(logits_BV, top)
    logprob_BA = logit_BA - jax.nn.logsumexp(logits_BV, axis=-1, keepdims=True)
    return id_BA.astype(jnp.int32), logprob_BA.astype(jnp.float32)


def no_tokens(batch: int, slots: int, top: int) -> TopTokens:
    """Return room for the `top` likeliest tokens at each place."""
    shape = (batch, slots, top)
    return TopTokens(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))


def _cut(scaled_BV: Array, sampler: Sampler) -> Array:
    """Return the logits with -inf outside of top-k, then outside of top-p."""
    vocabulary = scaled_BV.shape[1]
    order_BV = jnp.argsort(scaled_BV, axis=-1)
    rising_BV = jnp.take_along_axis(scaled_BV, order_BV, axis=-1)
    last_B1 = jnp.take_along_axis(rising_BV, vocabulary - sampler.top_k_B[:, None], axis=-1)
    rising_BV = _drop(rising_BV, rising_BV < last_B1)
    # Sums of the least likely: of equal tokens at the border those with the higher ids stay.
    sum_BV = jnp.cumsum(jax.nn.softmax(rising_BV, axis=-1), axis=-1)
    tail_B1 = sampler.tail_B[:, None]
    is_last_V = jnp.arange(vocabulary) == vocabulary - 1
    drop_BV = (tail_B1 > 0) & (sum_BV <= tail_B1) & ~is_last_V
    rising_BV = _drop(rising_BV, drop_BV)
    return jnp.put_along_axis(scaled_BV, order_BV, rising_BV, axis=-1, inplace=False)


def _drop(logits_BV: Array, drop_BV: Array) -> Array:
    # Of the logits' own dtype: a bare -inf is a float64 constant when x64 is on.
    return jnp.where(drop_BV, jnp.array(-jnp.inf, logits_BV.dtype), logits_BV)


def _widen(logits_BV: Array) -> Array:
    return logits_BV.astype(jnp.promote_types(logits_BV.dtype, jnp.float32))
