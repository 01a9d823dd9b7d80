"""What generation compiles: prefill, and a loop of one-token steps.

Letters: B rows, T prompt tokens with padding, S slots of the text, E end tokens (of an encoder's
text: its tokens), V vocabulary.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import caches, sampling
from jaxkv.block import Tap
from jaxkv.caches import Cache, Source
from jaxkv.encoder import encode
from jaxkv.model import Params, forward
from jaxkv.processors import Processors, process
from jaxkv.pytree import pytree
from jaxkv.sampling import Sampler, TopTokens
from jaxkv.spec.config import ModelConfig
from jaxkv.stack import no_tap

Sources = tuple[Int[Array, "B E"], Int[Array, " B"]]
"""int32 ids of the texts that an encoder reads, and how many of each are real."""


@pytree
class Text:
    """The loop's own state: what has been written, and which rows go on.

    Attributes:
        tokens_BS: int32, each row's prompt and new tokens from the left.
        length_B: int32, tokens of each row so far.
        new_B: int32, new ones among them.
        active_B: Rows that still want a token.
        forwarded_B: int32, positions that entered the model.
        logprob_BS: float32, of each new token where it stands in `tokens_BS`; None unless wanted.
        top: The likeliest tokens at each place, [B, S, n]; None unless wanted.
    """

    tokens_BS: Int[Array, "B S"]
    length_B: Int[Array, " B"]
    new_B: Int[Array, " B"]
    active_B: Bool[Array, " B"]
    forwarded_B: Int[Array, " B"]
    logprob_BS: Float[Array, "B S"] | None
    top: TopTokens | None = None


@pytree
class Terms:
    """What each row wants; all traced, so that none of it costs a compilation.

    Attributes:
        budget_B: int32, new tokens at most.
        held_B: int32, tokens that the cache held before the text.
        end_E: int32, tokens that end a row; -1 for none.
        sampler: None if all rows are greedy: such a program holds neither a sort nor a random
            number.
        processors: None if no row's text changes its logits: such a program counts nothing.
    """

    budget_B: Int[Array, " B"]
    held_B: Int[Array, " B"]
    end_E: Int[Array, " E"]
    sampler: Sampler | None
    processors: Processors | None = None


def start(
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    budget_B: Int[Array, " B"],
    *,
    slots: int,
    logprobs: bool,
    top: int = 0,
) -> Text:
    """Return the texts before anything has entered the model.

    Args:
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row.
        budget_B: int32, new tokens of each row at most.
        slots: Tokens that a text has room for, T at least.
        logprobs: Whether they are wanted.
        top: Of how many of the likeliest tokens too.
    """
    batch, width = ids_BT.shape
    tokens_BS = jnp.zeros((batch, slots), jnp.int32).at[:, :width].set(ids_BT)
    none_B = jnp.zeros_like(count_B)
    logprob_BS = jnp.zeros((batch, slots), jnp.float32) if logprobs else None
    kept = sampling.no_tokens(batch, slots, top) if top else None
    return Text(tokens_BS, count_B, none_B, budget_B > 0, none_B, logprob_BS, kept)


def run(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache | None,
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    logprobs: bool,
    top: int = 0,
) -> tuple[Text, Cache | None]:
    """Return the finished texts and the cache: prefill and loop in one traced function.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        terms: What each row wants.
        cache: None recomputes the whole text for every token.
        sources: What the encoder reads, once; None where a cache holds it, or without one.
        config: Static, as are all that follow.
        reach: Slots that a step reads.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    # A row without budget may hold a prompt that is longer than what any step reads.
    width = ids_BT.shape[1]
    slots = max(reach + 1, width)
    text = start(ids_BT, count_B, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    source = None if sources is None else encode(params, *sources, config=config)
    if cache is None:
        recompute = partial(_recompute, params, terms=terms, config=config, source=source)
        return jax.lax.while_loop(_goes_on, recompute, text), None
    if source is not None:
        cache = caches.fill(cache, source)
    text, work = prefill(
        params,
        text,
        jnp.zeros((), jnp.int32),
        terms,
        cache,
        config=config,
        width=width,
        reach=reach,
        fresh=fresh,
        rectangular=rectangular,
        clean=clean,
    )
    step = partial(_step, params, terms=terms, config=config, rectangular=rectangular)
    text, work = jax.lax.while_loop(
        lambda state: _goes_on(state[0]), lambda state: step(*state), (text, work)
    )
    return text, caches.widen(work, cache)


def read_sources(params: Params, sources: Sources, cache: Cache, *, config: ModelConfig) -> Cache:
    """Return the cache with what the encoder leaves of its texts; the first thing of a request.

    Args:
        params: The model's.
        sources: The texts.
        cache: With room for them.
        config: Static.
    """
    return caches.fill(cache, encode(params, *sources, config=config))


def prefill(
    params: Params,
    text: Text,
    at: Int[Array, ""],
    terms: Terms,
    cache: Cache,
    *,
    config: ModelConfig,
    width: int,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    tap: Tap = no_tap,
) -> tuple[Text, Cache]:
    """Return the texts and the cache after prompt tokens [at, at + width).

    A row whose prompt ends among them has its first new token.

    Args:
        params: The model's.
        text: Room for at + width tokens.
        at: int32, how many tokens of each prompt the cache holds already.
        terms: What each row wants.
        cache: A larger one than `reach` is narrowed.
        config: Static, as are all that follow.
        width: Tokens that enter the model.
        reach: Slots that a step reads.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        tap: See `forward`.
    """
    cache = caches.narrow(cache, slots=reach)
    cache = cache if clean else caches.scrub(cache)
    ids_BT = jax.lax.dynamic_slice_in_dim(text.tokens_BS, at, width, axis=1)
    prompt_B = text.length_B - text.new_B
    count_B = jnp.where(terms.budget_B > 0, jnp.clip(prompt_B - at, 0, width), 0)
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "tap": tap}
    text, logits_BV, cache = _feed(params, text, ids_BT, cache, count_B, config=config, **promises)
    ends_B = (prompt_B > at) & (prompt_B <= at + width)
    waiting_B = text.active_B & ~ends_B
    text = dataclasses.replace(text, active_B=text.active_B & ends_B)
    text = append(text, logits_BV, terms=terms)
    return dataclasses.replace(text, active_B=text.active_B | waiting_B), cache


def extend(
    params: Params,
    text: Text,
    terms: Terms,
    cache: Cache,
    steps: Int[Array, ""],
    *,
    config: ModelConfig,
    rectangular: bool,
) -> tuple[Text, Cache]:
    """Return the texts and the cache after `steps` more tokens of each active row at most.

    Args:
        params: The model's.
        text: After the prefill.
        terms: What each row wants.
        cache: Holds all tokens of the active rows but the last.
        steps: int32; traced, so that another number costs no compilation.
        config: Static, as is what follows.
        rectangular: Whether all rows had one length and one count at the prefill.
    """
    step = partial(_step, params, terms=terms, config=config, rectangular=rectangular)

    def body(state: tuple[Array, Text, Cache]) -> tuple[Array, Text, Cache]:
        done, text, cache = state
        return done + 1, *step(text, cache)

    def goes_on(state: tuple[Array, Text, Cache]) -> Array:
        return (state[0] < steps) & _goes_on(state[1])

    none = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(goes_on, body, (none, text, cache))[1:]


def _step(
    params: Params,
    text: Text,
    cache: Cache,
    *,
    terms: Terms,
    config: ModelConfig,
    rectangular: bool,
) -> tuple[Text, Cache]:
    last_B1 = jnp.take_along_axis(text.tokens_BS, text.length_B[:, None] - 1, axis=1)
    one_B = text.active_B.astype(jnp.int32)
    text, logits_BV, cache = _feed(
        params, text, last_B1, cache, one_B, config=config, rectangular=rectangular
    )
    return append(text, logits_BV, terms=terms), cache


def _recompute(
    params: Params, text: Text, *, terms: Terms, config: ModelConfig, source: Source | None
) -> Text:
    count_B = jnp.where(text.active_B, text.length_B, 0)
    # The last place of the text is only ever written, never read by a forward.
    ids_BS = text.tokens_BS[:, :-1]
    text, logits_BV, _ = _feed(params, text, ids_BS, None, count_B, config=config, source=source)
    return append(text, logits_BV, terms=terms)


def _feed(
    params: Params,
    text: Text,
    ids_BT: Array,
    cache: Any,
    count_B: Array,
    *,
    config: ModelConfig,
    source: Source | None = None,
    **promises: Any,
) -> tuple[Text, Array, Any]:
    """Return the next logits.

    The one place where tokens enter the model, and so where they are counted.
    """
    if cache is not None:
        promises["clean"] = True
    logits_B1V, cache = forward(
        params, ids_BT, cache, count_B, config=config, last_only=True, source=source, **promises
    )
    text = dataclasses.replace(text, forwarded_B=text.forwarded_B + count_B)
    return text, logits_B1V[:, 0], cache


def wanted(
    logits_BV: Float[Array, "B V"],
    terms: Terms,
    tokens_BS: Int[Array, "B S"],
    length_B: Int[Array, " B"],
    new_B: Int[Array, " B"],
) -> Float[Array, "B V"]:
    """Return the logits that the next tokens are taken from: what the texts make of the model's.

    Args:
        logits_BV: The model's, for each row's next token.
        terms: What each row wants.
        tokens_BS: int32 texts from the left.
        length_B: int32, tokens of each text.
        new_B: int32, the last of them that are new.
    """
    if terms.processors is None:
        return logits_BV
    return process(logits_BV, terms.processors, tokens_BS, length_B, new_B, terms.end_E)


def append(text: Text, logits_BV: Float[Array, "B V"], *, terms: Terms) -> Text:
    """Return the text with one more token in each active row.

    A row goes on unless it has ended or spent its budget.

    Args:
        text: Of any rows.
        logits_BV: The model's for each row's next token.
        terms: What each row wants.
    """
    wanted_BV = wanted(logits_BV, terms, text.tokens_BS, text.length_B, text.new_B)
    if terms.sampler is None:
        next_B = sampling.greedy(wanted_BV)
    else:
        next_B = sampling.sample(wanted_BV, terms.sampler, terms.held_B + text.length_B)
    row_B = jnp.arange(next_B.shape[0], dtype=jnp.int32)
    at_B = jnp.where(text.active_B, text.length_B, text.tokens_BS.shape[1])

    def put(x: Array, at_place: Array) -> Array:
        return x.at[row_B, at_B].set(at_place, mode="drop")

    new_B = text.new_B + text.active_B.astype(jnp.int32)
    has_ended_B = jnp.any(next_B[:, None] == terms.end_E, axis=1)
    logprob_BS = text.logprob_BS
    if logprob_BS is not None:
        logprob_BS = put(logprob_BS, sampling.logprob(logits_BV, next_B))
    top = text.top
    if top is not None:
        id_BA, logprob_BA = sampling.top_logprobs(logits_BV, top=top.id_BSA.shape[2])
        top = TopTokens(put(top.id_BSA, id_BA), put(top.logprob_BSA, logprob_BA))
    return Text(
        tokens_BS=put(text.tokens_BS, next_B),
        length_B=text.length_B + text.active_B.astype(jnp.int32),
        new_B=new_B,
        active_B=text.active_B & ~has_ended_B & (new_B < terms.budget_B),
        forwarded_B=text.forwarded_B,
        logprob_BS=logprob_BS,
        top=top,
    )


def _goes_on(text: Text) -> Array:
    return jnp.any(text.active_B)
