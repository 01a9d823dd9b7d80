"""Streaming: prefill in chunks, then some tokens at a time, in an eager loop.

Letters: B rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Decode, check_stops
from torchkv import caches
from torchkv.caches import Cache
from torchkv.caches.prefix import Lease, PrefixStore
from torchkv.model import Decoder
from torchkv.parts import STEPS, Part, parts
from torchkv.planning import CHUNK
from torchkv.prefixed import abandoning, check_store, open_lease, whole_rows
from torchkv.processor_settings import Bias
from torchkv.request import Request, check, check_layout, new_cache
from torchkv.stopping import Watch

Progress = Callable[[int, int], None]


def stream(
    model: Decoder,
    prompts: Any = None,
    *,
    max_new_tokens: int | Sequence[int],
    steps: int = STEPS,
    chunk: int = CHUNK,
    progress: Progress | None = None,
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
    capacity: int | None = None,
    layout: str = "contiguous",
    slack: int = 0,
    page_size: int | None = None,
    layout_options: Mapping[str, Any] | None = None,
    cache: Cache | None = None,
    consume: bool = False,
    store: PrefixStore | None = None,
    adapter: str = "",
    tenant: str = "",
) -> Iterator[list[list[int]]]:
    """Return an iterator over the tokens of `generate` as they come: for each row a list of ids.

    The first item holds each row's first new token, every other one up to `steps` more. Arguments
    are checked at once; the model runs when an item is asked for, and not beyond it. Whoever stops
    early has lost nothing: what came is the beginning of what `generate` gives, and a cache handed
    in still answers as before unless consumed.

    Args:
        model: In evaluation mode.
        prompts: See `generate`, as for all that is not described here.
        max_new_tokens: Budget, for all rows or one a row.
        steps: Tokens of each row in an item at most.
        chunk: A prompt longer than this enters the model in pieces of this many tokens.
        progress: Called as progress(done, total) after each piece of the prompt and before each
            item: tokens of the longest prompt so far plus new ones, of how many at most. The last
            call has done = total, even if all rows ended early.
        mask_BT: Which ids of an array are real.
        encoder: What the encoder of a model that has one reads, before the first piece.
        encoder_mask_BE: Which ids of it are real.
        end_ids: Tokens that end a row.
        temperature: 0 is greedy.
        top_k: How many of the likeliest tokens may be drawn.
        top_p: How much probability they have together at most.
        min_p: The least probability, as a share of the largest.
        seeds: Of the rows' draws.
        repetition_penalty: Of tokens of the text so far.
        presence_penalty: Of new tokens.
        frequency_penalty: Of new tokens, as often as they came.
        logit_bias: Added to the logits of the ids named.
        min_new_tokens: New tokens before any end token.
        stop: Strings that end a row. Ids whose text could become one are held back, so that an item
            may lack them or be empty; those from a stop string on never come.
        decode: New ids -> text, for `stop`.
        capacity: Tokens that a row can hold.
        layout: Of a cache made here.
        slack: Of a cache made here.
        page_size: Of a cache made here.
        layout_options: Of a cache made here.
        cache: Earlier tokens to continue from.
        consume: Write on in the buffers of `cache`, which must not be used again.
        store: Where prefixes are looked up, and those of this request kept when the iterator ends
            or is closed; it is leased with the first item.
        adapter: See `generate`.
        tenant: See `generate`.

    Raises:
        RequestError: An argument is out of range; see `generate`.
        CapacityError: The request does not fit.
        ShapeError: The prompts or the cache do not fit the model.
    """
    for name, value in (("steps", steps), ("chunk", chunk)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise RequestError(
                f"stream: {name} is {value!r}, expected a whole number of at least 1."
            )
    form = {"layout": layout, "page_size": page_size, "options": layout_options}
    check_layout("stream", **form, positions=model.config.max_positions)
    check_store(
        "stream",
        model,
        store,
        adapter=adapter,
        tenant=tenant,
        cache=(cache, None),
        capacity=(capacity, None),
        layout=(layout, "contiguous"),
        slack=(slack, 0),
        page_size=(page_size, None),
        layout_options=(layout_options, None),
    )
    request = check(
        "stream",
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

    def open_cache() -> Cache:
        if cache is not None:
            return cache if consume else caches.fork(cache)
        return new_cache(
            model,
            request,
            slots=request.plan.reach,
            layout=layout,
            slack=slack,
            page_size=page_size,
            options=layout_options,
        )

    show = progress or (lambda done, total: None)
    watch = Watch(check_stops("stream", stop, decode))
    pieces: dict[str, Any] = {"steps": steps, "chunk": chunk, "watch": watch}
    if store is not None:
        return _from_store(store, model, request, show, adapter=adapter, tenant=tenant, **pieces)
    found = parts(model, request, open_cache, clean=cache is None, **pieces)
    return _items(found, request, show, watch)


def _from_store(
    store: PrefixStore,
    model: Decoder,
    request: Request,
    progress: Progress,
    *,
    adapter: str,
    tenant: str,
    watch: Watch,
    steps: int,
    chunk: int,
) -> Iterator[list[list[int]]]:
    """Yield the items of a request on a store, which has its pages back in the end."""
    pieces: dict[str, Any] = {"steps": steps, "chunk": chunk, "watch": watch}
    lease, rest = open_lease(store, model, request, adapter=adapter, tenant=tenant)
    with abandoning(store, lease, stopped=lambda: _settle(store, lease, seen)):
        seen: list[Part] = []
        found = parts(model, rest, lambda: lease.cache, clean=True, **pieces)
        yield from _items(_newest(found, seen), rest, progress, watch)
        _settle(store, lease, seen)


def _items(
    parts: Iterator[Part], request: Request, progress: Progress, watch: Watch
) -> Iterator[list[list[int]]]:
    """Yield what is new in each part, once every prompt is in the cache."""
    found = request.plan
    counts = found.count_B.tolist()
    longest = max(
        (n for n, budget in zip(counts, found.budget_B, strict=True) if budget), default=0
    )
    total = longest + int(found.budget_B.max())
    shown = list(counts)
    for done, text, _ in parts:
        ends = text.length_B.tolist()
        new = max(end - count for end, count in zip(ends, counts, strict=True))
        if done < longest:
            progress(done, total)
            continue
        certain = watch.look(text)
        is_last = not bool(watch.halt(text).active_B.any())
        progress(done + new, done + new if is_last else total)
        rows = text.tokens_BS.tolist()
        yield [row[a:b] for row, a, b in zip(rows, shown, certain, strict=True)]
        shown = certain


def _newest(parts: Iterator[Part], seen: list[Part]) -> Iterator[Part]:
    """Yield the parts, and keep the newest in `seen`: the earlier caches are consumed."""
    for part in parts:
        seen[:] = [part]
        yield part


def _settle(store: PrefixStore, lease: Lease, seen: list[Part]) -> None:
    if not seen:
        store.abandon(lease)
        return
    _, text, cache = seen[0]
    tokens, ends = text.tokens_BS.tolist(), text.length_B.tolist()
    rows = [row[:end] for row, end in zip(tokens, ends, strict=True)]
    store.settle(lease, cache, whole_rows(lease, rows))
