"""Speculation in parts, between which the host looks at the texts for stop strings.

Letters: B rows, T prompt tokens with padding, S slots of the text.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from torchkv.caches import Cache
from torchkv.drafts import DraftModel, PromptLookup
from torchkv.loop import Terms, Text
from torchkv.model import Params
from torchkv.parts import STEPS
from torchkv.speculation import go_on, open_rounds
from torchkv.stopping import Watch
from torchkv.verification import Tally, is_refused


def run_rounds(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    watch: Watch,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
    **sizes: Any,
) -> tuple[Text, Cache, Tally]:
    """Return finished texts without what a stop string cut off, the cache with it, the tally.

    Args:
        params: The model's.
        ids_BT: See `speculation.run`, as for all that are not named here.
        count_B: See `speculation.run`.
        terms: See `speculation.run`.
        cache: Consumed.
        draft: See `speculation.run`.
        watch: Has seen the whole texts afterwards.
        config: See `speculation.run`.
        lookup: See `speculation.run`.
        k: See `speculation.run`.
        **sizes: The others of `speculation.run`.

    Cost: the host looks after each round that completes another 8 tokens of a row.
    """
    how: dict[str, Any] = {"config": config, "k": k}
    asked = ids_BT, count_B, terms, cache, draft
    text, cache, own, tally = open_rounds(params, *asked, **how, **sizes, marks=True)
    model, steps = draft if isinstance(draft, DraftModel) else None, torch.tensor(STEPS)
    watch.look(text)
    text = watch.halt(text)
    while bool(text.active_B.any()) and not is_refused(cache):
        state = text, cache, own, tally
        text, cache, own, tally = go_on(params, terms, model, *state, steps, **how, lookup=lookup)
        watch.look(text)
        text = watch.halt(text)
    text, tally = cut(watch, text, tally)
    return text, cache, tally


def cut(watch: Watch, text: Text, tally: Tally) -> tuple[Text, Tally]:
    """Return texts and tally without the tokens from each stop string on.

    They count as rolled back, and the drafts among them as not accepted.
    """
    after = watch.cut(text)
    assert tally.is_draft_BS is not None  # whoever looks wants the marks
    place_S = torch.arange(tally.is_draft_BS.shape[1], device=after.length_B.device)
    stands_BS = place_S < after.length_B[:, None]
    accepted_B = (tally.is_draft_BS & stands_BS).sum(1, dtype=torch.int32)
    rolled_back_B = tally.rolled_back_B + text.length_B - after.length_B
    return after, replace(tally, accepted_B=accepted_B, rolled_back_B=rolled_back_B)
