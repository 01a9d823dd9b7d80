"""Beam search: the likeliest texts of each prompt, found side by side.

Letters: B rows, T prompt tokens with padding, M texts of a row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Certain, Decode, Stops, check_stops
from torchkv import caches
from torchkv.beam_stops import search_past
from torchkv.beams import Beams, Goal, search
from torchkv.branching import check_budgets, check_memory, check_whole, plan_cache
from torchkv.model import Decoder, params_of
from torchkv.processor_settings import Bias
from torchkv.request import Request, check, device_arrays, device_sources
from torchkv.results import plan_logprobs

# Sums stay within 1e6 or so; their quotient must stay a float32.
_LARGEST_LOG = 60.0


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        tokens: Prompt and new ids of each row's best text.
        new_tokens: New ids of it; an end token that stopped it is its last.
        best: New ids of each row's `n_best` texts, the best first.
        score_BM: Of each text, the sum of its new tokens' natural log-probabilities over their
            number to the power of `length_penalty`; transformers' `sequences_scores`.
        ended_B: int32, how many of a row's `beams` best texts end with an end token, or by a
            stop string.
        forwarded_positions_B: int32, positions of each row that went through the model: the prompt
            once, then one a beam and step.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
        copied_pages: Pages copied because a beam wrote to one that others hold; None without pages.
        logprobs: With `logprobs`, of each of the `n_best` texts what `Generated` has of a row:
            under the model's own distribution, before any processor.
        top_ids: The likeliest ids at each new token's place.
        top_logprobs: Their log-probabilities.
        texts: With `stop`, the text of each row's best, up to its stop string.
        stopped: With `stop`, the string that ended it, or None.
        best_texts: With `stop`, of each of the `n_best` texts.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    best: list[list[list[int]]]
    score_BM: np.ndarray
    ended_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    copied_pages: int | None
    logprobs: list[list[np.ndarray]] | None = None
    top_ids: list[list[np.ndarray]] | None = None
    top_logprobs: list[list[np.ndarray]] | None = None
    texts: list[str] | None = None
    stopped: list[str | None] | None = None
    best_texts: list[list[str]] | None = None


def beam_search(
    model: Decoder,
    prompts: Any = None,
    *,
    beams: int,
    max_new_tokens: int | Sequence[int],
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    n_best: int = 1,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    logit_bias: Bias | Sequence[Bias | None] | None = None,
    min_new_tokens: int | Sequence[int] = 0,
    mask_BT: Any = None,
    encoder: Any = None,
    encoder_mask_BE: Any = None,
    end_ids: int | Sequence[int] | None = (),
    stop: str | Sequence[str] = (),
    decode: Decode | None = None,
    logprobs: bool | int = False,
    capacity: int | None = None,
    layout: str = "contiguous",
    slack: int = 0,
    page_size: int | None = None,
    layout_options: Mapping[str, Any] | None = None,
) -> Searched:
    """Return the best continuations of each prompt that a search with `beams` beams finds.

    Results are those of transformers 5.24's `generate(num_beams=...)` without sampling. A row of a
    ragged batch finds what it finds alone.

    Args:
        model: In evaluation mode.
        prompts: See `generate`, as for `mask_BT`, `encoder`, `encoder_mask_BE` and `end_ids`.
        beams: Texts that are continued side by side. 1 finds the greedy text, for that stops
            after its first end token.
        max_new_tokens: Budget, for all rows or one a row; at least 1. A text that reaches it
            competes as it is.
        length_penalty: Above 0 it favors long texts, below 0 short ones, 0 compares plain sums.
        early_stopping: True stops a row as soon as `beams` of its texts have ended. False stops it
            once no beam would beat the worst of them at its present length. "never" looks further:
            with a `length_penalty` above 0, at the longest length allowed.
        n_best: How many texts of each row to return.
        repetition_penalty: See `plan_processors`, as for the four that follow: of log-probabilities
            here, all of which are negative, before a beam's sum grows by them.
        presence_penalty: Of new tokens.
        frequency_penalty: Of new tokens, as often as they came.
        logit_bias: Added to the log-probabilities of the ids named.
        min_new_tokens: New tokens before any end token.
        mask_BT: Which ids of an array are real.
        encoder: One text a row, read once and shared by its beams.
        encoder_mask_BE: Which ids of such an array are real.
        end_ids: Tokens that end a text.
        stop: Strings that end a text as end tokens do: one whose newest token completes a string
            competes by the score of all its tokens. What is returned of it ends before the string,
            as in `generate`.
        decode: New ids -> text, for `stop`; a tokenizer's.
        logprobs: Whether to return the new tokens' log-probabilities; a number N from 1 to V also
            returns the N likeliest tokens at each place.
        capacity: Tokens that a beam can hold at most; by default what the request needs.
        layout: Of the cache: any that has `gather`; "paged" moves no keys and values, only lines of
            the page table.
        slack: See `caches.init`.
        page_size: Of the layout "paged"; None for its default.
        layout_options: What the layout alone understands.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range: as in
            `generate`, or fewer than 1 beam, more than the tokens that go on, more texts
            asked for than beams.
        CapacityError: The request does not fit; see `plan`.
        ShapeError: The prompts do not fit the model.
        Unsupported: The layout has no `gather`.

    Cost: the prompt once, then `beams` rows a step. Layouts but "paged" copy all beams' keys and
    values at each step.
    """
    request = check(
        "beam_search",
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        mask_BT=mask_BT,
        encoder=encoder,
        encoder_mask_BE=encoder_mask_BE,
        end_ids=end_ids,
        cache=None,
        capacity=capacity,
        sampling={},
        processing={
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": logit_bias,
            "min_new_tokens": min_new_tokens,
        },
    )
    beams, n_best = _check_numbers(request, beams, n_best, model.config.vocab_size)
    check_budgets("beam_search", request.plan)
    stops = check_stops("beam_search", stop, decode)
    asked, top = plan_logprobs("beam_search", logprobs, model.config.vocab_size)
    _check_goal(length_penalty, early_stopping, longest=int(request.plan.budget_B.max()))
    dtype, device = torch.promote_types(model.dtype, torch.float32), model.embed.device
    goal = Goal(
        torch.tensor(length_penalty, dtype=dtype, device=device),
        torch.tensor(early_stopping is True, device=device),
        torch.tensor(early_stopping == "never", device=device),
    )
    form = plan_cache(
        "beam_search",
        model,
        request,
        branches=beams,
        layout=layout,
        slack=slack,
        page_size=page_size,
        options=layout_options,
    )
    check_memory("beam_search", "beams", beams, model, form)
    given = params_of(model), *device_arrays(request, device), goal, device_sources(request, device)
    sizes: dict[str, Any] = {
        "config": model.config,
        "form": form,
        "beams": beams,
        "slots": int(request.plan.budget_B.max()),
        "rectangular": request.plan.rectangular,
        "logprobs": asked,
        "top": top,
    }
    if stops is None:
        found, cache = search(*given, **sizes)
    else:
        found, cache = search_past(*given, stops, **sizes)
    caches.check(cache)
    copied = None if cache.shared is None else int(cache.shared.copied)
    return _collect(request, found, stops, n_best=n_best, copied=copied)


def _check_numbers(request: Request, beams: int, n_best: int, vocabulary: int) -> tuple[int, int]:
    ends, found = set(request.end_ids), request.processing
    barred = [{t for t, b in row.items() if b == -math.inf} for row in found.bias] if found else []
    # A beam whose every continuation is barred would have none.
    out = max((len(ends | row) for row in barred), default=len(ends))
    beams = check_whole(
        "beam_search",
        "beams",
        beams,
        most=vocabulary - out,
        why=f"of {vocabulary} tokens those that go on ({out} end a text or are barred). Lower "
        "beams.",
    )
    why = "the beams. Raise beams, or lower n_best."
    return beams, check_whole("beam_search", "n_best", n_best, most=beams, why=why)


def _check_goal(length_penalty: Any, early_stopping: Any, *, longest: int) -> None:
    is_real = isinstance(length_penalty, int | float | np.integer | np.floating)
    if not is_real or isinstance(length_penalty, bool) or not math.isfinite(length_penalty):
        raise RequestError(
            f"beam_search: length_penalty is {length_penalty!r}, expected a finite number. 1.0 "
            "takes the mean log-probability."
        )
    if abs(length_penalty) * math.log(longest) > _LARGEST_LOG:
        most = _LARGEST_LOG / math.log(longest)
        raise RequestError(
            f"beam_search: length_penalty is {length_penalty}, expected {-most:.1f} to {most:.1f} "
            f"for texts of {longest} new tokens: no score could tell them apart. Take one nearer "
            "to 0."
        )
    if not (isinstance(early_stopping, bool) or early_stopping == "never"):
        raise RequestError(
            f"beam_search: early_stopping is {early_stopping!r}, expected True, False or 'never'. "
            "False is transformers' default."
        )


def _collect(
    request: Request,
    found: Beams,
    stops: Stops | None,
    *,
    n_best: int,
    copied: int | None,
) -> Searched:
    plan, ends = request.plan, set(request.end_ids)
    ended_BJS, length_BJ = found.ended_BJS.cpu().numpy(), found.length_BJ.cpu().numpy()
    whole = [
        [text[:length].tolist() for text, length in zip(text_JS, length_J, strict=True)]
        for text_JS, length_J in zip(ended_BJS, length_BJ.tolist(), strict=True)
    ]
    looked = [[_certain(stops, text) for text in row] for row in whole]
    pairs = [list(zip(*both, strict=True)) for both in zip(whole, looked, strict=True)]
    cut = [[text[: each.count] for text, each in row] for row in pairs]
    ended = [[ends.intersection(text[-1:]) or each.stop for text, each in row] for row in pairs]
    prompts = [
        row[:count].tolist() for row, count in zip(plan.ids_BT, plan.count_B.tolist(), strict=True)
    ]
    counts = [[len(text) for text in row[:n_best]] for row in cut]
    logprobs, top_ids, top_logprobs = _told(found, counts)
    return Searched(
        tokens=[prompt + row[0] for prompt, row in zip(prompts, cut, strict=True)],
        new_tokens=[row[0] for row in cut],
        best=[row[:n_best] for row in cut],
        score_BM=found.score_BJ.cpu().numpy()[:, :n_best],
        ended_B=np.array([sum(map(bool, row)) for row in ended], np.int32),
        forwarded_positions_B=found.forwarded_B.cpu().numpy(),
        compilations=None,
        copied_pages=copied,
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        texts=stops and [row[0].text for row in looked],
        stopped=stops and [row[0].stop for row in looked],
        best_texts=stops and [[each.text for each in row[:n_best]] for row in looked],
    )


def _certain(stops: Stops | None, ids: list[int]) -> Certain:
    return Certain(len(ids), "", None) if stops is None else stops.look(ids, is_last=True)


def _told(found: Beams, counts: list[list[int]]) -> tuple[Any, Any, Any]:
    """Return log-probabilities, likeliest ids and theirs, of as many tokens of each text."""
    told = found.ended_told
    if told is None:
        return None, None, None

    def each(x: Any) -> list[list[np.ndarray]]:
        # Copies: a view would keep all beams' alive.
        lines = zip(x.cpu().numpy(), counts, strict=True)
        return [
            [x_S[:n].copy() for x_S, n in zip(x_JS[: len(row)], row, strict=True)]
            for x_JS, row in lines
        ]

    if not told.id_BJSA.shape[3]:
        return each(told.logprob_BJS), None, None
    return each(told.logprob_BJS), each(told.id_BJSA), each(told.top_BJSA)
