"""Generation: prefill the prompt, then decode until every row has stopped; an eager loop.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jaxkv.spec.errors import RequestError
from torchkv import caches
from torchkv.caches import Cache
from torchkv.caches.prefix import Lease, PrefixStore
from torchkv.loop import Text, run
from torchkv.model import Decoder, params_of
from torchkv.planning import Plan
from torchkv.prefixed import abandoning, check_store, open_lease, whole_rows
from torchkv.request import Request, check, device_arrays, device_sources, new_cache


@dataclass(frozen=True)
class Generated:
    """What a request gave.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model; beside an
            encoder, its decoder.
        compilations: None, nothing is compiled.
        cache: The cache after the last forward, with `keep_cache`. It holds all tokens but the last
            new one.
        logprobs: With `logprobs`, float32 for each new id: the natural logarithm of its probability
            under the model's own distribution, before temperature and filters.
        reused_B: int32, prompt tokens of each row that a prefix store knew already.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    length_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    cache: Cache | None
    logprobs: list[np.ndarray] | None
    reused_B: np.ndarray


@torch.no_grad()
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
    logprobs: bool = False,
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
        logprobs: Whether to return the new tokens' log-probabilities.
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
    _check_uncached(cached=cached, cache=cache, keep_cache=keep_cache)
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
    )
    found = request.plan
    if not found.budget_B.any():
        return _nothing_new(found, cache if keep_cache else None, logprobs=logprobs)
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
        text, cache = _run(model, request, cache, clean=is_clean, logprobs=logprobs)
        result = _collect(request.plan, lease, text, cache if keep_cache else None)
        if store is not None and lease is not None and cache is not None:
            store.settle(lease, cache, result.tokens)
    return result


def _run(
    model: Decoder, request: Request, cache: Cache | None, *, clean: bool, logprobs: bool
) -> tuple[Text, Cache | None]:
    found = request.plan
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
    )
    if cache is not None:
        caches.check(cache)
    return text, cache


def _nothing_new(found: Plan, cache: Cache | None, *, logprobs: bool) -> Generated:
    counts = found.count_B.tolist()
    rows = [ids[:count] for ids, count in zip(found.ids_BT.tolist(), counts, strict=True)]
    none = [np.zeros(0, np.float32) for _ in rows] if logprobs else None
    nothing_B = np.zeros_like(found.count_B)
    return Generated(
        rows, [[] for _ in rows], found.count_B, nothing_B, None, cache, none, nothing_B
    )


def _collect(found: Plan, lease: Lease | None, text: Text, cache: Cache | None) -> Generated:
    lengths, counts = text.length_B.tolist(), found.count_B.tolist()
    rows = [ids[:n] for ids, n in zip(text.tokens_BS.tolist(), lengths, strict=True)]
    new = [row[count:] for row, count in zip(rows, counts, strict=True)]
    logprobs = None
    if text.logprob_BS is not None:
        each = zip(text.logprob_BS.cpu().numpy(), counts, lengths, strict=True)
        logprobs = [row[count:length].copy() for row, count, length in each]
    # Copies: a view would keep the tensor alive with the result.
    both = (text.length_B, text.forwarded_B)
    length_B, forwarded_B = (x_B.cpu().numpy().copy() for x_B in both)
    reused_B = np.zeros_like(found.count_B) if lease is None else lease.reused_B
    return Generated(
        whole_rows(lease, rows),
        new,
        length_B + reused_B,
        forwarded_B,
        None,
        cache,
        logprobs,
        reused_B,
    )


def _check_uncached(*, cached: bool, cache: Cache | None, keep_cache: bool) -> None:
    if not cached and (cache is not None or keep_cache):
        raise RequestError(
            "generate: cached=False keeps nothing. Leave out cache and keep_cache, or set "
            "cached=True."
        )
