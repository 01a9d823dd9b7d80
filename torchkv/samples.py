"""Parallel samples: each prompt is computed once, its continuations are drawn side by side.

Letters: B rows, C samples of all rows, one after the other, T prompt tokens with padding, M samples
of a row.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Decode, check_stops
from torchkv import caches
from torchkv.branching import Form, check_budgets, check_memory, check_whole, plan_cache
from torchkv.caches import Cache
from torchkv.encoder import encode
from torchkv.loop import Sources, Terms, Text, append, extend, start
from torchkv.model import Decoder, Params, forward, params_of
from torchkv.parts import onward
from torchkv.processor_settings import Bias
from torchkv.request import Request, check, device_arrays, device_sources
from torchkv.results import plan_logprobs
from torchkv.settings import SEEDS, Settings
from torchkv.stopping import Watch


@dataclass(frozen=True)
class Sampled:
    """What was drawn.

    Attributes:
        tokens: Prompt and new ids of each row's first sample.
        new_tokens: New ids of it; an end token that stopped it is its last.
        samples: New ids of each of a row's samples.
        seed_BM: uint32, of each sample: `generate` with it draws the same text.
        forwarded_positions_B: int32, positions of each row that went through the model: the prompt
            once, and of each sample its new tokens but the last.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
        copied_pages: Pages copied because a sample wrote to one that others hold; None without
            pages.
        logprobs: With `logprobs`, float32 for each new id: the natural logarithm of its probability
            under the model's own distribution, before penalties, temperature and filters.
        top_ids: With `logprobs` of N, int32 [new, N] a sample: the likeliest ids at each new
            token's place, the likeliest first.
        top_logprobs: Their log-probabilities, float32 [new, N] a sample.
        texts: With `stop`, the text of each row's first sample, up to its stop string.
        stopped: With `stop`, the string that ended it, or None.
        sample_texts: With `stop`, of each of a row's samples.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    samples: list[list[list[int]]]
    seed_BM: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    copied_pages: int | None
    logprobs: list[list[np.ndarray]] | None
    top_ids: list[list[np.ndarray]] | None = None
    top_logprobs: list[list[np.ndarray]] | None = None
    texts: list[str] | None = None
    stopped: list[str | None] | None = None
    sample_texts: list[list[str]] | None = None


def sample_many(
    model: Decoder,
    prompts: Any = None,
    *,
    samples: int,
    max_new_tokens: int | Sequence[int],
    mask_BT: Any = None,
    encoder: Any = None,
    encoder_mask_BE: Any = None,
    end_ids: int | Sequence[int] | None = (),
    temperature: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seeds: int | Sequence[int] | Sequence[Sequence[int]] = 0,
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
) -> Sampled:
    """Return several continuations of each prompt, drawn from keys of their own.

    Sample m of a row is the text that `generate` draws with the sample's seed. Each stops by
    itself.

    Args:
        model: In evaluation mode.
        prompts: See `generate`, as for `mask_BT`, `encoder`, `encoder_mask_BE` and `end_ids`.
        samples: Of each prompt.
        max_new_tokens: Budget of a sample, for all rows or one a row; at least 1.
        mask_BT: Which ids of an array are real.
        encoder: One text a row, read once and shared by its samples.
        encoder_mask_BE: Which ids of such an array are real.
        end_ids: Tokens that end a sample.
        temperature: One number for all rows or one a row, as are the three that follow; with 0 all
            samples of a row are the greedy text.
        top_k: See `generate`.
        top_p: See `generate`.
        min_p: See `generate`.
        seeds: One for all rows or one a row: sample m draws with the seed + m, modulo 2**32. Or
            `samples` of them a row, of which each is used as it is.
        repetition_penalty: See `generate`, as for the four that follow: one for all rows or one a
            row, and each sample goes by its own text.
        presence_penalty: Of new tokens.
        frequency_penalty: Of new tokens, as often as they came.
        logit_bias: Added to the logits of the ids named.
        min_new_tokens: New tokens before any end token.
        stop: Strings that end a sample, as in `generate`: the host looks at the texts every 8
            tokens, and what it cuts off has been forwarded.
        decode: New ids -> text, for `stop`; a tokenizer's.
        logprobs: Whether to return the new tokens' log-probabilities; a number N from 1 to V also
            returns the N likeliest tokens at each place.
        capacity: Tokens that a sample can hold at most; by default what the request needs.
        layout: Of the cache: any that has `gather`; "paged" shares the prompt's pages.
        slack: See `caches.init`.
        page_size: Of the layout "paged"; None for its default.
        layout_options: What the layout alone understands.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range.
        CapacityError: The request does not fit; see `plan`.
        ShapeError: The prompts do not fit the model.
        Unsupported: The layout has no `gather`.

    Cost: the prompt once, then `samples` rows a step. Layouts but "paged" copy the prompt's keys
    and values for each sample.
    """
    samples = check_whole("sample_many", "samples", samples, most=None, why="")
    first_seeds, seed_BM = _seeds(seeds, samples)
    request = check(
        "sample_many",
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        encoder=encoder,
        encoder_mask_BE=encoder_mask_BE,
        end_ids=end_ids,
        cache=None,
        capacity=capacity,
        sampling={
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seeds": first_seeds,
        },
        processing={
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": logit_bias,
            "min_new_tokens": min_new_tokens,
        },
    )
    watch = Watch(check_stops("sample_many", stop, decode))
    asked, top = plan_logprobs("sample_many", logprobs, model.config.vocab_size)
    check_budgets("sample_many", request.plan)
    form = plan_cache(
        "sample_many",
        model,
        request,
        branches=samples,
        layout=layout,
        slack=slack,
        page_size=page_size,
        options=layout_options,
    )
    check_memory("sample_many", "samples", samples, model, form)
    if seed_BM is None:
        first_B1 = request.settings.seed_B[:, None]
        # uint32 wraps around, which is the rule.
        seed_BM = first_B1 + np.arange(samples, dtype=np.uint32)
    device = model.embed.device
    ids_BT, count_B, _ = device_arrays(request, device)
    terms = device_arrays(_branched(request, seed_BM), device)[2]
    given = params_of(model), ids_BT, count_B, terms, device_sources(request, device)
    sizes: dict[str, Any] = {"form": form, "samples": samples, "logprobs": asked, "top": top}
    promises = {"config": model.config, "rectangular": request.plan.rectangular}
    if watch.stops is None:
        text, cache = run_many(*given, **sizes, **promises)
    else:
        part = open_many(*given, **sizes, **promises)
        watch.look(part[0])
        later = onward(given[0], part, terms, watch, **promises)
        for part in later:
            watch.look(part[0])
        text, cache = watch.cut(part[0]), part[1]
    caches.check(cache)
    copied = None if cache.shared is None else int(cache.shared.copied)
    return _collect(request, seed_BM, text, watch, copied)


@torch.no_grad()
def open_many(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    form: Form,
    samples: int,
    rectangular: bool,
    logprobs: bool,
    top: int = 0,
) -> tuple[Text, Cache]:
    """Return the samples' texts of one token each, and their cache.

    Positions of the prompt count as forwarded in no sample.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row.
        terms: What each sample wants, one line a sample.
        sources: What the encoder reads, once a prompt; None without one.
        config: The model's.
        form: Of the cache, one row a prompt.
        samples: Of each row.
        rectangular: Whether all prompts have one length.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    with ids_BT.device:
        cache = form.make(config)
    if sources is not None:
        cache = caches.fill(cache, encode(params, *sources, config=config))
    longest, promises = int(count_B.max()), {"config": config, "rectangular": rectangular}
    logits_B1V, after = forward(
        params,
        ids_BT[:, :longest],
        cache,
        count_B,
        fresh=True,
        clean=True,
        last_only=True,
        **promises,
    )
    assert after is not None  # forward returns a cache for a cache
    ids_CT, count_C, logits_CV = (
        x.repeat_interleave(samples, 0) for x in (ids_BT, count_B, logits_B1V[:, 0])
    )
    slots = max(form.capacity + 1, ids_BT.shape[1])
    text = start(ids_CT, count_C, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    text = append(text, logits_CV, terms=terms)
    return text, caches.spread(after, samples)


def run_many(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    rectangular: bool,
    form: Form,
    samples: int,
    logprobs: bool,
    top: int = 0,
) -> tuple[Text, Cache]:
    """Return the finished samples' texts and cache: prefill, then a loop of steps.

    Args:
        params: See `open_many`, as for all others.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row.
        terms: What each sample wants.
        sources: What the encoder reads.
        config: The model's.
        rectangular: Whether all prompts have one length.
        form: Of the cache.
        samples: Of each row.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    promises: dict[str, Any] = {"config": config, "rectangular": rectangular}
    sizes: dict[str, Any] = {"form": form, "samples": samples, "logprobs": logprobs, "top": top}
    text, cache = open_many(params, ids_BT, count_B, terms, sources, **sizes, **promises)
    return extend(params, text, terms, cache, terms.budget_B.max(), **promises)


def _seeds(seeds: Any, samples: int) -> tuple[Any, np.ndarray | None]:
    """Return what `plan_sampling` checks, and the samples' seeds where each is given."""
    if not hasattr(seeds, "__len__") or not any(hasattr(row, "__len__") for row in seeds):
        return seeds, None
    rows = [[*row] if hasattr(row, "__len__") else [row] for row in seeds]
    for b, row in enumerate(rows):
        if len(row) != samples:
            raise RequestError(
                f"sample_many: seeds[{b}] has {len(row)} numbers, expected {samples}, one a "
                "sample. Give one a row to have the others counted up from it."
            )
        for seed in row:
            is_whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
            if not is_whole or not 0 <= seed < SEEDS:
                raise RequestError(
                    f"sample_many: seeds[{b}] holds {seed!r}, expected whole numbers from 0 to "
                    f"{SEEDS - 1}. Take it modulo {SEEDS}."
                )
    return [row[0] for row in rows], np.array(rows, np.uint32)


def _branched(request: Request, seed_BM: np.ndarray) -> Request:
    """Return the request with a row for each sample."""
    samples = seed_BM.shape[1]
    settings = {
        field.name: np.repeat(getattr(request.settings, field.name), samples)
        for field in dataclasses.fields(Settings)
    }
    rows = {
        name: np.repeat(getattr(request.plan, name), samples, axis=0)
        for name in ("ids_BT", "count_B", "budget_B", "held_B")
    }
    return dataclasses.replace(
        request,
        plan=dataclasses.replace(request.plan, **rows),
        processing=request.processing and request.processing.repeated(samples),
        settings=Settings(**settings | {"seed_B": seed_BM.reshape(-1)}),
    )


def _collect(
    request: Request, seed_BM: np.ndarray, text: Text, watch: Watch, copied: int | None
) -> Sampled:
    batch, samples = seed_BM.shape
    tokens_CS, length_C = text.tokens_BS.cpu().numpy(), text.length_B.cpu().numpy()
    rows = [line[:end] for line, end in zip(tokens_CS, length_C.tolist(), strict=True)]
    starts = np.repeat(request.plan.count_B, samples).tolist()
    groups = [slice(b * samples, (b + 1) * samples) for b in range(batch)]
    new = [line[at:].tolist() for line, at in zip(rows, starts, strict=True)]

    def each(x: Any) -> list[list[np.ndarray]]:
        # Copies: a view would keep all samples' alive.
        spans = zip(x.cpu().numpy(), starts, length_C.tolist(), strict=True)
        lines = [line[at:end].copy() for line, at, end in spans]
        return [lines[group] for group in groups]

    found = [list(watch.found[group]) for group in groups] if watch.stops else None
    forwarded_BM = text.forwarded_B.cpu().numpy().reshape(batch, samples)
    return Sampled(
        tokens=[rows[group][0].tolist() for group in groups],
        new_tokens=[new[group][0] for group in groups],
        samples=[new[group] for group in groups],
        seed_BM=seed_BM,
        forwarded_positions_B=request.plan.count_B + forwarded_BM.sum(1, dtype=np.int32),
        compilations=None,
        copied_pages=copied,
        logprobs=None if text.logprob_BS is None else each(text.logprob_BS),
        top_ids=None if text.top is None else each(text.top.id_BSA),
        top_logprobs=None if text.top is None else each(text.top.logprob_BSA),
        texts=None if found is None else [row[0].text for row in found],
        stopped=None if found is None else [row[0].stop for row in found],
        sample_texts=None if found is None else [[each.text for each in row] for row in found],
    )
