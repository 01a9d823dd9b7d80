"""What speculative generation compiles: rounds that verify drafts, or make one plain step.

Letters: B rows, K drafted tokens, T = K + 1 tokens of a verifying step, V vocabulary.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxkv import acceptance, caches, sampling
from jaxkv.block import Tap
from jaxkv.caches import Cache
from jaxkv.drafts import DraftModel, Drafts, PromptLookup, draft_ahead, look_up, open_draft
from jaxkv.loop import Terms, Text, extend, prefill, start, wanted
from jaxkv.model import Params, forward
from jaxkv.mtp import MtpDraft, Stream, draft_mtp, open_mtp
from jaxkv.pytree import pytree
from jaxkv.sampling import TopTokens
from jaxkv.spec.config import ModelConfig
from jaxkv.stack import no_tap

JUDGING = 1
"""Which of a place's random numbers decides whether its draft is kept, see `sampling.uniform`."""


@pytree
class Tally:
    """What became of the drafts so far, all int32.

    Attributes:
        drafted_B: Drafts that entered the model.
        accepted_B: Those of them that stand in the text.
        rolled_back_B: Positions that the cache gave back.
        steps_B: Rounds in which the row took part: forwards after the prompt's.
        missed_B: Verifying steps in turn of which no draft was kept.
        pause_B: Rounds for which the row makes no drafts.
    """

    drafted_B: Int[Array, " B"]
    accepted_B: Int[Array, " B"]
    rolled_back_B: Int[Array, " B"]
    steps_B: Int[Array, " B"]
    missed_B: Int[Array, " B"]
    pause_B: Int[Array, " B"]


def no_tally(batch: int) -> Tally:
    """Return the tally of as many rows before the first round."""
    return Tally(*(jnp.zeros(batch, jnp.int32) for _ in dataclasses.fields(Tally)))  # pyright: ignore[reportArgumentType] `pytree` makes a dataclass


def run(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    logprobs: bool = False,
    top: int = 0,
) -> tuple[Text, Cache, Tally]:
    """Return the finished texts, the cache and the tally: prefill and rounds, in one function.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        terms: What each row wants.
        cache: A larger one than `reach` is narrowed.
        draft: The model that drafts, with an empty cache; or an empty one for the model's own
            module; None for a lookup.
        config: Static, as are all that follow.
        lookup: How the text is searched; None for a model or module.
        k: Drafts of a row and round at most.
        reach: Slots that a step reads.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    batch, width = ids_BT.shape
    room: dict[str, Any] = {"slots": max(reach + 1, width), "logprobs": logprobs, "top": top}
    text = start(ids_BT, count_B, terms.budget_B, **room)
    sizes: dict[str, Any] = {"config": config, "width": width, "reach": reach}
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "clean": clean}
    first = jnp.zeros((), jnp.int32)
    heard = Stream(config)
    tap = heard if isinstance(draft, Cache) else no_tap
    text, work = prefill(params, text, first, terms, cache, **sizes, **promises, tap=tap)
    # A row whose first token is its last one wants no drafts.
    read_B = jnp.where(terms.budget_B > 1, count_B, 0)
    how: dict[str, Any] = {"rectangular": rectangular}
    if isinstance(draft, DraftModel):
        draft = open_draft(draft, ids_BT, read_B, **how)
        own = draft.cache
    elif isinstance(draft, Cache):
        own = open_mtp(params, heard.heard_BTD, ids_BT, draft, read_B, config=config, **how)
        # As wide as what a verifying step leaves.
        wide_BTD = jnp.pad(own.stream_BTD, ((0, 0), (0, k), (0, 0)))
        own = dataclasses.replace(own, stream_BTD=wide_BTD)
    else:
        own = None
    model = draft if isinstance(draft, DraftModel) else None
    how = {"config": config, "lookup": lookup, "k": k}
    once = partial(_round, params, terms, model, **how)
    text, work, _, tally = jax.lax.while_loop(
        lambda state: jnp.any(state[0].active_B) & ~_is_refused(state[1]),
        lambda state: once(*state),
        (text, work, own, no_tally(batch)),
    )
    return text, caches.widen(work, cache), tally


def verify(
    params: Params,
    text: Text,
    terms: Terms,
    cache: Cache,
    drafts: Drafts,
    tally: Tally,
    *,
    config: ModelConfig,
    tap: Tap = no_tap,
) -> tuple[Text, Cache, Tally]:
    """Return the texts with each row's kept drafts and one token more, and the cache of just those.

    The last token of each active row and its drafts enter the model in one step; each row keeps its
    own number and rolls back alone. An end token among them is the last that counts.

    Args:
        params: The model's.
        text: Its last tokens are not in the cache yet.
        terms: What each row wants.
        cache: Holds all tokens of the active rows but the last.
        drafts: At most as many of a row as its budget has tokens after the next.
        tally: So far.
        config: Static.
        tap: See `forward`.
    """
    drafted_B = jnp.where(text.active_B, drafts.count_B, 0)
    taken_B = drafted_B + text.active_B.astype(jnp.int32)
    last_B1 = jnp.take_along_axis(text.tokens_BS, text.length_B[:, None] - 1, axis=1)
    ids_BT = jnp.concatenate([last_B1, drafts.ids_BK], axis=1)
    logits_BTV, after = forward(params, ids_BT, cache, taken_B, config=config, clean=True, tap=tap)
    assert after is not None  # forward returns a cache for a cache
    wanted_BTV = _wanted(logits_BTV, drafts, text, terms)
    kept_B, next_B = _judge(wanted_BTV, drafts, drafted_B, text, terms)
    text, new_B = _append(text, ids_BT, kept_B, next_B, terms, logits_BTV)
    accepted_B = jnp.minimum(kept_B, new_B)
    missed_B = jnp.where(accepted_B > 0, 0, tally.missed_B + (drafted_B > 0))
    pause_B = 1 << jnp.clip(missed_B - 1, 0, 16)
    tally = dataclasses.replace(
        tally,
        drafted_B=tally.drafted_B + drafted_B,
        accepted_B=tally.accepted_B + accepted_B,
        rolled_back_B=tally.rolled_back_B + taken_B - new_B,
        missed_B=missed_B,
        pause_B=jnp.where((drafted_B > 0) & (accepted_B == 0), pause_B, tally.pause_B),
    )
    text = dataclasses.replace(text, forwarded_B=text.forwarded_B + taken_B)
    return text, _taken_back(after, cache.length_B + new_B), tally


def _round(
    params: Params,
    terms: Terms,
    draft: DraftModel | None,
    text: Text,
    cache: Cache,
    own: Cache | MtpDraft | None,
    tally: Tally,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
) -> tuple[Text, Cache, Cache | MtpDraft | None, Tally]:
    """Return the state after drafting and one step; `own` is what whoever drafts has read."""
    left_B = jnp.where(text.active_B, terms.budget_B - text.new_B - 1, 0)
    want_B = jnp.clip(left_B, 0, k)
    if isinstance(own, MtpDraft):
        drafts, own = draft_mtp(params, own, text, terms, want_B, config=config, k=k)
    elif draft is not None and own is not None:
        draft = dataclasses.replace(draft, cache=own)
        drafts, draft = draft_ahead(draft, text, terms, want_B, k=k)
        own = draft.cache
    else:
        assert lookup is not None  # one of the two drafts
        drafts = look_up(text, jnp.where(tally.pause_B > 0, 0, want_B), k=k, lookup=lookup)
    steps_B, pause_B = tally.steps_B + text.active_B, jnp.maximum(tally.pause_B - 1, 0)
    tally = dataclasses.replace(tally, steps_B=steps_B, pause_B=pause_B)
    stream = own.stream_BTD if isinstance(own, MtpDraft) else None
    state = text, cache, tally, stream
    text, cache, tally, stream = _step(params, terms, drafts, *state, config=config)
    if lookup is not None:
        pause_B = jnp.minimum(tally.pause_B, lookup.longest_pause)
        tally = dataclasses.replace(tally, pause_B=pause_B)
    if isinstance(own, MtpDraft) and stream is not None:
        own = MtpDraft(own.cache, stream)
    elif isinstance(own, Cache):
        # Of drafts that were all kept the last was never fed, so there is nothing to give back.
        own = caches.rollback(own, jnp.minimum(own.length_B, text.length_B - 1))
    return text, cache, own, tally


def _step(
    params: Params,
    terms: Terms,
    drafts: Drafts,
    text: Text,
    cache: Cache,
    tally: Tally,
    stream_BTD: Array | None,
    *,
    config: ModelConfig,
) -> tuple[Text, Cache, Tally, Array | None]:
    """Return the state after one forward: K + 1 tokens wide if any row has drafts, else one.

    Two loops of at most one trip: a branch would copy the cache. The stream is that of a verifying
    step: behind a plain one no row goes on, or nobody asks for it.
    """
    has_drafts = jnp.any(drafts.count_B > 0)

    def verified(state: tuple[Any, ...]) -> tuple[Any, ...]:
        _, text, cache, tally, stream_BTD = state
        heard = Stream(config)
        tap = no_tap if stream_BTD is None else heard
        done = verify(params, text, terms, cache, drafts, tally, config=config, tap=tap)
        return jnp.zeros((), bool), *done, None if stream_BTD is None else heard.heard_BTD

    state = has_drafts, text, cache, tally, stream_BTD
    _, text, cache, tally, stream_BTD = jax.lax.while_loop(lambda state: state[0], verified, state)
    single = jnp.where(has_drafts, 0, 1).astype(jnp.int32)
    how = {"config": config, "rectangular": text.length_B.shape[0] == 1}
    text, cache = extend(params, text, terms, cache, single, **how)
    return text, cache, tally, stream_BTD


def _wanted(logits_BTV: Array, drafts: Drafts, text: Text, terms: Terms) -> Array:
    """Return what each place's token is taken from, all drafts before it kept."""
    if terms.processors is None:
        return logits_BTV
    row_B1 = jnp.arange(logits_BTV.shape[0], dtype=jnp.int32)[:, None]
    place_T = jnp.arange(logits_BTV.shape[1], dtype=jnp.int32)
    to_BK = text.length_B[:, None] + place_T[:-1]
    tokens_BS = text.tokens_BS.at[row_B1, to_BK].set(drafts.ids_BK, mode="drop")

    def one(logits_BV: Array, place: Array) -> Array:
        return wanted(logits_BV, terms, tokens_BS, text.length_B + place, text.new_B + place)

    return jax.vmap(one, (1, 0), 1)(logits_BTV, place_T)


def _judge(
    logits_BTV: Array, drafts: Drafts, count_B: Array, text: Text, terms: Terms
) -> tuple[Array, Array]:
    if terms.sampler is None:
        return acceptance.judge_greedy(logits_BTV, drafts.ids_BK, count_B)
    # A place that gets its token after the drafts draws as a plain step does there.
    seed_B, place_BT = terms.sampler.seed_B, (terms.held_B + text.length_B)[:, None]
    place_BT = place_BT + jnp.arange(logits_BTV.shape[1], dtype=jnp.int32)
    judged = jax.vmap(partial(sampling.uniform, stream=JUDGING), (None, 1), 1)
    drawn = jax.vmap(sampling.uniform, (None, 1), 1)
    p_BTV = acceptance.probabilities(logits_BTV, terms.sampler)
    accept_BK, next_BT = judged(seed_B, place_BT[:, :-1]), drawn(seed_B, place_BT)
    ids = drafts.q_BKV, drafts.ids_BK, count_B
    return acceptance.judge(p_BTV, *ids, accept_BK, next_BT)


def _append(
    text: Text, ids_BT: Array, kept_B: Array, next_B: Array, terms: Terms, logits_BTV: Array
) -> tuple[Text, Array]:
    """Return the texts with the kept drafts and the token after them, up to an end; how many."""
    row_B1 = jnp.arange(next_B.shape[0], dtype=jnp.int32)[:, None]
    place_T = jnp.arange(ids_BT.shape[1], dtype=jnp.int32)
    drafted_BT = jnp.roll(ids_BT, -1, axis=1)
    new_BT = jnp.where(place_T < kept_B[:, None], drafted_BT, next_B[:, None])
    ends_BT = jnp.any(new_BT[..., None] == terms.end_E, axis=-1) & (place_T <= kept_B[:, None])
    first_end_B = jnp.argmax(ends_BT, axis=1).astype(jnp.int32)
    has_ended_B = jnp.any(ends_BT, axis=1)
    new_B = jnp.where(has_ended_B, first_end_B, kept_B) + 1
    new_B = jnp.where(text.active_B, new_B, 0)
    to_BT = text.length_B[:, None] + place_T
    to_BT = jnp.where(place_T < new_B[:, None], to_BT, text.tokens_BS.shape[1])
    total_B = text.new_B + new_B

    def put(x: Array, at_places: Array) -> Array:
        return x.at[row_B1, to_BT].set(at_places, mode="drop")

    logprob_BS, top = text.logprob_BS, text.top
    if logprob_BS is not None:
        logprob_BS = put(logprob_BS, jax.vmap(sampling.logprob, 1, 1)(logits_BTV, new_BT))
    if top is not None:
        likeliest = partial(sampling.top_logprobs, top=top.id_BSA.shape[2])
        id_BTA, logprob_BTA = jax.vmap(likeliest, 1, 1)(logits_BTV)
        top = TopTokens(put(top.id_BSA, id_BTA), put(top.logprob_BSA, logprob_BTA))
    appended = dataclasses.replace(
        text,
        tokens_BS=put(text.tokens_BS, new_BT),
        logprob_BS=logprob_BS,
        top=top,
        length_B=text.length_B + new_B,
        new_B=total_B,
        active_B=text.active_B & ~has_ended_B & (total_B < terms.budget_B),
    )
    return appended, new_B


def _taken_back(cache: Cache, length_B: Array) -> Cache:
    """Return the cache rolled back; as it is once a row was refused, since that clears the mark."""
    is_refused = _is_refused(cache)
    back = caches.rollback(cache, length_B)
    marks, old = ((c.length_B, c.overflow_B, c.shared) for c in (back, cache))
    length_B, overflow_B, shared = jax.tree.map(partial(jnp.where, is_refused), old, marks)
    return dataclasses.replace(back, length_B=length_B, overflow_B=overflow_B, shared=shared)


def _is_refused(cache: Cache) -> Array:
    return jnp.any(cache.overflow_B > 0)
