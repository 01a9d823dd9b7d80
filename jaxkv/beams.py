"""What beam search compiles: every prompt once, then steps of all its beams.

Definitions are those of transformers 5.24, generation/utils.py (`_beam_search`): of a row's J beams
times V continuations the J likeliest that do not end go on; those among the J likeliest that end
compete, by score, with the texts that ended before. A score is the sum of the new tokens' natural
log-probabilities over the number of new tokens to the power of the length penalty. Prompts do not
count; an end token does. Processors change the log-probabilities, as there: their sums need not be
those of a distribution.

Letters: B rows, J beams of a row, C beams of all rows, one after the other (C = B*J), T prompt
tokens with padding, S new tokens at most, E end tokens (of an encoder's text: its tokens), M
texts or continuations among which the best are chosen, V vocabulary.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import caches
from jaxkv.beam_logprobs import Told, join, nothing_told, take, tell
from jaxkv.branching import Form
from jaxkv.caches import Cache
from jaxkv.encoder import encode
from jaxkv.loop import Sources, Terms
from jaxkv.model import Params, forward
from jaxkv.processors import process
from jaxkv.pytree import pytree
from jaxkv.spec.config import ModelConfig


@pytree
class Goal:
    """What counts as better, and when a row has found enough; all traced.

    Attributes:
        length_penalty: The power of a text's length that its sum is divided by, in the dtype of
            scores.
        is_eager: A row stops as soon as J of its texts have ended.
        is_patient: It goes on while a beam could beat the worst of them at any length allowed;
            otherwise, while one would at its present length.
    """

    length_penalty: Float[Array, ""]
    is_eager: Bool[Array, ""]
    is_patient: Bool[Array, ""]


@pytree
class Beams:
    """The search's state.

    Attributes:
        token_BJS: int32, new tokens of the beams that go on, the likeliest first.
        sum_BJ: Their log-probabilities' sums; -inf for a beam that has not begun.
        ended_BJS: int32, new tokens of the best texts that have ended, the best first.
        score_BJ: Their scores; -inf where none has ended yet.
        length_BJ: int32, their new tokens.
        from_C: int32, the line of the cache that each beam continues.
        active_B: Rows that go on.
        new: int32, new tokens of every beam of an active row.
        forwarded_B: int32, positions that entered the model, of all beams.
        told: Log-probabilities of the beams' tokens; None unless wanted.
        ended_told: Of the ended texts'.
    """

    token_BJS: Int[Array, "B J S"]
    sum_BJ: Float[Array, "B J"]
    ended_BJS: Int[Array, "B J S"]
    score_BJ: Float[Array, "B J"]
    length_BJ: Int[Array, "B J"]
    from_C: Int[Array, " C"]
    active_B: Bool[Array, " B"]
    new: Int[Array, ""]
    forwarded_B: Int[Array, " B"]
    told: Told | None = None
    ended_told: Told | None = None


def search(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    goal: Goal,
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    form: Form,
    beams: int,
    slots: int,
    rectangular: bool,
    logprobs: bool = False,
    top: int = 0,
) -> tuple[Beams, Cache]:
    """Return the finished search and its cache: prefill and loop in one traced function.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row.
        terms: Budgets, of at least one token, end tokens and processors; nothing is drawn.
        goal: What is searched for.
        sources: What the encoder reads, once a prompt; None without one.
        config: Static, as are all that follow.
        form: Of the cache, one row a prompt.
        beams: Of each row; at most as many as tokens that do not end a text.
        slots: New tokens that a beam has room for: the largest budget, or more.
        rectangular: Whether all prompts have one length.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    asked = params, ids_BT, count_B, sources
    how: dict[str, Any] = {"config": config, "rectangular": rectangular}
    told: dict[str, Any] = {"logprobs": logprobs, "top": top}
    sizes: dict[str, Any] = {"form": form, "beams": beams, "slots": slots}
    state, cache, logits_CV = open_search(*asked, **sizes, **how, **told)
    given = {"prompts": (ids_BT, count_B), "terms": terms, "goal": goal}
    state = choose(state, logits_CV, **given)

    def step(state: Beams, cache: Cache) -> tuple[Beams, Cache]:
        state, cache, logits_CV = feed(params, state, cache, **how)
        return choose(state, logits_CV, **given), cache

    return jax.lax.while_loop(
        lambda both: jnp.any(both[0].active_B), lambda both: step(*both), (state, cache)
    )


def open_search(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    form: Form,
    beams: int,
    slots: int,
    rectangular: bool,
    logprobs: bool,
    top: int,
) -> tuple[Beams, Cache, Float[Array, "C V"]]:
    """Return the search before its first choice, all beams' cache, the logits of the first tokens.

    Args:
        params: See `search`, as for all others.
        ids_BT: See `search`.
        count_B: See `search`.
        sources: See `search`.
        config: See `search`.
        form: See `search`.
        beams: See `search`.
        slots: See `search`.
        rectangular: See `search`.
        logprobs: See `search`.
        top: See `search`.
    """
    cache = form.make(config)
    if sources is not None:
        cache = caches.fill(cache, encode(params, *sources, config=config))
    promises = {"config": config, "last_only": True, "rectangular": rectangular, "clean": True}
    logits_B1V, after = forward(params, ids_BT, cache, count_B, fresh=True, **promises)
    assert after is not None  # forward returns a cache for a cache
    logits_CV = jnp.repeat(logits_B1V[:, 0], beams, axis=0)
    told = nothing_told(len(count_B), beams, slots, top=top) if logprobs else None
    dtype = jnp.promote_types(logits_CV.dtype, jnp.float32)
    state = start(count_B, beams=beams, slots=slots, dtype=dtype, told=told)
    return state, caches.spread(after, beams), logits_CV


def feed(
    params: Params, state: Beams, cache: Cache, *, config: ModelConfig, rectangular: bool
) -> tuple[Beams, Cache, Float[Array, "C V"]]:
    """Return the search, the cache with the last token of each active row's beams, their logits.

    Args:
        params: The model's.
        state: After a choice.
        cache: Of all beams, as before it.
        config: Static, as is what follows.
        rectangular: Whether all prompts have one length.
    """
    beams = state.sum_BJ.shape[1]
    # Reordered before a forward, not after: the last choice moves nothing.
    cache = caches.gather(cache, state.from_C) if beams > 1 else cache
    one_C = jnp.repeat(state.active_B.astype(jnp.int32), beams)
    last_C1 = state.token_BJS[:, :, state.new - 1].reshape(-1, 1)
    promises = {"config": config, "last_only": True, "rectangular": rectangular, "clean": True}
    logits_C1V, after = forward(params, last_C1, cache, one_C, **promises)
    assert after is not None  # forward returns a cache for a cache
    forwarded_B = state.forwarded_B + beams * state.active_B.astype(jnp.int32)
    return dataclasses.replace(state, forwarded_B=forwarded_B), after, logits_C1V[:, 0]


def start(
    count_B: Int[Array, " B"], *, beams: int, slots: int, dtype: Any, told: Told | None = None
) -> Beams:
    """Return the search before its first choice, for which all beams of a row see the same logits.

    Args:
        count_B: int32, prompt tokens of each row, all of which have entered the model.
        beams: Of each row.
        slots: New tokens that a beam has room for.
        dtype: Of sums and scores.
        told: Room for log-probabilities; None unless wanted.
    """
    batch = count_B.shape[0]
    # One beam has begun; the others are copies of it that must not double its continuations.
    begun_J = jnp.arange(beams) == 0
    none = jnp.full((batch, beams), -jnp.inf, dtype)
    return Beams(
        token_BJS=jnp.zeros((batch, beams, slots), jnp.int32),
        sum_BJ=jnp.where(begun_J, jnp.zeros((), dtype), none),
        ended_BJS=jnp.zeros((batch, beams, slots), jnp.int32),
        score_BJ=none,
        length_BJ=jnp.zeros((batch, beams), jnp.int32),
        from_C=jnp.arange(batch * beams, dtype=jnp.int32),
        active_B=jnp.ones((batch,), bool),
        new=jnp.zeros((), jnp.int32),
        forwarded_B=count_B,
        told=told,
        ended_told=told,
    )


def choose(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    hit_BM: Int[Array, "B M"] | None = None,
    *,
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    goal: Goal,
) -> Beams:
    """Return the search with one more token in each beam of the active rows.

    Args:
        state: Before it.
        logits_CV: The model's for each beam's next token.
        hit_BM: int32, continuations that end a text beside those by an end token, as numbers beam *
            V + token; J * V for none. None for none at all.
        prompts: int32 ids from the left and how many of each row count, for the processors.
        terms: Budgets, end tokens and processors.
        goal: What is searched for.

    Cost: passes twice over the J*V continuations of a row.
    """
    (batch, beams), new = state.sum_BJ.shape, state.new + 1
    sum_BJV, logprob_BJV = _sums(state, logits_CV, prompts, terms)
    ends_BJV = _endings(sum_BJV, hit_BM, terms)
    # Of the scores' own dtype: a bare -inf is a float64 constant when x64 is on.
    never = jnp.array(-jnp.inf, sum_BJV.dtype)
    best, going = (
        _best(x_BJV, state, logprob_BJV) for x_BJV in (sum_BJV, jnp.where(ends_BJV, never, sum_BJV))
    )
    is_last_B1 = (new >= terms.budget_B)[:, None]
    ends_BJ = jnp.take_along_axis(ends_BJV.reshape(batch, -1), best.flat_BJ, axis=1)
    stops_BJ = (ends_BJ | is_last_B1) & state.active_B[:, None]
    length = new.astype(state.score_BJ.dtype)
    score_BJ = jnp.where(stops_BJ, best.sum_BJ / length**goal.length_penalty, never)
    keep = partial(_where_active, state.active_B)
    row_BJ = jnp.arange(batch * beams, dtype=jnp.int32).reshape(batch, beams)
    from_BJ = keep(row_BJ[:, :1] + going.beam_BJ, row_BJ)
    after = dataclasses.replace(
        _merge(state, best, score_BJ, new),
        token_BJS=keep(going.token_BJS, state.token_BJS),
        sum_BJ=keep(going.sum_BJ, state.sum_BJ),
        told=jax.tree.map(keep, going.told, state.told),
        from_C=from_BJ.reshape(-1),
        active_B=state.active_B & ~is_last_B1[:, 0],
        new=new,
    )
    goes_on_B = _goes_on(after, terms=terms, goal=goal)
    return dataclasses.replace(after, active_B=after.active_B & goes_on_B)


def likeliest(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    *,
    most: int,
) -> tuple[Float[Array, "B M"], Int[Array, "B M"]]:
    """Return sums and numbers (beam * V + token, int32) of each row's likeliest continuations.

    Args:
        state: See `choose`, as for all but the last.
        logits_CV: See `choose`.
        prompts: See `choose`.
        terms: See `choose`.
        most: M, static.
    """
    sum_BJV, _ = _sums(state, logits_CV, prompts, terms)
    sum_BM, flat_BM = jax.lax.top_k(sum_BJV.reshape(len(sum_BJV), -1), most)
    return sum_BM, flat_BM.astype(jnp.int32)


def _sums(
    state: Beams, logits_CV: Array, prompts: tuple[Array, Array], terms: Terms
) -> tuple[Array, Array]:
    """Return what each continuation's sum would be, and its token's own log-probability."""
    logprob_CV = jax.nn.log_softmax(logits_CV.astype(state.sum_BJ.dtype), axis=-1)
    shape = (*state.sum_BJ.shape, logits_CV.shape[1])
    wanted_BJV = _processed(logprob_CV, state, prompts, terms).reshape(shape)
    return state.sum_BJ[:, :, None] + wanted_BJV, logprob_CV.reshape(shape)


def _endings(sum_BJV: Array, hit_BM: Array | None, terms: Terms) -> Array:
    """Return which continuations end a text."""
    batch, _, vocabulary = sum_BJV.shape
    # -1 stands for no end token: taken as it is, it would count from the vocabulary's end.
    end_E = jnp.where(terms.end_E < 0, vocabulary, terms.end_E)
    ends_V = jnp.zeros((vocabulary,), bool).at[end_E].set(True, mode="drop")
    ends_BJV = jnp.broadcast_to(ends_V, sum_BJV.shape)
    if hit_BM is None:
        return ends_BJV
    row_B1 = jnp.arange(batch, dtype=jnp.int32)[:, None]
    hits_BF = ends_BJV.reshape(batch, -1).at[row_B1, hit_BM].set(True, mode="drop")
    return hits_BF.reshape(sum_BJV.shape)


def _processed(
    logprob_CV: Array, state: Beams, prompts: tuple[Array, Array], terms: Terms
) -> Array:
    """Return the log-probabilities as each beam's own text, prompt and new, changes them."""
    if terms.processors is None:
        return logprob_CV
    _, beams, slots = state.token_BJS.shape
    each = partial(jnp.repeat, repeats=beams, axis=0)
    prompt_CT, count_C = map(each, prompts)
    width = prompt_CT.shape[1]
    token_CW = jnp.concatenate([prompt_CT, state.token_BJS.reshape(-1, slots)], axis=1)
    place_W = jnp.arange(width + slots, dtype=jnp.int32)
    # New tokens follow the prompt's last one, wherever its padding ends.
    from_CW = jnp.where(place_W < count_C[:, None], place_W, place_W - count_C[:, None] + width)
    text_CW = jnp.take_along_axis(token_CW, jnp.minimum(from_CW, width + slots - 1), axis=1)
    new_C = jnp.full_like(count_C, state.new)
    own = jax.tree.map(each, terms.processors)
    return process(logprob_CV, own, text_CW, count_C + state.new, new_C, terms.end_E)


@pytree
class _Chosen:
    """The J best continuations: their numbers, texts, sums, and the beams they continue."""

    flat_BJ: Array
    token_BJS: Array
    sum_BJ: Array
    beam_BJ: Array
    told: Told | None


def _best(sum_BJV: Array, state: Beams, logprob_BJV: Array) -> _Chosen:
    batch, beams, vocabulary = sum_BJV.shape
    sum_BJ, flat_BJ = jax.lax.top_k(sum_BJV.reshape(batch, beams * vocabulary), beams)
    flat_BJ = flat_BJ.astype(jnp.int32)
    beam_BJ, last_BJ = flat_BJ // vocabulary, flat_BJ % vocabulary
    token_BJS = jnp.take_along_axis(state.token_BJS, beam_BJ[:, :, None], axis=1)
    token_BJS = token_BJS.at[:, :, state.new].set(last_BJ)
    told = state.told and tell(state.told, logprob_BJV, beam_BJ, last_BJ, state.new)
    return _Chosen(flat_BJ, token_BJS, sum_BJ, beam_BJ, told)


def _merge(state: Beams, best: _Chosen, score_BJ: Array, new: Array) -> Beams:
    """Return the search with the J best of the texts that have ended: of before, and given."""
    score_BM = jnp.concatenate([state.score_BJ, score_BJ], axis=1)
    best_BJ, place_BJ = jax.lax.top_k(score_BM, score_BJ.shape[1])
    token_BMS = jnp.concatenate([state.ended_BJS, best.token_BJS], axis=1)
    length_BM = jnp.concatenate([state.length_BJ, jnp.full_like(state.length_BJ, new)], axis=1)
    told = None
    if state.ended_told is not None and best.told is not None:
        told = take(join(state.ended_told, best.told), place_BJ)
    return dataclasses.replace(
        state,
        ended_BJS=jnp.take_along_axis(token_BMS, place_BJ[:, :, None], axis=1),
        score_BJ=best_BJ,
        length_BJ=jnp.take_along_axis(length_BM, place_BJ, axis=1),
        ended_told=told,
    )


def _goes_on(state: Beams, *, terms: Terms, goal: Goal) -> Array:
    """Return which rows could still find a better text, or have not found J."""
    dtype = state.score_BJ.dtype
    is_full_B = jnp.all(state.score_BJ > -jnp.inf, axis=1)
    looks_ahead = goal.is_patient & (goal.length_penalty > 0)
    length_B = jnp.where(looks_ahead, terms.budget_B, state.new).astype(dtype)
    hope_B = state.sum_BJ[:, 0] / length_B**goal.length_penalty
    can_improve_B = hope_B > state.score_BJ[:, -1]
    return ~is_full_B | (can_improve_B & ~goal.is_eager)


def _where_active(active_B: Array, new: Array, old: Array) -> Array:
    return jnp.where(active_B.reshape(-1, *[1] * (new.ndim - 1)), new, old)
