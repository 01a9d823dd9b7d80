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
from torchkv import caches
from torchkv.beams import Beams, Goal, search
from torchkv.branching import check_budgets, check_whole, plan_cache
from torchkv.model import Decoder, params_of
from torchkv.processor_settings import Bias
from torchkv.request import Request, check, device_arrays, device_sources

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
        ended_B: int32, how many of a row's `beams` best texts end with an end token.
        forwarded_positions_B: int32, positions of each row that went through the model: the prompt
            once, then one a beam and step.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
        copied_pages: Pages copied because a beam wrote to one that others hold; None without pages.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    best: list[list[list[int]]]
    score_BM: np.ndarray
    ended_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    copied_pages: int | None


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
    ids_BT, count_B, terms = device_arrays(request, device)
    found, cache = search(
        params_of(model),
        ids_BT,
        count_B,
        terms,
        goal,
        device_sources(request, device),
        config=model.config,
        form=form,
        beams=beams,
        slots=int(request.plan.budget_B.max()),
        rectangular=request.plan.rectangular,
    )
    caches.check(cache)
    copied = None if cache.shared is None else int(cache.shared.copied)
    return _collect(request, found, n_best, copied)


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


def _collect(request: Request, found: Beams, n_best: int, copied: int | None) -> Searched:
    plan, ends = request.plan, set(request.end_ids)
    ended_BJS, length_BJ = found.ended_BJS.cpu().numpy(), found.length_BJ.cpu().numpy()
    texts = [
        [text[:length].tolist() for text, length in zip(text_JS, length_J, strict=True)]
        for text_JS, length_J in zip(ended_BJS, length_BJ.tolist(), strict=True)
    ]
    prompts = [
        row[:count].tolist() for row, count in zip(plan.ids_BT, plan.count_B.tolist(), strict=True)
    ]
    return Searched(
        tokens=[prompt + row[0] for prompt, row in zip(prompts, texts, strict=True)],
        new_tokens=[row[0] for row in texts],
        best=[row[:n_best] for row in texts],
        score_BM=found.score_BJ[:, :n_best].cpu().numpy().copy(),
        ended_B=np.array([sum(text[-1] in ends for text in row) for row in texts], np.int32),
        forwarded_positions_B=found.forwarded_B.cpu().numpy().copy(),
        compilations=None,
        copied_pages=copied,
    )
