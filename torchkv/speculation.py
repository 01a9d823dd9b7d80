"""What speculative generation runs: rounds that verify drafts, or make one plain step.

Letters: B rows, K drafted tokens, T prompt tokens with padding.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from torchkv import caches
from torchkv.caches import Cache
from torchkv.drafts import DraftModel, PromptLookup, draft_ahead, look_up, open_draft
from torchkv.loop import Terms, Text, extend, prefill, start
from torchkv.model import Params
from torchkv.mtp import MtpDraft, Stream, draft_mtp, open_mtp
from torchkv.stack import no_tap
from torchkv.verification import Tally, is_refused, no_tally, verify

Own = Cache | MtpDraft | None
"""What whoever drafts has read: a draft model's cache, a module's state, nothing of a lookup."""


@torch.no_grad()
def run(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    logprobs: bool = False,
    top: int = 0,
) -> tuple[Text, Cache, Tally]:
    """Return the finished texts, the cache and the tally: prefill, then rounds.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row; those of a row without budget are not forwarded.
        terms: What each row wants.
        cache: Consumed.
        draft: The model that drafts, with an empty cache, which is consumed; or an empty one for
            the model's own module, consumed too; None for a lookup.
        config: The model's.
        lookup: How the text is searched; None for a model or module.
        k: Drafts of a row and round at most.
        reach: Slots that the longest row needs at most.
        fresh: Whether the cache is empty.
        rectangular: Whether all rows have one length and one count.
        clean: Whether the cache's unused slots hold finite numbers; else they are scrubbed once.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    sizes: dict[str, Any] = {"config": config, "k": k, "reach": reach}
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "clean": clean}
    told: dict[str, Any] = {"logprobs": logprobs, "top": top}
    asked = ids_BT, count_B, terms, cache, draft
    state = open_rounds(params, *asked, **sizes, **promises, **told)
    model = draft if isinstance(draft, DraftModel) else None
    text, cache, _, tally = go_on(params, terms, model, *state, config=config, lookup=lookup, k=k)
    return text, cache, tally


@torch.no_grad()
def open_rounds(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    *,
    config: ModelConfig,
    k: int,
    reach: int,
    fresh: bool,
    rectangular: bool,
    clean: bool,
    logprobs: bool,
    top: int,
    marks: bool = False,
) -> tuple[Text, Cache, Own, Tally]:
    """Return the state before the first round: the prompts read, one new token in each row.

    Args:
        params: The model's.
        ids_BT: See `run`, as for all that are not named here.
        count_B: See `run`.
        terms: See `run`.
        cache: See `run`.
        draft: See `run`.
        config: See `run`.
        k: See `run`.
        reach: See `run`.
        fresh: See `run`.
        rectangular: See `run`.
        clean: See `run`.
        logprobs: See `run`.
        top: See `run`.
        marks: Whether the tally tells which tokens were drafts.
    """
    batch, width = ids_BT.shape
    slots = max(reach + 1, width)
    text = start(ids_BT, count_B, terms.budget_B, slots=slots, logprobs=logprobs, top=top)
    sizes: dict[str, Any] = {"config": config, "width": width, "reach": reach}
    promises: dict[str, Any] = {"fresh": fresh, "rectangular": rectangular, "clean": clean}
    first = torch.zeros((), dtype=torch.int32, device=ids_BT.device)
    heard = Stream(config)
    tap = heard if isinstance(draft, Cache) else no_tap
    text, cache = prefill(params, text, first, terms, cache, **sizes, **promises, tap=tap)
    # A row whose first token is its last one wants no drafts.
    read_B, own = count_B * (terms.budget_B > 1), None
    if isinstance(draft, DraftModel):
        own = open_draft(draft, ids_BT, read_B, rectangular=rectangular).cache
    elif isinstance(draft, Cache):
        read = params, heard.heard_BTD, ids_BT, draft, read_B
        own = open_mtp(*read, config=config, rectangular=rectangular)
    with ids_BT.device:
        tally = no_tally(batch, slots=slots if marks else None)
    return text, cache, own, tally


@torch.no_grad()
def go_on(
    params: Params,
    terms: Terms,
    draft: DraftModel | None,
    text: Text,
    cache: Cache,
    own: Own,
    tally: Tally,
    steps: Int[Array, ""] | None = None,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
) -> tuple[Text, Cache, Own, Tally]:
    """Return the state after rounds: until all rows have stopped, or one has `steps` tokens more.

    Args:
        params: The model's.
        terms: What each row wants.
        draft: The model that drafts, whose own cache does not matter; None for another.
        text: Its last tokens are not in the cache yet.
        cache: Consumed. Holds all tokens of the active rows but the last.
        own: What whoever drafts has read; consumed.
        tally: So far.
        steps: int32; None for no bound.
        config: The model's.
        lookup: How the text is searched; None for a model or module.
        k: Drafts of a row and round at most.
    """
    begun_B = text.new_B
    while bool(text.active_B.any()) and not is_refused(cache):
        if steps is not None and bool((text.new_B - begun_B).max() >= steps):
            break
        want_B = ((terms.budget_B - text.new_B - 1) * text.active_B).clamp(0, k)
        pause_B = tally.pause_B
        if isinstance(own, MtpDraft):
            drafts, own = draft_mtp(params, own, text, terms, want_B, config=config, k=k)
        elif draft is not None and own is not None:
            drafts, read = draft_ahead(replace(draft, cache=own), text, terms, want_B, k=k)
            own = read.cache
        else:
            assert lookup is not None  # one of the three drafts
            drafts = look_up(text, want_B * (pause_B == 0), k=k, lookup=lookup)
        steps_B, pause_B = tally.steps_B + text.active_B, (pause_B - 1).clamp(min=0)
        tally = replace(tally, steps_B=steps_B, pause_B=pause_B)
        heard = Stream(config)
        if bool(drafts.count_B.any()):
            tap = heard if isinstance(own, MtpDraft) else no_tap
            state = text, terms, cache, drafts, tally
            text, cache, tally = verify(params, *state, config=config, tap=tap)
            if isinstance(own, MtpDraft):
                own = replace(own, stream_BTD=heard.heard_BTD)
        else:
            one = torch.ones((), dtype=torch.int32)
            how = {"config": config, "rectangular": len(want_B) == 1}
            text, cache = extend(params, text, terms, cache, one, **how)
        if lookup is not None:
            tally = replace(tally, pause_B=tally.pause_B.clamp(max=lookup.longest_pause))
        if isinstance(own, Cache):
            # Of drafts that were all kept the last was never fed: there is nothing to give back.
            own = caches.rollback(own, torch.minimum(own.length_B, text.length_B - 1))
    return text, cache, own, tally
