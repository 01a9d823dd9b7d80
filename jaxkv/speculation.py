"""What speculative generation compiles: rounds that verify drafts, or make one plain step.

Letters: B rows, K drafted tokens, T prompt tokens with padding.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxkv import caches
from jaxkv.caches import Cache
from jaxkv.drafts import DraftModel, Drafts, PromptLookup, draft_ahead, look_up, open_draft
from jaxkv.loop import Terms, Text, extend, prefill, start
from jaxkv.model import Params
from jaxkv.mtp import MtpDraft, Stream, draft_mtp, open_mtp
from jaxkv.spec.config import ModelConfig
from jaxkv.stack import no_tap
from jaxkv.verification import Tally, is_refused, no_tally, verify

Own = Cache | MtpDraft | None
"""What whoever drafts has read: a draft model's cache, a module's state, nothing of a lookup."""


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
    sizes: dict[str, Any] = {"config": config, "k": k, "reach": reach}
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "clean": clean}
    told: dict[str, Any] = {"logprobs": logprobs, "top": top}
    asked = ids_BT, count_B, terms, cache, draft
    state = open_rounds(params, *asked, **sizes, **promises, **told)
    model = draft if isinstance(draft, DraftModel) else None
    text, work, _, tally = go_on(params, terms, model, *state, config=config, lookup=lookup, k=k)
    return text, caches.widen(work, cache), tally


def open_rounds(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    *,
    config: ModelConfig,
    k: int,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    logprobs: bool,
    top: int,
    marks: bool = False,
) -> tuple[Text, Cache, Own, Tally]:
    """Return the state before the first round: the prompts read, one new token in each row.

    Args:
        params: The model's.
        ids_BT: See `run`, as for all that are not named here.
        count_B: See `run`.
        terms: See `run`.
        cache: See `run`.
        draft: See `run`.
        config: See `run`.
        k: See `run`.
        reach: See `run`.
        fresh: See `run`.
        rectangular: See `run`.
        clean: See `run`.
        logprobs: See `run`.
        top: See `run`.
        marks: Whether the tally tells which tokens were drafts; static.
    """
    batch, width = ids_BT.shape
    slots = max(reach + 1, width)
    text = start(ids_BT, count_B, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    sizes: dict[str, Any] = {"config": config, "width": width, "reach": reach}
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "clean": clean}
    heard = Stream(config)
    tap = heard if isinstance(draft, Cache) else no_tap
    first = jnp.zeros((), jnp.int32)
    text, work = prefill(params, text, first, terms, cache, **sizes, **promises, tap=tap)
    # A row whose first token is its last one wants no drafts.
    read_B = jnp.where(terms.budget_B > 1, count_B, 0)
    own = None
    if isinstance(draft, DraftModel):
        own = open_draft(draft, ids_BT, read_B, rectangular=rectangular).cache
    elif isinstance(draft, Cache):
        read = params, heard.heard_BTD, ids_BT, draft, read_B
        own = open_mtp(*read, config=config, rectangular=rectangular)
        # As wide as what a verifying step leaves.
        wide_BTD = jnp.pad(own.stream_BTD, ((0, 0), (0, k), (0, 0)))
        own = dataclasses.replace(own, stream_BTD=wide_BTD)
    return text, work, own, no_tally(batch, slots=slots if marks else None)


def go_on(
    params: Params,
    terms: Terms,
    draft: DraftModel | None,
    text: Text,
    cache: Cache,
    own: Own,
    tally: Tally,
    steps: Int[Array, ""] | None = None,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
) -> tuple[Text, Cache, Own, Tally]:
    """Return the state after rounds: until all rows have stopped, or one has `steps` tokens more.

    Args:
        params: The model's.
        terms: What each row wants.
        draft: The model that drafts, whose own cache does not matter; None for another.
        text: Its last tokens are not in the cache yet.
        cache: Holds all tokens of the active rows but the last.
        own: What whoever drafts has read.
        tally: So far.
        steps: int32; None for no bound.
        config: Static, as are all that follow.
        lookup: How the text is searched; None for a model or module.
        k: Drafts of a row and round at most.
    """
    begun_B = text.new_B

    def goes_on(state: tuple[Any, ...]) -> Array:
        text, cache, _, _ = state
        wants = jnp.any(text.active_B) & ~is_refused(cache)
        return wants if steps is None else wants & (jnp.max(text.new_B - begun_B) < steps)

    once = partial(_round, params, terms, draft, config=config, lookup=lookup, k=k)
    return jax.lax.while_loop(goes_on, lambda state: once(*state), (text, cache, own, tally))


def _round(
    params: Params,
    terms: Terms,
    draft: DraftModel | None,
    text: Text,
    cache: Cache,
    own: Own,
    tally: Tally,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
) -> tuple[Text, Cache, Own, Tally]:
    """Return the state after drafting and one step."""
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
