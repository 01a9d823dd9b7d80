"""Generation: prefill the prompt, then decode until every row has stopped; an eager loop.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Decode, check_stops
from torchkv import caches
from torchkv.caches import Cache
from torchkv.caches.prefix import PrefixStore
from torchkv.loop import Text, run
from torchkv.model import Decoder, params_of
from torchkv.parts import run_until
from torchkv.prefixed import abandoning, check_store, open_lease
from torchkv.processor_settings import Bias
from torchkv.request import Request, check, device_arrays, device_sources, new_cache
from torchkv.results import Generated, collect, named, nothing_new, plan_logprobs
from torchkv.stopping import Watch, take_back


def generate(
    model: Decoder,
    prompts: Any = None,
    *,
    max_new_tokens: int | Sequence[int],
    mask_BT: Any = None,
    encoder: Any = None,
    encoder_mask_BE: Any = None,
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
    cached: bool = True,
    cache: Cache | None = None,
    consume: bool = False,
    keep_cache: bool = False,
    store: PrefixStore | None = None,
    adapter: str = "",
    tenant: str = "",
) -> Generated:
    """Return each prompt continued by the most likely tokens, or by drawn ones.

    A row of a ragged batch gets the same ids as alone. No forward is computed whose result is not
    used: with a cache a row of P prompt and N new tokens forwards P + N - 1 positions.

    Args:
        model: In evaluation mode.
        prompts: One sequence of ids a row; or an array [B, T] with `mask_BT`. Of a model with an
            encoder the decoder's; None then starts each row with the config's start ids.
        max_new_tokens: Budget, for all rows or one a row. 0 returns the prompt without touching the
            model.
        mask_BT: Which ids of an array are real; padding may stand on either side.
        encoder: For a model with an encoder, one sequence of ids a row; or an array [B, E] with
            `encoder_mask_BE`. It reads them once, in the same program.
        encoder_mask_BE: Which ids of such an array are real.
        end_ids: Tokens that end a row, any of them; the row's result includes it.
        temperature: 0 is greedy. This and the four that follow are one number for all rows or one a
            row, applied in this order; see `plan_sampling`.
        top_k: How many of the likeliest tokens may be drawn; None for all.
        top_p: How much probability the tokens that may be drawn have together at most.
        min_p: The least probability of such a token, as a share of the largest.
        seeds: A row's draws follow from its own seed and each token's place in its text, so they do
            not depend on other rows, and a continued cache draws as one long run.
        repetition_penalty: Of tokens of the text so far. This and the four that follow change each
            row's logits before it takes a token, greedy or drawn, before temperature and filters;
            see `plan_processors`. What counts is the text that this call sees, prompt and new
            tokens, not what `cache` held before; padding never does. Other values cost no
            compilation.
        presence_penalty: Of new tokens.
        frequency_penalty: Of new tokens, as often as they came.
        logit_bias: Added to the logits of the ids named; one mapping for all rows or one a row.
        min_new_tokens: New tokens before any end token.
        stop: Strings that end a row. The result ends before the one that is complete first: ids
            whose text reaches into it are cut off. Runs the programs of `stream`, 8 tokens at a
            time, between which the host looks at the text.
        decode: New ids -> text, for `stop`; a tokenizer's.
        logprobs: Whether to return the new tokens' log-probabilities; a number N from 1 to V also
            returns the N likeliest tokens at each place.
        capacity: Tokens that a row can hold; by default what the request needs.
        layout: Of a cache made here: "contiguous", "paged", or "window" for rings in the layers
            that have a window; "quantized" and "sinks" change the result, see docs/choosing.md.
        slack: Of a cache made here, see `caches.init`.
        page_size: Of a paged cache made here, see `caches.init`; None is the layout's own.
        layout_options: Of a cache made here, what its layout alone understands: `bits` and others
            of "quantized", `sinks` and `window` of "sinks"; see `caches.init`.
        cached: False recomputes the whole text for every token: the comparison that shows what a
            cache saves.
        cache: Earlier tokens to continue from. It still answers as before afterwards, unless
            consumed.
        consume: Write on in the buffers of `cache`, which must not be used again. Saves a copy.
        keep_cache: Return the cache.
        store: Where prefixes of earlier prompts and texts are looked up, and those of this request
            kept. It brings the cache; results are those of a request without it.
        adapter: What else changes the model's function, in the caller's words; see `PrefixStore`.
        tenant: Whose texts may be looked up: the caller's salt.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range; see `plan` and
            `plan_sampling`. Or the cache was consumed.
        CapacityError: The request does not fit; see `plan`.
        ShapeError: The prompts or the cache do not fit the model.
    """
    _check_uncached(cached=cached, cache=cache, keep_cache=keep_cache, stop=stop)
    check_store(
        "generate",
        model,
        store,
        adapter=adapter,
        tenant=tenant,
        cache=(cache, None),
        keep_cache=(keep_cache, False),
        cached=(cached, True),
        capacity=(capacity, None),
        layout=(layout, "contiguous"),
        slack=(slack, 0),
        page_size=(page_size, None),
        layout_options=(layout_options, None),
    )
    request = check(
        "generate",
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        encoder=encoder,
        encoder_mask_BE=encoder_mask_BE,
        end_ids=end_ids,
        cache=cache,
        capacity=capacity if store is None else store.capacity,
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
    stops = check_stops("generate", stop, decode)
    watch = Watch(stops)
    asked, top = plan_logprobs("generate", logprobs, model.config.vocab_size)
    found = request.plan
    if not found.budget_B.any():
        return named(
            watch, nothing_new(request, cache if keep_cache else None, logprobs=asked, top=top)
        )
    is_clean, lease = cache is None, None
    if store is not None:
        lease, request = open_lease(store, model, request, adapter=adapter, tenant=tenant)
        cache = lease.cache
    elif cache is not None and not consume:
        cache = caches.fork(cache)
    elif cached and cache is None:
        slots = found.capacity if keep_cache else found.reach
        cache = new_cache(
            model,
            request,
            slots=slots,
            layout=layout,
            slack=slack,
            page_size=page_size,
            options=layout_options,
        )
    with abandoning(store, lease):
        text, cache = _run(
            model,
            request,
            cache,
            watch,
            clean=is_clean,
            kept=keep_cache or store is not None,
            logprobs=asked,
            top=top,
        )
        result = collect(request.plan, lease, text, None, cache if keep_cache else None)
        if store is not None and lease is not None and cache is not None:
            store.settle(lease, cache, result.tokens)
    return named(watch, result)


def _run(
    model: Decoder,
    request: Request,
    cache: Cache | None,
    watch: Watch,
    *,
    clean: bool,
    kept: bool,
    logprobs: bool,
    top: int,
) -> tuple[Text, Cache | None]:
    found = request.plan
    if watch.stops is not None and cache is not None:
        ready = cache
        carried = {"clean": clean, "logprobs": logprobs, "top": top}
        text, work = run_until(model, request, lambda: ready, watch, **carried)
        held_B = torch.tensor(found.held_B, device=text.length_B.device)
        return text, take_back(work, text, held_B, like=cache) if kept else None
    text, cache = run(
        params_of(model),
        *device_arrays(request, model.embed.device),
        cache,
        device_sources(request, model.embed.device),
        config=model.config,
        reach=found.reach,
        fresh=not found.held_B.any(),
        rectangular=found.rectangular,
        clean=clean,
        logprobs=logprobs,
        top=top,
    )
    if cache is not None:
        caches.check(cache)
    return text, cache


def _check_uncached(*, cached: bool, cache: Cache | None, keep_cache: bool, stop: Any) -> None:
    if not cached and stop:
        raise RequestError(
            f"generate: stop is {stop!r} and cached False, expected a cache to go on from after "
            "the text was looked at. Leave out stop, or set cached=True."
        )
    if not cached and (cache is not None or keep_cache):
        raise RequestError(
            "generate: cached=False keeps nothing. Leave out cache and keep_cache, or set "
            "cached=True."
        )
