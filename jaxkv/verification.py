"""A verifying step: drafts that enter the model at once, what is kept of them, what is taken back.

Letters: B rows, K drafted tokens, T = K + 1 tokens of a verifying step, S slots of the text, V
vocabulary.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxkv import acceptance, caches, sampling
from jaxkv.block import Tap
from jaxkv.caches import Cache
from jaxkv.drafts import Drafts
from jaxkv.loop import Terms, Text, wanted
from jaxkv.model import Params, forward
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
        is_draft_BS: Which tokens of the texts were drafts, bool; None unless wanted.
    """

    drafted_B: Int[Array, " B"]
    accepted_B: Int[Array, " B"]
    rolled_back_B: Int[Array, " B"]
    steps_B: Int[Array, " B"]
    missed_B: Int[Array, " B"]
    pause_B: Int[Array, " B"]
    is_draft_BS: Bool[Array, "B S"] | None = None


def no_tally(batch: int, *, slots: int | None = None) -> Tally:
    """Return the tally before the first round.

    Args:
        batch: Rows.
        slots: Of the texts, where it is wanted which tokens were drafts.
    """
    marks_BS = None if slots is None else jnp.zeros((batch, slots), bool)
    return Tally(*(jnp.zeros(batch, jnp.int32) for _ in range(6)), is_draft_BS=marks_BS)


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
    begun_B = text.length_B
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
        is_draft_BS=_marked(tally.is_draft_BS, begun_B, accepted_B),
    )
    text = dataclasses.replace(text, forwarded_B=text.forwarded_B + taken_B)
    return text, _taken_back(after, cache.length_B + new_B), tally


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


def _marked(is_draft_BS: Array | None, from_B: Array, count_B: Array) -> Array | None:
    """Return the marks with those of as many drafts from a place of each row on, if any."""
    if is_draft_BS is None:
        return None
    place_BS = jnp.arange(is_draft_BS.shape[1], dtype=jnp.int32) - from_B[:, None]
    return is_draft_BS | ((place_BS >= 0) & (place_BS < count_B[:, None]))


def _taken_back(cache: Cache, length_B: Array) -> Cache:
    """Return the cache rolled back; as it is once a row was refused, since that clears the mark."""
    was_refused = is_refused(cache)
    back = caches.rollback(cache, length_B)
    marks, old = ((c.length_B, c.overflow_B, c.shared) for c in (back, cache))
    length_B, overflow_B, shared = jax.tree.map(partial(jnp.where, was_refused), old, marks)
    return dataclasses.replace(back, length_B=length_B, overflow_B=overflow_B, shared=shared)


def is_refused(cache: Cache) -> Bool[Array, ""]:
    """Return whether a row found no room: then no round may follow."""
    return jnp.any(cache.overflow_B > 0)
