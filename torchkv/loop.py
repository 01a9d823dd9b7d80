"""What generation runs: prefill, and a loop of one-token steps.

Letters: B rows, T prompt tokens with padding, S slots of the text, E end tokens (of an encoder's
text: its tokens), V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from torchkv import caches, sampling
from torchkv.block import Tap
from torchkv.caches import Cache, Source
from torchkv.compiled import forward_step
from torchkv.encoder import encode
from torchkv.model import Params, forward
from torchkv.processors import Processors, process
from torchkv.sampling import Sampler, TopTokens
from torchkv.stack import no_tap

Sources = tuple[Int[Array, "B E"], Int[Array, " B"]]
"""int32 ids of the texts that an encoder reads, and how many of each are real."""


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
        logprob_BS: float32, of each new token where it stands in `tokens_BS`, written in place too;
            None unless wanted.
        top: The likeliest tokens at each place, [B, S, n], written in place too; None unless
            wanted.
    """

    tokens_BS: Int[Array, "B S"]
    length_B: Int[Array, " B"]
    new_B: Int[Array, " B"]
    active_B: Bool[Array, " B"]
    forwarded_B: Int[Array, " B"]
    logprob_BS: Float[Array, "B S"] | None
    top: TopTokens | None = None


@dataclass(frozen=True)
class Terms:
    """What each row wants.

    Attributes:
        budget_B: int32, new tokens at most.
        held_B: int32, tokens that the cache held before the text.
        end_E: int32, tokens that end a row; -1 for none.
        sampler: None if all rows are greedy.
        processors: None if no row's text changes its logits.
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
    # One place more: a row that has stopped writes to the place after its end.
    tokens_BS = ids_BT.new_zeros((ids_BT.shape[0], slots + 1))
    tokens_BS[:, : ids_BT.shape[1]] = ids_BT
    none_B = torch.zeros_like(count_B)
    logprob_BS = torch.zeros_like(tokens_BS, dtype=torch.float32) if logprobs else None
    kept = None
    if top:
        with tokens_BS.device:
            kept = sampling.no_tokens(tokens_BS.shape[0], tokens_BS.shape[1], top)
    return Text(tokens_BS, count_B, none_B, budget_B > 0, none_B, logprob_BS, kept)


@torch.no_grad()
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
    """Return the finished texts and the cache: prefill, then a loop of one-token steps.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        terms: What each row wants.
        cache: Consumed. None recomputes the whole text for every token.
        sources: What the encoder reads, once; None where a cache holds it, or without one.
        config: The model's.
        reach: Slots that the longest row needs at most.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    width = ids_BT.shape[1]
    slots = max(reach + 1, width)
    text = start(ids_BT, count_B, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    source = None if sources is None else encode(params, *sources, config=config)
    if cache is None:
        while bool(text.active_B.any()):
            first_B, count_B = torch.zeros_like(text.length_B), text.length_B * text.active_B
            text, logits_BV, _ = _feed(
                params, text, first_B, None, count_B, config=config, source=source
            )
            text = append(text, logits_BV, terms=terms)
        return text, None
    if source is not None:
        cache = caches.fill(cache, source)
    text, cache = prefill(
        params,
        text,
        torch.zeros((), dtype=torch.int32, device=ids_BT.device),
        terms,
        cache,
        config=config,
        width=width,
        reach=reach,
        fresh=fresh,
        rectangular=rectangular,
        clean=clean,
    )
    steps = terms.budget_B.max()
    return extend(params, text, terms, cache, steps, config=config, rectangular=rectangular)


@torch.no_grad()
def read_sources(params: Params, sources: Sources, cache: Cache, *, config: ModelConfig) -> Cache:
    """Return the cache with what the encoder leaves of its texts; the first thing of a request.

    Args:
        params: The model's.
        sources: The texts.
        cache: Consumed. With room for them.
        config: The model's.
    """
    return caches.fill(cache, encode(params, *sources, config=config))


@torch.no_grad()
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
        cache: Consumed.
        config: The model's.
        width: Tokens that enter the model at most.
        reach: Slots that the longest row needs at most; a step reads no further than it must.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        tap: See `forward`.
    """
    if not clean:
        cache = caches.scrub(cache)
    wanted_B = text.active_B
    rest_B = text.length_B - text.new_B - at
    count_B = rest_B.clamp(0, width) * (terms.budget_B > 0)
    text, logits_BV, after = _feed(
        params,
        text,
        at.expand_as(count_B),
        cache,
        count_B,
        config=config,
        fresh=fresh,
        rectangular=rectangular,
        tap=tap,
    )
    assert after is not None  # forward returns a cache for a cache
    ends_here_B = (rest_B > 0) & (rest_B <= width)
    text = append(replace(text, active_B=wanted_B & ends_here_B), logits_BV, terms=terms)
    return replace(text, active_B=torch.where(ends_here_B, text.active_B, wanted_B)), after


@torch.no_grad()
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
        cache: Consumed. Holds all tokens of the active rows but the last.
        steps: int32.
        config: The model's.
        rectangular: Whether all rows had one length and one count at the prefill.
    """
    for _ in range(int(steps)):
        if not bool(text.active_B.any()):
            break
        text, logits_BV, after = _feed(
            params,
            text,
            text.length_B - 1,
            cache,
            text.active_B.int(),
            config=config,
            rectangular=rectangular,
        )
        assert after is not None  # forward returns a cache for a cache
        text, cache = append(text, logits_BV, terms=terms), after
    return text, cache


def _feed(
    params: Params,
    text: Text,
    first_B: Array,
    cache: Cache | None,
    count_B: Array,
    *,
    config: ModelConfig,
    fresh: bool = False,
    rectangular: bool = False,
    source: Source | None = None,
    tap: Tap = no_tap,
) -> tuple[Text, Array, Cache | None]:
    """Return the next logits.

    The one place where tokens enter the model, and so where they are counted.

    Each row feeds its tokens [first_B[b], first_B[b] + count_B[b]).
    """
    width = max(int(count_B.max()), 1)
    place_BT = first_B.unsqueeze(1) + torch.arange(width, device=count_B.device)
    ids_BT = text.tokens_BS.gather(1, place_BT.clamp(max=text.tokens_BS.shape[1] - 1))
    step = None
    if cache is not None and tap is no_tap:
        step = forward_step(params, ids_BT, cache, count_B, config=config)
    logits_B1V, cache = step or forward(
        params,
        ids_BT,
        cache,
        count_B,
        config=config,
        fresh=fresh,
        rectangular=rectangular,
        clean=True,
        last_only=True,
        source=source,
        tap=tap,
    )
    text = replace(text, forwarded_B=text.forwarded_B + count_B)
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
        text: Of any rows; written in place.
        logits_BV: The model's for each row's next token.
        terms: What each row wants.
    """
    wanted_BV = wanted(logits_BV, terms, text.tokens_BS, text.length_B, text.new_B)
    if terms.sampler is None:
        next_B = sampling.greedy(wanted_BV)
    else:
        next_B = sampling.sample(wanted_BV, terms.sampler, terms.held_B + text.length_B)
    # A row that is not active writes behind its end, where nothing is read.
    place_B1 = text.length_B.long().unsqueeze(1)
    text.tokens_BS.scatter_(1, place_B1, next_B.unsqueeze(1))
    if text.logprob_BS is not None:
        logprob_B1 = sampling.logprob(logits_BV, next_B).unsqueeze(1)
        text.logprob_BS.scatter_(1, place_B1, logprob_B1)
    if text.top is not None:
        id_BA, logprob_BA = sampling.top_logprobs(logits_BV, top=text.top.id_BSA.shape[2])
        row_B1 = torch.arange(len(place_B1), device=place_B1.device).unsqueeze(1)
        text.top.id_BSA[row_B1, place_B1] = id_BA.unsqueeze(1)
        text.top.logprob_BSA[row_B1, place_B1] = logprob_BA.unsqueeze(1)
    new_B = text.new_B + text.active_B
    has_stopped_B = torch.isin(next_B, terms.end_E) | (new_B >= terms.budget_B)
    return replace(
        text,
        length_B=text.length_B + text.active_B,
        new_B=new_B,
        active_B=text.active_B & ~has_stopped_B,
    )
