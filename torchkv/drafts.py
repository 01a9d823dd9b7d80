"""Where drafted tokens come from: the text itself, or a smaller model with a cache of its own.

Letters: B rows, K drafted tokens, S slots of the text, V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError
from torchkv import acceptance, sampling
from torchkv.caches import Cache
from torchkv.loop import Terms, Text, wanted
from torchkv.model import Params, forward

DRAFTING = 2
"""Which of a place's random numbers a draft is drawn with, see `sampling.uniform`."""


@dataclass(frozen=True)
class PromptLookup:
    """Drafts from the text: what followed its last tokens when they stood there before.

    Attributes:
        longest: Last tokens that are looked for at most; where as many are found twice, the later
            place counts.
        shortest: At least.
        longest_pause: Steps without drafts at most after some that failed: 1, then 2, 4, ... for
            each more of which nothing was kept. So a text that only seems to repeat costs little.
    """

    longest: int = 4
    shortest: int = 2
    longest_pause: int = 16

    def __post_init__(self) -> None:
        for name, least in (("shortest", 1), ("longest", self.shortest), ("longest_pause", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RequestError(
                    f"PromptLookup: {name} is {value!r}, expected a whole number of at least "
                    f"{least}."
                )


@dataclass(frozen=True)
class Drafts:
    """What a verifying step is to judge.

    Attributes:
        ids_BK: int32; what stands beyond a row's count does not matter.
        count_B: int32, how many of the K are drafts.
        q_BKV: The probabilities that they were drawn from; None where nothing was drawn.
    """

    ids_BK: Int[Array, "B K"]
    count_B: Int[Array, " B"]
    q_BKV: Float[Array, "B K V"] | None


@dataclass(frozen=True)
class DraftModel:
    """A smaller model that drafts, and what it has read.

    Attributes:
        params: Its own, from `params_of`.
        cache: Its own; lacks two tokens of a text at most.
        config: Its own.
    """

    params: Params
    cache: Cache
    config: ModelConfig


def look_up(text: Text, want_B: Int[Array, " B"], *, k: int, lookup: PromptLookup) -> Drafts:
    """Return for each row what followed its last tokens where they stood before, or no drafts.

    The longest match counts, of equal ones the latest. What follows it may run into the end of the
    text, and then goes on with itself.

    Args:
        text: What is searched.
        want_B: int32, drafts of each row at most.
        k: K.
        lookup: How long a match is.

    Cost: reads the text once for each of `longest` tokens.
    """
    rows = zip(text.tokens_BS.tolist(), text.length_B.tolist(), want_B.tolist(), strict=True)
    found = [_continued(ids[:end], lookup) if want else [] for ids, end, want in rows]
    # Beyond what is known the text would go on with its own drafts.
    ids_BK = [[each[i % len(each)] if each else 0 for i in range(k)] for each in found]
    has_B = torch.tensor([bool(each) for each in found], device=want_B.device)
    drafts_BK = torch.tensor(ids_BK, dtype=torch.int32, device=want_B.device)
    return Drafts(drafts_BK, want_B.masked_fill(~has_B, 0), None)


def _continued(ids: list[int], lookup: PromptLookup) -> list[int]:
    """Return the text after the latest place where its last tokens stood, of as many as can be."""
    for length in range(min(lookup.longest, len(ids) - 1), lookup.shortest - 1, -1):
        tail = ids[-length:]
        for at in range(len(ids) - length - 1, -1, -1):
            if ids[at : at + length] == tail:
                return ids[at + length :]
    return []


def open_draft(
    draft: DraftModel, ids_BT: Int[Array, "B T"], count_B: Int[Array, " B"], *, rectangular: bool
) -> DraftModel:
    """Return a draft model that has read the prompts.

    Args:
        draft: With an empty cache; consumed.
        ids_BT: int32 prompts from the left.
        count_B: int32, tokens of each; 0 for a row that wants no drafts.
        rectangular: Whether all rows have one count.
    """
    promises = {"fresh": True, "rectangular": rectangular, "clean": True}
    how = {"config": draft.config, "last_only": True, **promises}
    ids_BT = ids_BT[:, : max(int(count_B.max()), 1)]
    _, after = forward(draft.params, ids_BT, draft.cache, count_B, **how)
    assert after is not None  # forward returns a cache for a cache
    return replace(draft, cache=after)


def draft_ahead(
    draft: DraftModel, text: Text, terms: Terms, want_B: Int[Array, " B"], *, k: int
) -> tuple[Drafts, DraftModel]:
    """Return the drafts of a model, one after the other; it has read all of them but the last.

    First it reads what it lacks of the text: the last token, and after drafts that were all kept
    the last of those too, which nobody has fed it.

    Args:
        draft: The model; its cache is consumed.
        text: What it continues.
        terms: Drafts are drawn as the rows' tokens are, with random numbers of their own.
        want_B: int32, drafts of each row; one that wants none is not forwarded.
        k: K.

    Cost: as many steps of the draft model as the row that wants most.
    """
    cache, tokens_BS = draft.cache, text.tokens_BS.clone()
    drafted: list[Array] = []
    q: list[Array] = []
    for at in range(int(want_B.max())):
        if at == 0:
            missing_B = text.length_B - cache.length_B
            width = torch.arange(2, device=want_B.device)
            place_B2 = (cache.length_B.unsqueeze(1) + width).clamp(max=text.tokens_BS.shape[1] - 1)
            ids_BT = text.tokens_BS.gather(1, place_B2)
        else:
            missing_B, ids_BT = torch.ones_like(want_B), drafted[-1].unsqueeze(1)
        count_B = missing_B * (want_B > at)
        ids_BT = ids_BT[:, : int(count_B.max())]
        logits_B1V, after = forward(
            draft.params, ids_BT, cache, count_B, config=draft.config, clean=True, last_only=True
        )
        assert after is not None  # forward returns a cache for a cache
        cache = after
        known = tokens_BS, text.length_B + at, text.new_B + at
        next_B, q_BV = draw_drafts(logits_B1V, terms, *known)
        # Beyond a row's room there is no row that wants a draft.
        place_B1 = (text.length_B.long() + at).clamp(max=tokens_BS.shape[1] - 1).unsqueeze(1)
        tokens_BS.scatter_(1, place_B1, next_B.unsqueeze(1))
        drafted.append(next_B)
        q += [] if q_BV is None else [q_BV]
    ids_BK = torch.stack([*drafted, *[torch.zeros_like(want_B)] * (k - len(drafted))], 1)
    return Drafts(ids_BK, want_B, torch.stack(q, 1) if q else None), replace(draft, cache=cache)


def draw_drafts(
    logits_B1V: Float[Array, "B 1 V"],
    terms: Terms,
    tokens_BS: Int[Array, "B S"],
    length_B: Int[Array, " B"],
    new_B: Int[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, "B V"] | None]:
    """Return a drafted token a row, and the probabilities that they were drawn from.

    None where nothing is drawn.

    Args:
        logits_B1V: Of whatever drafts.
        terms: Drafts are taken as the rows' tokens are.
        tokens_BS: int32 texts with the drafts so far.
        length_B: int32, tokens of each with them.
        new_B: int32, the last of them that are new.
    """
    logits_BV = wanted(logits_B1V[:, 0], terms, tokens_BS, length_B, new_B)
    if terms.sampler is None:
        return sampling.greedy(logits_BV), None
    q_BV = acceptance.probabilities(logits_BV[:, None], terms.sampler)[:, 0]
    number_B = sampling.uniform(terms.sampler.seed_B, terms.held_B + length_B, stream=DRAFTING)
    return acceptance.draw(q_BV, number_B), q_BV
