"""Which drafted tokens a model keeps, and the token that it adds: pure functions of numbers.

Letters: B rows, K drafted tokens, T = K + 1 places of a verifying step, V vocabulary. Source:
speculative sampling, Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1 and appendix A.1.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import sampling
from jaxkv.sampling import Sampler


def probabilities(logits_BTV: Float[Array, "B T V"], sampler: Sampler) -> Float[Array, "B T V"]:
    """Return what each row draws from at each place, after its own temperature and filters.

    A row of temperature 0 has 1 at its likeliest token. In at least float32.

    Cost: as of `sampling.warp`, of B*T rows.
    """
    batch, places, vocabulary = logits_BTV.shape
    each = jax.tree.map(lambda x_B: jnp.repeat(x_B, places), sampler)
    logits_RV = logits_BTV.reshape(batch * places, vocabulary)
    drawn_RV = jax.nn.softmax(sampling.warp(logits_RV, each), axis=-1)
    sure_RV = jax.nn.one_hot(sampling.greedy(logits_RV), vocabulary, dtype=drawn_RV.dtype)
    chosen_RV = jnp.where(each.temperature_B[:, None] > 0, drawn_RV, sure_RV)
    return chosen_RV.reshape(batch, places, vocabulary)


def draw(p_BV: Float[Array, "B V"], uniform_B: Float[Array, " B"]) -> Int[Array, " B"]:
    """Return one token a row, int32, drawn from probabilities that need not sum to 1."""
    return sampling.choose(jnp.log(p_BV), uniform_B)


def judge_greedy(
    logits_BTV: Float[Array, "B T V"], draft_BK: Int[Array, "B K"], count_B: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return how many first drafts of each row are its likeliest tokens, and the one after them.

    Args:
        logits_BTV: At the token before the drafts, then at each draft.
        draft_BK: int32.
        count_B: int32, how many of the K are drafts.
    """
    likeliest_BT = jnp.argmax(logits_BTV, axis=-1).astype(jnp.int32)
    agreed_B = _first_run(draft_BK == likeliest_BT[:, :-1], count_B)
    return agreed_B, _at(likeliest_BT, agreed_B)


def judge(
    p_BTV: Float[Array, "B T V"],
    q_BKV: Float[Array, "B K V"] | None,
    draft_BK: Int[Array, "B K"],
    count_B: Int[Array, " B"],
    accept_BK: Float[Array, "B K"],
    next_BT: Float[Array, "B T"],
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return how many first drafts of each row are kept, and the token after them, both int32.

    Draft x is kept with probability min(1, p(x) / q(x)). After a rejection the next token comes
    from the positive part of p - q, normed; after all drafts from p. So each token has p's
    distribution, whatever q is.

    Args:
        p_BTV: The model's probabilities before and after each draft.
        q_BKV: Those that the drafts were drawn from; None for drafts that nothing was drawn for.
        draft_BK: int32.
        count_B: int32, how many of the K are drafts.
        accept_BK: A number of [0, 1) a draft.
        next_BT: One a place, of which the token after the kept drafts takes its own.
    """
    p_BK = jnp.take_along_axis(p_BTV[:, :-1], draft_BK[..., None], axis=-1)[..., 0]
    q_BK = jnp.ones_like(p_BK)
    if q_BKV is not None:
        q_BK = jnp.take_along_axis(q_BKV, draft_BK[..., None], axis=-1)[..., 0]
    kept_B = _first_run(accept_BK.astype(p_BK.dtype) * q_BK < p_BK, count_B)
    last_B = jnp.minimum(kept_B, draft_BK.shape[1] - 1)
    if q_BKV is None:
        taken_BV = jax.nn.one_hot(_at(draft_BK, last_B), p_BTV.shape[2], dtype=p_BTV.dtype)
    else:
        taken_BV = _at(q_BKV, last_B)
    own_BV = _at(p_BTV, kept_B)
    rejected_B1 = (kept_B < count_B)[:, None]
    rest_BV = jnp.maximum(own_BV - jnp.where(rejected_B1, taken_BV, 0), 0)
    # Equal distributions reject nothing but by rounding; then nothing is left of the difference.
    has_rest_B1 = jnp.sum(rest_BV, axis=-1, keepdims=True) > 0
    return kept_B, draw(jnp.where(has_rest_B1, rest_BV, own_BV), _at(next_BT, kept_B))


def _first_run(passes_BK: Array, count_B: Array) -> Array:
    """Return how many first drafts pass without a gap."""
    real_BK = jnp.arange(passes_BK.shape[1], dtype=jnp.int32) < count_B[:, None]
    return jnp.sum(jnp.cumprod(passes_BK & real_BK, axis=1, dtype=jnp.int32), 1, dtype=jnp.int32)


def _at(x_BT: Array, place_B: Array) -> Array:
    """Return each row's element at its place."""
    index = place_B.reshape(-1, *[1] * (x_BT.ndim - 1))
    return jnp.take_along_axis(x_BT, index, axis=1)[:, 0]
