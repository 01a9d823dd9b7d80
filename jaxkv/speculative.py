"""Speculative generation: cheap drafts, verified by the model several in one step.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkv import caches, programs
from jaxkv.caches import Cache
from jaxkv.drafting import (
    check_alone,
    check_cache,
    check_draft,
    check_k,
    check_layout,
    check_model,
)
from jaxkv.drafts import DraftModel, PromptLookup
from jaxkv.loop import Text
from jaxkv.model import Decoder, params_of
from jaxkv.mtp import stack_of
from jaxkv.planning import Plan
from jaxkv.processor_settings import Bias
from jaxkv.request import Request, check, device_arrays, new_cache
from jaxkv.results import Generated, collect, named, nothing_new, plan_logprobs
from jaxkv.rounds import run_rounds
from jaxkv.spec.stop import Decode, check_stops
from jaxkv.speculation import run
from jaxkv.stopping import Watch, take_back
from jaxkv.verification import Tally


@dataclass(frozen=True)
class Speculated:
    """What a request gave, and what became of its drafts.

    Of a row with P prompt and N new tokens, `forwarded_positions_B` is P + N - 1 + rolled back.
    What a stop string cut off counts as rolled back, and drafts among it as not accepted.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
        cache: The cache after the last forward, with `keep_cache`. It holds all tokens but the last
            new one.
        drafted_B: int32, drafted tokens that the model verified.
        accepted_B: int32, those of them that stand in the text.
        rolled_back_B: int32, positions that entered the cache and were taken back: rejected drafts,
            and of a row that ended with a draft this one and those after it.
        steps_B: int32, forwards of each row after its prompt's; each adds a token to the kept
            drafts.
        logprobs: See `Generated`, as for those that follow.
        top_ids: The likeliest ids at each new token's place.
        top_logprobs: Their log-probabilities.
        texts: With `stop`, each row's new text, up to its stop string.
        stopped: With `stop`, the string that ended each row, or None.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    length_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    cache: Cache | None
    drafted_B: np.ndarray
    accepted_B: np.ndarray
    rolled_back_B: np.ndarray
    steps_B: np.ndarray
    logprobs: list[np.ndarray] | None = None
    top_ids: list[np.ndarray] | None = None
    top_logprobs: list[np.ndarray] | None = None
    texts: list[str] | None = None
    stopped: list[str | None] | None = None


def speculate(
    model: Decoder,
    prompts: Any,
    *,
    draft: Decoder | PromptLookup | str,
    k: int,
    max_new_tokens: int | Sequence[int],
    mask_BT: Any = None,
    end_ids: int | Sequence[int] | None = (),
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seeds: int | Sequence[int] = 0,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    logit_bias: Bias | Sequence[Bias | None] | None = None,
    min_new_tokens: int | Sequence[int] = 0,
    stop: str | Sequence[str] = (),
    decode: Decode | None = None,
    logprobs: bool | int = False,
    capacity: int | None = None,
    layout: str = "contiguous",
    slack: int = 0,
    page_size: int | None = None,
    layout_options: Mapping[str, Any] | None = None,
    cache: Cache | None = None,
    consume: bool = False,
    keep_cache: bool = False,
) -> Speculated:
    """Return each prompt continued as `generate` would, in fewer steps of the model.

    Up to k drafted tokens of each row enter the model in one step beside its last token. A greedy
    row keeps those that are its likeliest tokens and adds the next one, so its ids are those of
    `generate`, whatever the drafts; a row that draws keeps them so that each token has the
    distribution that `generate` draws from (other draws of it, unless nothing is drafted). Each row
    keeps its own number and rolls back alone. A round in which no row has drafts is a plain step.

    Where two logits are nearer than rounding, a step of several tokens may choose the other.

    Args:
        model: In evaluation mode, without an encoder.
        prompts: See `generate`, as for `mask_BT`.
        draft: A smaller model with the same vocabulary, which reads the text into a cache of its
            own and drafts after the row's own temperature and filters; `PromptLookup`; or "mtp",
            the model's own module that predicts one token further, where it holds one.
        k: Drafts of a row and step at most. A row never drafts more than its budget leaves.
        max_new_tokens: See `generate`, as for all that are not named here.
        mask_BT: See `generate`.
        end_ids: A row ends at the first of them, wherever among its drafts.
        temperature: See `plan_sampling`, as for the four that follow.
        top_k: See `plan_sampling`.
        top_p: See `plan_sampling`.
        min_p: See `plan_sampling`.
        seeds: A row's draws follow from its own seed and its text.
        repetition_penalty: See `generate`, as for the four that follow: a token is judged by what
            the text with all kept drafts before it makes of the model's logits.
        presence_penalty: Of new tokens.
        frequency_penalty: Of new tokens, as often as they came.
        logit_bias: Added to the logits of the ids named.
        min_new_tokens: New tokens before any end token.
        stop: See `generate`: texts end where those of plain decoding do. Rounds then run in parts
            of 8 tokens and more, between which the host looks at the text.
        decode: See `generate`.
        logprobs: See `generate`.
        capacity: Tokens that a row can hold; drafts need no more than the text.
        layout: One that can take tokens back: not "sinks", nor "quantized" in the order "kivi".
        slack: Of a cache made here; at least k + 1 is taken.
        page_size: See `generate`.
        layout_options: See `generate`.
        cache: Earlier tokens; only with `PromptLookup`, which does not look into it. Its rings have
            a slack of at least k + 1.
        consume: See `generate`.
        keep_cache: Return the model's cache.

    Raises:
        RequestError: An argument is out of range; a draft model of another vocabulary.
        CapacityError: The request does not fit the cache or the draft model, or a step of k + 1
            tokens not the cache.
        Unsupported: The layout, or the model's, does not serve drafts.
        ShapeError: See `generate`.

    Cost: compiles a step of k + 1 tokens beside the one of one token. With rows of unlike lengths a
    step writes token by token.
    """
    check_alone(model)
    request = check(
        "speculate",
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        end_ids=end_ids,
        cache=cache,
        capacity=capacity,
        sampling={
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seeds": seeds,
        },
        processing={
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": logit_bias,
            "min_new_tokens": min_new_tokens,
        },
    )
    watch = Watch(check_stops("speculate", stop, decode))
    asked, top = plan_logprobs("speculate", logprobs, model.config.vocab_size)
    found = request.plan
    check_model(model, found)
    check_draft(model, draft, found, has_cache=cache is not None)
    check_k(k, found.capacity)
    if cache is None:
        check_layout(layout, layout_options or {})
    else:
        check_cache(cache, k)
    if not found.budget_B.any():
        none = nothing_new(request, cache if keep_cache else None, logprobs=asked, top=top)
        return _speculated(named(watch, none), [np.zeros_like(found.count_B) for _ in range(4)])
    is_own = cache is None
    if cache is None:
        cache = new_cache(
            model,
            request,
            slots=found.capacity if keep_cache else found.reach,
            layout=layout,
            slack=max(slack, k + 1),
            page_size=page_size,
            options=layout_options,
        )
    before = programs.PROGRAMS.traces
    text, cache, tally = _run(
        model,
        draft,
        request,
        cache,
        k=k,
        clean=is_own,
        donate=is_own or consume,
        kept=keep_cache,
        watch=watch,
        logprobs=asked,
        top=top,
    )
    traced = programs.PROGRAMS.traces - before
    return _collect(found, text, tally, traced, cache if keep_cache else None, watch)


def _run(
    model: Decoder,
    draft: Decoder | PromptLookup | str,
    request: Request,
    cache: Cache,
    *,
    k: int,
    clean: bool,
    donate: bool,
    kept: bool,
    watch: Watch,
    logprobs: bool,
    top: int,
) -> tuple[Text, Cache, Tally]:
    found, donated = request.plan, ("cache",) if donate else ()
    asked = params_of(model), *device_arrays(request), cache, _drafter(model, draft, found)
    sizes: dict[str, Any] = {
        "config": model.config,
        "lookup": draft if isinstance(draft, PromptLookup) else None,
        "k": k,
        "reach": found.reach,
        "fresh": not found.held_B.any(),
        "rectangular": found.rectangular,
        "clean": clean,
        "logprobs": logprobs,
        "top": top,
    }
    if watch.stops is None:
        text, cache, tally = programs.PROGRAMS.jitted(run, donate=donated)(*asked, **sizes)
    else:
        outlives = kept and cache.capacity > found.reach
        text, work, tally = run_rounds(*asked, watch, donate=donate and not outlives, **sizes)
        caches.check(work)
        held_B = jnp.asarray(found.held_B)
        cache = take_back(work, text, held_B, like=cache) if kept else work
    caches.check(cache)
    return text, cache, tally


def _drafter(
    model: Decoder, draft: Decoder | PromptLookup | str, found: Plan
) -> DraftModel | Cache | None:
    """Return what drafts with an empty cache: contiguous, since it is small."""
    if isinstance(draft, PromptLookup):
        return None
    config = draft.config if isinstance(draft, Decoder) else stack_of(model.config)
    slots = min(found.reach, config.max_positions)
    dtype = draft.dtype if isinstance(draft, Decoder) else model.dtype
    cache = caches.init(config, batch=found.batch, capacity=slots, dtype=dtype)
    return DraftModel(params_of(draft), cache, config) if isinstance(draft, Decoder) else cache


def _collect(
    found: Plan, text: Text, tally: Tally, compilations: int, cache: Cache | None, watch: Watch
) -> Speculated:
    told = (tally.drafted_B, tally.accepted_B, tally.rolled_back_B, tally.steps_B)
    # Copies: a view would keep the device's array alive with the result.
    counts = [np.array(count_B) for count_B in told]
    return _speculated(named(watch, collect(found, None, text, compilations, cache)), counts)


def _speculated(done: Generated, counts: list[np.ndarray]) -> Speculated:
    return Speculated(
        done.tokens,
        done.new_tokens,
        done.length_B,
        done.forwarded_positions_B,
        done.compilations,
        done.cache,
        *counts,
        logprobs=done.logprobs,
        top_ids=done.top_ids,
        top_logprobs=done.top_logprobs,
        texts=done.texts,
        stopped=done.stopped,
    )
