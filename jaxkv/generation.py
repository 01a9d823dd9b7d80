"""Greedy generation: one compiled program prefills and decodes until every row has stopped.

Letters: B rows, T prompt tokens with padding, S slots of the text, E end tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxkv import caches, sampling
from jaxkv.caches import Cache
from jaxkv.model import Decoder, Params, forward, params_of
from jaxkv.planning import Plan, plan
from jaxkv.pytree import pytree
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, ShapeError

# XLA picks 256-bit vectors by default; on the measured CPUs the matrix products of a decode step
# gain from 512.
_CPU_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


@dataclass(frozen=True)
class Generated:
    """What a request gave.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
        cache: The cache after the last forward, with `keep_cache`. It holds all tokens but the last
            new one.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    length_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    cache: Cache | None


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
        consume: Let the program overwrite `cache`, which must not be used again. Saves a copy.
        keep_cache: Return the cache.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range; see `plan`.
        CapacityError: The request does not fit; see `plan`.
        ShapeError: The prompts or the cache do not fit the model.

    Cost: compiles once for each bucket of prompt width and text length, counted in `compilations`.
    """
    _check_request(model, cached=cached, cache=cache, end_ids=end_ids, keep_cache=keep_cache)
    held_B = None if cache is None else np.asarray(cache.length_B)
    room = capacity if cache is None else cache.capacity
    request = plan(
        model.config,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        capacity=room,
        held_B=held_B,
    )
    if not request.budget_B.any():
        return _nothing_new(request, cache if keep_cache else None)
    fresh = cache is None or not request.held_B.any()
    own = cache is None
    if cached and cache is None:
        # Without keep_cache nobody sees the slots beyond the text, so they are not allocated.
        slots = request.capacity if keep_cache else request.reach
        cache = caches.init(
            model.config,
            batch=request.batch,
            capacity=slots,
            dtype=model.dtype,
            slack=slack,
            layout=layout,
            **({} if page_size is None else {"page_size": page_size}),
        )
    before = PROGRAMS.traces
    text, cache = PROGRAMS.run(
        params_of(model),
        *_device_arrays(request, end_ids),
        cache,
        donate=own or consume,
        config=model.config,
        reach=request.reach,
        fresh=fresh,
        rectangular=request.rectangular,
        clean=own,
    )
    if cache is not None:
        caches.check(cache)
    return _collect(request, text, PROGRAMS.traces - before, cache if keep_cache else None)


@pytree
class Text:
    """The loop's own state: what has been written, and which rows go on.

    Attributes:
        tokens_BS: int32, each row's prompt and new tokens from the left.
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
    """Return the finished texts and the cache.

    Prefill, then a loop of one-token steps, in one traced function.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        budget_B: int32, new tokens of each row at most; traced, so that a budget costs no
            compilation.
        end_E: int32 end tokens, -1 for none.
        cache: None recomputes the whole text for every token.
        config: Static, as are all that follow.
        reach: Slots that a step reads.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
    """
    # A row without budget may hold a prompt that is longer than what any step reads.
    slots = max(reach + 1, ids_BT.shape[1])
    text = _start(ids_BT, count_B, budget_B, slots=slots)
    feed = partial(_feed, params, config=config)
    pick = partial(_append, budget_B=budget_B, end_E=end_E)
    if cache is None:
        return jax.lax.while_loop(_goes_on, lambda text: _recompute(text, feed, pick), text), None
    work = caches.narrow(cache, slots=reach)
    work = work if clean else caches.scrub(work)
    feed = partial(feed, rectangular=rectangular, clean=True)
    asked_B = jnp.where(text.active_B, count_B, 0)
    text, logits_BV, work = feed(text, ids_BT, work, asked_B, fresh=fresh)
    text = pick(text, logits_BV)

    def step(state: tuple[Text, Cache]) -> tuple[Text, Cache]:
        text, work = state
        last_B1 = jnp.take_along_axis(text.tokens_BS, text.length_B[:, None] - 1, axis=1)
        one_B = text.active_B.astype(jnp.int32)
        text, logits_BV, work = feed(text, last_B1, work, one_B)
        return pick(text, logits_BV), work

    text, work = jax.lax.while_loop(lambda state: _goes_on(state[0]), step, (text, work))
    return text, caches.widen(work, cache)


def _start(ids_BT: Array, count_B: Array, budget_B: Array, *, slots: int) -> Text:
    batch, width = ids_BT.shape
    tokens_BS = jnp.zeros((batch, slots), jnp.int32).at[:, :width].set(ids_BT)
    return Text(tokens_BS, count_B, jnp.zeros_like(count_B), budget_B > 0, jnp.zeros_like(count_B))


def _feed(
    params: Params,
    text: Text,
    ids_BT: Array,
    cache: Any,
    count_B: Array,
    *,
    config: ModelConfig,
    **promises: Any,
) -> tuple[Text, Array, Any]:
    """Return the next logits.

    The one place where tokens enter the model, and so where they are counted.
    """
    logits_B1V, cache = forward(
        params, ids_BT, cache, count_B, config=config, last_only=True, **promises
    )
    forwarded_B = text.forwarded_B + count_B
    text = Text(text.tokens_BS, text.length_B, text.new_B, text.active_B, forwarded_B)
    return text, logits_B1V[:, 0], cache


def _append(text: Text, logits_BV: Array, *, budget_B: Array, end_E: Array) -> Text:
    """Return the text with one more token in each active row.

    Which goes on unless it has ended or spent its budget.
    """
    next_B = sampling.greedy(logits_BV)
    row_B = jnp.arange(next_B.shape[0], dtype=jnp.int32)
    at_B = jnp.where(text.active_B, text.length_B, text.tokens_BS.shape[1])
    more_B = text.active_B.astype(jnp.int32)
    new_B = text.new_B + more_B
    has_ended_B = jnp.any(next_B[:, None] == end_E, axis=1)
    return Text(
        tokens_BS=text.tokens_BS.at[row_B, at_B].set(next_B, mode="drop"),
        length_B=text.length_B + more_B,
        new_B=new_B,
        active_B=text.active_B & ~has_ended_B & (new_B < budget_B),
        forwarded_B=text.forwarded_B,
    )


def _recompute(text: Text, feed: Any, pick: Any) -> Text:
    count_B = jnp.where(text.active_B, text.length_B, 0)
    # The last place of the text is only ever written, never read by a forward.
    text, logits_BV, _ = feed(text, text.tokens_BS[:, :-1], None, count_B)
    return pick(text, logits_BV)


def _goes_on(text: Text) -> Array:
    return jnp.any(text.active_B)


class Programs:
    """The compiled forms of `run`, and how often it has been traced."""

    def __init__(self) -> None:
        self.traces = 0
        self._jitted: dict[bool, Any] = {}

    def run(self, *arrays: Any, donate: bool, **static: Any) -> tuple[Text, Cache | None]:
        """Return the result of `run`.

        With `donate` the cache's buffers are reused, and must not be used again.
        """
        return self.jitted(donate=donate)(*arrays, **static)

    def jitted(self, *, donate: bool) -> Any:
        """Return the jitted form, for calling or for looking at what it compiles to."""
        if donate not in self._jitted:
            self._jitted[donate] = jax.jit(
                self._traced,
                static_argnames=("config", "reach", "fresh", "rectangular", "clean"),
                donate_argnums=(5,) if donate else (),
                compiler_options=_CPU_OPTIONS if jax.default_backend() == "cpu" else None,
            )
        return self._jitted[donate]

    def _traced(self, *arrays: Any, **static: Any) -> tuple[Text, Cache | None]:
        self.traces += 1
        return run(*arrays, **static)


PROGRAMS = Programs()


def _device_arrays(request: Plan, end_ids: Sequence[int]) -> tuple[Array, Array, Array, Array]:
    # Padded to a multiple of 4, so that another number of end tokens rarely means another program.
    ends = [*end_ids, *[-1] * (-len(end_ids) % 4 or (0 if end_ids else 4))]
    host = (request.ids_BT, request.count_B, request.budget_B, np.array(ends, np.int32))
    return tuple(jnp.asarray(array) for array in host)  # pyright: ignore[reportReturnType] four arrays


def _nothing_new(request: Plan, cache: Cache | None) -> Generated:
    rows = [
        row[:count].tolist() for row, count in zip(request.ids_BT, request.count_B, strict=True)
    ]
    nothing_B = np.zeros_like(request.count_B)
    return Generated(rows, [[] for _ in rows], request.count_B, nothing_B, 0, cache)


def _collect(request: Plan, text: Text, compilations: int, cache: Cache | None) -> Generated:
    tokens_BS, length_B = np.asarray(text.tokens_BS), np.asarray(text.length_B)
    rows = [row[:length].tolist() for row, length in zip(tokens_BS, length_B, strict=True)]
    new = [row[count:] for row, count in zip(rows, request.count_B.tolist(), strict=True)]
    return Generated(rows, new, length_B, np.asarray(text.forwarded_B), compilations, cache)


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
