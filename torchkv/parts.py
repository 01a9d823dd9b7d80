"""A request in parts: prefill in chunks, then some tokens at a time, in an eager loop.

Between two of them the host can look at the texts.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jaxkv.spec.config import ModelConfig
from torchkv import caches
from torchkv.caches import Cache
from torchkv.loop import Terms, Text, extend, prefill, read_sources, start
from torchkv.model import Decoder, Params, params_of
from torchkv.request import Request, device_arrays, device_sources
from torchkv.stopping import Watch

# Tokens between two looks of the host, unless a caller says otherwise.
STEPS = 8
Part = tuple[int, Text, Cache]
"""Prompt tokens in the cache, the texts, the cache."""


def parts(
    model: Decoder,
    request: Request,
    open_cache: Callable[[], Cache],
    *,
    clean: bool,
    steps: int,
    chunk: int,
    watch: Watch,
    logprobs: bool = False,
    top: int = 0,
) -> Iterator[Part]:
    """Yield after every piece how many prompt tokens are in the cache, texts and cache.

    Args:
        model: The decoder.
        request: What is asked of it.
        open_cache: Called once, when there is something to do: the cache.
        clean: Whether the cache's unused slots hold finite numbers.
        steps: Tokens of each row at a time, at most.
        chunk: Prompt tokens at a time, at most.
        watch: Which rows go no further, as of the newest part that it has seen.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    found = request.plan
    if not found.budget_B.any():
        return
    params = params_of(model)
    ids_BT, count_B, terms = device_arrays(request, model.embed.device)
    longest = int(found.count_B[found.budget_B > 0].max())
    width = min(ids_BT.shape[1], chunk)
    starts = range(0, longest, width)
    slots = max(found.reach + 1, ids_BT.shape[1], len(starts) * width)
    text = start(ids_BT, count_B, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    cache = open_cache()
    if (sources := device_sources(request, model.embed.device)) is not None:
        cache = read_sources(params, sources, cache, config=model.config)
    for at in starts:
        is_first = at == 0
        text, cache = prefill(
            params,
            text,
            torch.tensor(at, dtype=torch.int32, device=ids_BT.device),
            terms,
            cache,
            config=model.config,
            width=width,
            reach=found.reach,
            fresh=is_first and not found.held_B.any(),
            rectangular=found.rectangular,
            clean=clean or not is_first,
        )
        yield min(at + width, longest), text, cache
    promises = {"config": model.config, "rectangular": found.rectangular}
    later = onward(params, (text, cache), terms, watch, steps=steps, **promises)
    for text, cache in later:
        yield longest, text, cache
    caches.check(cache)


def onward(
    params: Params,
    state: tuple[Text, Cache],
    terms: Terms,
    watch: Watch,
    *,
    config: ModelConfig,
    rectangular: bool,
    steps: int = STEPS,
) -> Iterator[tuple[Text, Cache]]:
    """Yield texts and cache after every `steps` tokens, until no row wants another.

    Args:
        params: See `loop.extend`, as for all that are not named here.
        state: Texts and cache after the prefill; the cache is changed in place.
        terms: See `loop.extend`.
        watch: See `parts`.
        config: See `loop.extend`.
        rectangular: See `loop.extend`.
        steps: Tokens of each row at a time, at most.
    """
    promises: dict[str, Any] = {"config": config, "rectangular": rectangular}
    text, cache = watch.halt(state[0]), state[1]
    while bool(text.active_B.any()):
        text, cache = extend(
            params, text, terms, cache, torch.tensor(steps, dtype=torch.int32), **promises
        )
        yield text, cache
        text = watch.halt(text)


def run_until(
    model: Decoder,
    request: Request,
    open_cache: Callable[[], Cache],
    watch: Watch,
    *,
    clean: bool,
    logprobs: bool,
    top: int,
) -> tuple[Text, Cache]:
    """Return the finished texts without what a stop string cut off, and the cache with it.

    Args:
        model: The decoder.
        request: What is asked of it, with a budget.
        open_cache: See `parts`.
        watch: Has seen the whole texts afterwards.
        clean: Whether the cache's unused slots hold finite numbers.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    part = None
    each = parts(
        model,
        request,
        open_cache,
        clean=clean,
        steps=STEPS,
        chunk=request.plan.ids_BT.shape[1],
        watch=watch,
        logprobs=logprobs,
        top=top,
    )
    for part in each:
        watch.look(part[1])
    assert part is not None  # a request with a budget has a part
    return watch.cut(part[1]), part[2]
