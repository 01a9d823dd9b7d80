"""Greedy generation: prefill the prompt, then decode until every row has stopped; an eager loop.

Letters: B rows, T prompt tokens with padding, S slots of the text, E end tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, ShapeError
from torchkv import caches, sampling
from torchkv.caches import Cache
from torchkv.model import Decoder, Params, forward, params_of
from torchkv.planning import Plan, plan


@dataclass(frozen=True)
class Generated:
    """What a request gave.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model.
        compilations: None, nothing is compiled.
        cache: The cache after the last forward, with `keep_cache`. It holds all tokens but the last
            new one.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    length_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    cache: Cache | None


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Any,
    *,
    max_new_tokens: int | Sequence[int],
    mask_BT: Any = None,
    end_ids: Sequence[int] = (),
    capacity: int | None = None,
    layout: str = "contiguous",
    slack: int = 0,
    page_size: int | None = None,
    cached: bool = True,
    cache: Cache | None = None,
    consume: bool = False,
    keep_cache: bool = False,
) -> Generated:
    """Return each prompt continued by the most likely tokens.

    A row of a ragged batch gets the same ids as alone. No forward is computed whose result is not
    used: with a cache a row of P prompt and N new tokens forwards P + N - 1 positions.

    Args:
        model: In evaluation mode.
        prompts: One sequence of ids a row; or an array [B, T] with `mask_BT`.
        max_new_tokens: Budget, for all rows or one a row. 0 returns the prompt without touching the
            model.
        mask_BT: Which ids of an array are real; padding may stand on either side.
        end_ids: Tokens that end a row, any of them; the row's result includes it.
        capacity: Tokens that a row can hold; by default what the request needs.
        layout: Of a cache made here: "contiguous", "paged", or "window" for rings in the layers
            that have a window.
        slack: Of a cache made here, see `caches.init`.
        page_size: Of a paged cache made here, see `caches.init`; None is the layout's own.
        cached: False recomputes the whole text for every token: the comparison that shows what a
            cache saves.
        cache: Earlier tokens to continue from. It still answers as before afterwards, unless
            consumed.
        consume: Write on in the buffers of `cache`, which must not be used again. Saves a copy.
        keep_cache: Return the cache.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range; see `plan`. Or
            the cache was consumed.
        CapacityError: The request does not fit; see `plan`.
        ShapeError: The prompts or the cache do not fit the model.
    """
    _check_request(model, cached=cached, cache=cache, end_ids=end_ids, keep_cache=keep_cache)
    request = plan(
        model.config,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        capacity=capacity if cache is None else cache.capacity,
        held_B=None if cache is None else cache.length_B.cpu(),
    )
    if not request.budget_B.any():
        return _nothing_new(request, cache if keep_cache else None)
    device, own = model.embed.device, cache is None
    if cache is not None and not consume:
        cache = caches.fork(cache)
    if cached and cache is None:
        with device:
            cache = caches.init(
                model.config,
                batch=request.batch,
                capacity=request.capacity if keep_cache else request.reach,
                dtype=model.dtype,
                slack=slack,
                layout=layout,
                **({} if page_size is None else {"page_size": page_size}),
            )
    text, cache = run(
        params_of(model),
        *_device_arrays(request, end_ids, device),
        cache,
        config=model.config,
        reach=request.reach,
        fresh=not request.held_B.any(),
        rectangular=request.rectangular,
        clean=own,
    )
    if cache is not None:
        caches.check(cache)
    return _collect(request, text, cache if keep_cache else None)


@dataclass(frozen=True)
class Text:
    """The loop's own state: what has been written, and which rows go on.

    Attributes:
        tokens_BS: int32, each row's prompt and new tokens from the left; written in place, and
            without meaning beyond a row's length.
        length_B: int32, tokens of each row so far.
        new_B: int32, new ones among them.
        active_B: Rows that still want a token.
        forwarded_B: int32, positions that entered the model.
    """

    tokens_BS: Int[Array, "B S"]
    length_B: Int[Array, " B"]
    new_B: Int[Array, " B"]
    active_B: Bool[Array, " B"]
    forwarded_B: Int[Array, " B"]


def run(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    budget_B: Int[Array, " B"],
    end_E: Int[Array, " E"],
    cache: Cache | None,
    *,
    config: ModelConfig,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
) -> tuple[Text, Cache | None]:
    """Return the finished texts and the cache: prefill, then a loop of one-token steps.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        budget_B: int32, new tokens of each row at most.
        end_E: int32 end tokens, -1 for none.
        cache: Consumed. None recomputes the whole text for every token.
        config: The model's.
        reach: Slots that the longest row needs at most.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
    """
    text = _start(ids_BT, count_B, budget_B, slots=max(reach, ids_BT.shape[1]) + 2)
    if cache is not None and not clean:
        cache = caches.scrub(cache)
    first = True
    while bool(text.active_B.any()):
        # A cache takes the prompt once and then each row's newest token; without one, the whole
        # text.
        asked_B = text.length_B if first or cache is None else torch.ones_like(text.length_B)
        text, logits_BV, cache = _feed(
            params,
            text,
            cache,
            asked_B * text.active_B,
            config=config,
            fresh=fresh and first,
            rectangular=rectangular,
        )
        text = _append(text, logits_BV, budget_B=budget_B, end_E=end_E)
        first = False
    return text, cache


def _start(ids_BT: Array, count_B: Array, budget_B: Array, *, slots: int) -> Text:
    # Two slots more than the text needs: the last token is never fed, and a row that has stopped
    # writes to the place after its end.
    tokens_BS = ids_BT.new_zeros((ids_BT.shape[0], slots))
    tokens_BS[:, : ids_BT.shape[1]] = ids_BT
    none_B = torch.zeros_like(count_B)
    return Text(tokens_BS, count_B, none_B, budget_B > 0, none_B)


def _feed(
    params: Params,
    text: Text,
    cache: Cache | None,
    count_B: Array,
    *,
    config: ModelConfig,
    fresh: bool,
    rectangular: bool,
) -> tuple[Text, Array, Cache | None]:
    """Return the next logits.

    The one place where tokens enter the model, and so where they are counted.

    Each row feeds its last count_B[b] tokens.
    """
    width = int(count_B.max())
    place_BT = (text.length_B - count_B).unsqueeze(1) + torch.arange(width, device=count_B.device)
    ids_BT = text.tokens_BS.gather(1, place_BT.clamp(max=text.tokens_BS.shape[1] - 1))
    logits_B1V, cache = forward(
        params,
        ids_BT,
        cache,
        count_B,
        config=config,
        fresh=fresh,
        rectangular=rectangular,
        clean=True,
        last_only=True,
    )
    text = dataclasses.replace(text, forwarded_B=text.forwarded_B + count_B)
    return text, logits_B1V[:, 0], cache


def _append(text: Text, logits_BV: Array, *, budget_B: Array, end_E: Array) -> Text:
    """Return the text with one more token in each active row.

    A row goes on unless it has ended or spent its budget.
    """
    next_B = sampling.greedy(logits_BV)
    text.tokens_BS.scatter_(1, text.length_B.long().unsqueeze(1), next_B.unsqueeze(1))
    new_B = text.new_B + text.active_B
    has_stopped_B = torch.isin(next_B, end_E) | (new_B >= budget_B)
    return dataclasses.replace(
        text,
        length_B=text.length_B + text.active_B,
        new_B=new_B,
        active_B=text.active_B & ~has_stopped_B,
    )


def _device_arrays(
    request: Plan, end_ids: Sequence[int], device: torch.device
) -> tuple[Array, Array, Array, Array]:
    ids_BT, count_B, budget_B = (
        torch.tensor(array, device=device)
        for array in (request.ids_BT, request.count_B, request.budget_B)
    )
    end_E = torch.tensor([*end_ids] or [-1], dtype=torch.int32, device=device)
    return ids_BT, count_B, budget_B, end_E


def _nothing_new(request: Plan, cache: Cache | None) -> Generated:
    pairs = zip(request.ids_BT.tolist(), request.count_B.tolist(), strict=True)
    rows = [ids[:count] for ids, count in pairs]
    nothing_B = np.zeros_like(request.count_B)
    return Generated(rows, [[] for _ in rows], request.count_B, nothing_B, None, cache)


def _collect(request: Plan, text: Text, cache: Cache | None) -> Generated:
    lengths = text.length_B.tolist()
    rows = [ids[:n] for ids, n in zip(text.tokens_BS.tolist(), lengths, strict=True)]
    new = [row[count:] for row, count in zip(rows, request.count_B.tolist(), strict=True)]
    length_B, forwarded_B = (x_B.cpu().numpy() for x_B in (text.length_B, text.forwarded_B))
    return Generated(rows, new, length_B, forwarded_B, None, cache)


def _check_request(
    model: Decoder, *, cached: bool, cache: Cache | None, end_ids: Sequence[int], keep_cache: bool
) -> None:
    if model.training:
        raise RequestError(
            "generate: the model has training=True, whose dropout no cache survives. Set "
            "training=False."
        )
    if not cached and (cache is not None or keep_cache):
        raise RequestError(
            "generate: cached=False keeps nothing. Leave out cache and keep_cache, or set "
            "cached=True."
        )
    for token in end_ids:
        if not 0 <= token < model.config.vocab_size:
            raise RequestError(
                f"generate: end_ids holds {token}, expected 0 to {model.config.vocab_size - 1}."
            )
    if cache is not None and cache.length_B.shape[0] < 1:
        raise ShapeError("generate: the cache has no rows.")
