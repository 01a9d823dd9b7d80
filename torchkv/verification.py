"""A verifying step: drafts that enter the model at once, what is kept of them, what is taken back.

Letters: B rows, K drafted tokens, T = K + 1 tokens of a verifying step, S slots of the text, V
vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from torchkv import acceptance, caches, sampling
from torchkv.block import Tap
from torchkv.caches import Cache
from torchkv.drafts import Drafts
from torchkv.loop import Terms, Text, wanted
from torchkv.model import Params, forward
from torchkv.stack import no_tap

JUDGING = 1
"""Which of a place's random numbers decides whether its draft is kept, see `sampling.uniform`."""


@dataclass(frozen=True)
class Tally:
    """What became of the drafts so far, all int32.

    Attributes:
        drafted_B: Drafts that entered the model.
        accepted_B: Those of them that stand in the text.
        rolled_back_B: Positions that the cache gave back.
        steps_B: Rounds in which the row took part: forwards after the prompt's.
        missed_B: Verifying steps in turn of which no draft was kept.
        pause_B: Rounds for which the row makes no drafts.
        is_draft_BS: Which tokens of the texts were drafts, bool; written in place. None unless
            wanted.
    """

    drafted_B: Int[Array, " B"]
    accepted_B: Int[Array, " B"]
    rolled_back_B: Int[Array, " B"]
    steps_B: Int[Array, " B"]
    missed_B: Int[Array, " B"]
    pause_B: Int[Array, " B"]
    is_draft_BS: Bool[Array, "B S"] | None = None


def no_tally(batch: int, *, slots: int | None = None) -> Tally:
    """Return the tally before the first round.

    On torch's default device; `with torch.device(...)` sets it.

    Args:
        batch: Rows.
        slots: Of the texts, where it is wanted which tokens were drafts.
    """
    marks_BS = None if slots is None else torch.zeros((batch, slots), dtype=torch.bool)
    return Tally(*(torch.zeros(batch, dtype=torch.int32) for _ in range(6)), is_draft_BS=marks_BS)


@torch.no_grad()
def verify(
    params: Params,
    text: Text,
    terms: Terms,
    cache: Cache,
    drafts: Drafts,
    tally: Tally,
    *,
    config: ModelConfig,
    tap: Tap = no_tap,
) -> tuple[Text, Cache, Tally]:
    """Return the texts with each row's kept drafts and one token more, and the cache of just those.

    The last token of each active row and its drafts enter the model in one step; each row keeps its
    own number and rolls back alone. An end token among them is the last that counts.

    Args:
        params: The model's.
        text: Its last tokens are not in the cache yet; written in place.
        terms: What each row wants.
        cache: Consumed. Holds all tokens of the active rows but the last.
        drafts: At most as many of a row as its budget has tokens after the next.
        tally: So far.
        config: The model's.
        tap: See `forward`.
    """
    drafted_B = drafts.count_B * text.active_B
    taken_B = drafted_B + text.active_B
    last_B1 = text.tokens_BS.gather(1, (text.length_B.long() - 1).unsqueeze(1))
    width = int(taken_B.max())
    ids_BT = torch.cat([last_B1, drafts.ids_BK], 1)[:, :width]
    logits_BTV, after = forward(params, ids_BT, cache, taken_B, config=config, clean=True, tap=tap)
    assert after is not None  # forward returns a cache for a cache
    wanted_BTV = _wanted(logits_BTV, ids_BT, text, terms)
    kept_B, next_B = _judge(wanted_BTV, drafts, drafted_B, text, terms)
    held_B, begun_B = cache.length_B, text.length_B
    text, new_B = _append(text, drafts, kept_B, next_B, terms, logits_BTV)
    accepted_B = torch.minimum(kept_B, new_B)
    failed_B = (drafted_B > 0) & (accepted_B == 0)
    missed_B = (tally.missed_B + failed_B).masked_fill(accepted_B > 0, 0)
    pause_B = (2 ** (missed_B - 1).clamp(0, 16)).int()
    tally = replace(
        tally,
        drafted_B=tally.drafted_B + drafted_B,
        accepted_B=tally.accepted_B + accepted_B,
        rolled_back_B=tally.rolled_back_B + taken_B - new_B,
        missed_B=missed_B,
        pause_B=torch.where(failed_B, pause_B, tally.pause_B),
    )
    if tally.is_draft_BS is not None:
        for marks_S, begun, kept in zip(tally.is_draft_BS, begun_B, accepted_B, strict=True):
            marks_S[int(begun) : int(begun + kept)] = True
    text = replace(text, forwarded_B=text.forwarded_B + taken_B)
    # A rollback would clear the mark of a row that was refused.
    if not is_refused(after):
        after = caches.rollback(after, held_B + new_B)
    return text, after, tally


def _wanted(logits_BTV: Array, ids_BT: Array, text: Text, terms: Terms) -> Array:
    """Return what each place's token is taken from, all drafts before it kept."""
    if terms.processors is None:
        return logits_BTV
    width, slots = ids_BT.shape[1], text.tokens_BS.shape[1]
    # Room for the last token and all drafts, whatever a row's own budget leaves.
    more_BT = text.tokens_BS.new_zeros(len(ids_BT), width)
    tokens_BS, each = torch.cat([text.tokens_BS, more_BT], 1), []
    first_B1 = text.length_B.long().unsqueeze(1) - 1
    places = torch.arange(width, device=first_B1.device)
    tokens_BS.scatter_(1, (first_B1 + places).clamp(max=slots + width - 1), ids_BT)
    for i in range(width):
        known = tokens_BS, text.length_B + i, text.new_B + i
        each.append(wanted(logits_BTV[:, i], terms, *known))
    return torch.stack(each, 1)


def _judge(
    logits_BTV: Array, drafts: Drafts, count_B: Array, text: Text, terms: Terms
) -> tuple[Array, Array]:
    places = logits_BTV.shape[1]
    draft_BK = drafts.ids_BK[:, : places - 1]
    if terms.sampler is None:
        return acceptance.judge_greedy(logits_BTV, draft_BK, count_B)
    seed_B, first_B = terms.sampler.seed_B, terms.held_B + text.length_B
    # A place that gets its token after the drafts draws as a plain step does there.
    next_BT, accept_BT = (
        torch.stack([sampling.uniform(seed_B, first_B + i, stream=s) for i in range(places)], 1)
        for s in (0, JUDGING)
    )
    q_BKV = None if drafts.q_BKV is None else drafts.q_BKV[:, : places - 1]
    p_BTV = acceptance.probabilities(logits_BTV, terms.sampler)
    return acceptance.judge(p_BTV, q_BKV, draft_BK, count_B, accept_BT[:, :-1], next_BT)


def _append(
    text: Text, drafts: Drafts, kept_B: Array, next_B: Array, terms: Terms, logits_BTV: Array
) -> tuple[Text, Array]:
    """Return the texts with the kept drafts and the token after them, up to an end; how many."""
    ends, added, stopped = set(terms.end_E.tolist()), [], []
    rows = zip(
        text.active_B.tolist(),
        text.length_B.tolist(),
        drafts.ids_BK.tolist(),
        kept_B.tolist(),
        next_B.tolist(),
        strict=True,
    )
    for b, (is_active, length, drafted, kept, following) in enumerate(rows):
        new = [*drafted[:kept], following] if is_active else []
        ended = [i for i, token in enumerate(new) if token in ends]
        new = new[: ended[0] + 1] if ended else new
        new_T, at = torch.tensor(new, dtype=torch.int32), slice(length, length + len(new))
        text.tokens_BS[b, at] = new_T
        _tell(text, b, at, new_T.to(logits_BTV.device), logits_BTV[b, : len(new)])
        added.append(len(new))
        stopped.append(bool(ended))
    device = text.length_B.device
    new_B = torch.tensor(added, dtype=torch.int32, device=device)
    total_B = text.new_B + new_B
    has_ended_B = torch.tensor(stopped, device=device)
    appended = replace(
        text,
        length_B=text.length_B + new_B,
        new_B=total_B,
        active_B=text.active_B & ~has_ended_B & (total_B < terms.budget_B),
    )
    return appended, new_B


def _tell(text: Text, b: int, at: slice, new_T: Array, logits_TV: Array) -> None:
    """Write the log-probabilities of one row's new tokens, where they are wanted."""
    if text.logprob_BS is not None and len(new_T):
        text.logprob_BS[b, at] = sampling.logprob(logits_TV, new_T)
    if text.top is not None and len(new_T):
        id_TA, logprob_TA = sampling.top_logprobs(logits_TV, top=text.top.id_BSA.shape[2])
        text.top.id_BSA[b, at], text.top.logprob_BSA[b, at] = id_TA, logprob_TA


def is_refused(cache: Cache) -> bool:
    """Return whether a row found no room: then no round may follow."""
    return bool((cache.overflow_B > 0).any())
