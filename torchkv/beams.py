"""What beam search runs: every prompt once, then steps of all its beams.

Definitions are those of transformers 5.24, generation/utils.py (`_beam_search`): of a row's J beams
times V continuations the J likeliest that do not end go on; those among the J likeliest that end
compete, by score, with the texts that ended before. A score is the sum of the new tokens' natural
log-probabilities over the number of new tokens to the power of the length penalty. Prompts do not
count; an end token does. Processors change the log-probabilities, as there: their sums need not be
those of a distribution.

Letters: B rows, J beams of a row, C beams of all rows, one after the other (C = B*J), T prompt
tokens with padding, S new tokens at most, E end tokens (of an encoder's text: its tokens), M
continuations or texts among which J are chosen, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from torchkv import caches
from torchkv.beam_logprobs import Told, join, nothing_told, take, tell
from torchkv.branching import Form
from torchkv.caches import Cache
from torchkv.encoder import encode
from torchkv.loop import Sources, Terms
from torchkv.model import Params, forward
from torchkv.processors import Processors, process


@dataclass(frozen=True)
class Goal:
    """What counts as better, and when a row has found enough.

    Attributes:
        length_penalty: The power of a text's length that its sum is divided by, in the dtype of
            scores.
        is_eager: A row stops as soon as J of its texts have ended.
        is_patient: It goes on while a beam could beat the worst of them at any length allowed;
            otherwise, while one would at its present length.
    """

    length_penalty: Float[Array, ""]
    is_eager: Bool[Array, ""]
    is_patient: Bool[Array, ""]


@dataclass(frozen=True)
class Beams:
    """The search's state.

    Attributes:
        token_BJS: int32, new tokens of the beams that go on, the likeliest first.
        sum_BJ: Their log-probabilities' sums; -inf for a beam that has not begun.
        ended_BJS: int32, new tokens of the best texts that have ended, the best first.
        score_BJ: Their scores; -inf where none has ended yet.
        length_BJ: int32, their new tokens.
        from_C: int32, the line of the cache that each beam continues.
        active_B: Rows that go on.
        new: int32, new tokens of every beam of an active row.
        forwarded_B: int32, positions that entered the model, of all beams.
        told: Log-probabilities of the beams' tokens; None unless wanted.
        ended_told: Of the ended texts'.
    """

    token_BJS: Int[Array, "B J S"]
    sum_BJ: Float[Array, "B J"]
    ended_BJS: Int[Array, "B J S"]
    score_BJ: Float[Array, "B J"]
    length_BJ: Int[Array, "B J"]
    from_C: Int[Array, " C"]
    active_B: Bool[Array, " B"]
    new: Int[Array, ""]
    forwarded_B: Int[Array, " B"]
    told: Told | None = None
    ended_told: Told | None = None


@torch.no_grad()
def search(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    goal: Goal,
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    form: Form,
    beams: int,
    slots: int,
    rectangular: bool,
    logprobs: bool = False,
    top: int = 0,
) -> tuple[Beams, Cache]:
    """Return the finished search and its cache: prefill, then a loop of steps of all beams.

    Args:
        params: The model's.
        ids_BT: int32 prompts from the left.
        count_B: int32, prompt tokens of each row.
        terms: Budgets, of at least one token, end tokens and processors; nothing is drawn.
        goal: What is searched for.
        sources: What the encoder reads, once a prompt; None without one.
        config: The model's.
        form: Of the cache, one row a prompt.
        beams: Of each row; at most as many as tokens that do not end a text.
        slots: New tokens that a beam has room for: the largest budget, or more.
        rectangular: Whether all prompts have one length.
        logprobs: Whether the texts carry them.
        top: Of how many of the likeliest tokens too.
    """
    asked = params, ids_BT, count_B, sources
    how: dict[str, Any] = {"config": config, "rectangular": rectangular}
    told: dict[str, Any] = {"logprobs": logprobs, "top": top}
    sizes: dict[str, Any] = {"form": form, "beams": beams, "slots": slots}
    state, cache, logits_CV = open_search(*asked, **sizes, **how, **told)
    given = {"prompts": (ids_BT, count_B), "terms": terms, "goal": goal}
    state = choose(state, logits_CV, **given)
    while bool(state.active_B.any()):
        state, cache, logits_CV = feed(params, state, cache, **how)
        state = choose(state, logits_CV, **given)
    return state, cache


@torch.no_grad()
def open_search(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    sources: Sources | None = None,
    *,
    config: ModelConfig,
    form: Form,
    beams: int,
    slots: int,
    rectangular: bool,
    logprobs: bool,
    top: int,
) -> tuple[Beams, Cache, Float[Array, "C V"]]:
    """Return the search before its first choice, all beams' cache, the logits of the first tokens.

    Args:
        params: See `search`, as for all others.
        ids_BT: See `search`.
        count_B: See `search`.
        sources: See `search`.
        config: See `search`.
        form: See `search`.
        beams: See `search`.
        slots: See `search`.
        rectangular: See `search`.
        logprobs: See `search`.
        top: See `search`.
    """
    with ids_BT.device:
        cache = form.make(config)
        told = nothing_told(len(count_B), beams, slots, top=top) if logprobs else None
    if sources is not None:
        cache = caches.fill(cache, encode(params, *sources, config=config))
    longest = int(count_B.max())
    promises = {"config": config, "last_only": True, "rectangular": rectangular, "clean": True}
    logits_B1V, after = forward(params, ids_BT[:, :longest], cache, count_B, fresh=True, **promises)
    assert after is not None  # forward returns a cache for a cache
    logits_CV = logits_B1V[:, 0].repeat_interleave(beams, 0)
    dtype = torch.promote_types(logits_CV.dtype, torch.float32)
    state = start(count_B, beams=beams, slots=slots, dtype=dtype, told=told)
    return state, caches.spread(after, beams), logits_CV


@torch.no_grad()
def feed(
    params: Params, state: Beams, cache: Cache, *, config: ModelConfig, rectangular: bool
) -> tuple[Beams, Cache, Float[Array, "C V"]]:
    """Return the search, the cache with the last token of each active row's beams, their logits.

    Args:
        params: The model's.
        state: After a choice.
        cache: Of all beams, as before it; consumed.
        config: The model's.
        rectangular: Whether all prompts have one length.
    """
    beams = state.sum_BJ.shape[1]
    if beams > 1:
        # Reordered before a forward, not after: the last choice moves nothing.
        cache = caches.gather(cache, state.from_C)
    one_C = state.active_B.int().repeat_interleave(beams)
    last_C1 = state.token_BJS[:, :, int(state.new) - 1].reshape(-1, 1)
    promises = {"config": config, "last_only": True, "rectangular": rectangular, "clean": True}
    logits_C1V, after = forward(params, last_C1, cache, one_C, **promises)
    assert after is not None  # forward returns a cache for a cache
    forwarded_B = state.forwarded_B + beams * state.active_B.int()
    return replace(state, forwarded_B=forwarded_B), after, logits_C1V[:, 0]


def start(
    count_B: Int[Array, " B"], *, beams: int, slots: int, dtype: Any, told: Told | None = None
) -> Beams:
    """Return the search before its first choice, for which all beams of a row see the same logits.

    Args:
        count_B: int32, prompt tokens of each row, all of which have entered the model.
        beams: Of each row.
        slots: New tokens that a beam has room for.
        dtype: Of sums and scores.
        told: Room for log-probabilities; None unless wanted.
    """
    batch, device = count_B.shape[0], count_B.device
    none_BJ = torch.full((batch, beams), -torch.inf, dtype=dtype, device=device)
    # One beam has begun; the others are copies of it that must not double its continuations.
    sum_BJ = none_BJ.clone()
    sum_BJ[:, 0] = 0
    token_BJS = torch.zeros((batch, beams, slots), dtype=torch.int32, device=device)
    return Beams(
        token_BJS=token_BJS,
        sum_BJ=sum_BJ,
        ended_BJS=token_BJS.clone(),
        score_BJ=none_BJ,
        length_BJ=torch.zeros((batch, beams), dtype=torch.int32, device=device),
        from_C=torch.arange(batch * beams, dtype=torch.int32, device=device),
        active_B=torch.ones(batch, dtype=torch.bool, device=device),
        new=torch.zeros((), dtype=torch.int32, device=device),
        forwarded_B=count_B.clone(),
        told=told,
        ended_told=told,
    )


def choose(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    hit_BM: Int[Array, "B M"] | None = None,
    *,
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    goal: Goal,
) -> Beams:
    """Return the search with one more token in each beam of the active rows.

    Args:
        state: Before it.
        logits_CV: The model's for each beam's next token.
        hit_BM: Continuations that end a text beside those by an end token, as numbers beam * V +
            token; J * V for none. None for none at all.
        prompts: int32 ids from the left and how many of each row count, for the processors.
        terms: Budgets, end tokens and processors.
        goal: What is searched for.

    Cost: passes once over the J*V continuations of a row.
    """
    (batch, beams), vocabulary = state.sum_BJ.shape, logits_CV.shape[1]
    at, new = int(state.new), state.new + 1
    hits = 0 if hit_BM is None else hit_BM.shape[1]
    # Each beam's end tokens may all be among the likeliest: so many more still leave J to go on.
    most = min((1 + len(terms.end_E)) * beams + hits, beams * vocabulary)
    sum_BM, flat_BM = likeliest(state, logits_CV, prompts, terms, most=most)
    parent_BM, last_BM = (flat_BM // vocabulary).long(), flat_BM % vocabulary
    token_BMS = _lines(state.token_BJS, parent_BM)
    token_BMS[:, :, at] = last_BM
    ends_BM = torch.isin(last_BM, terms.end_E)
    if hit_BM is not None:
        ends_BM |= (flat_BM[:, :, None] == hit_BM[:, None]).any(2)
    # Stable: what does not end comes first, the likeliest before the others.
    going_BJ = ends_BM.int().argsort(dim=1, stable=True)[:, :beams]
    is_last_B = new >= terms.budget_B
    stops_BJ = (ends_BM[:, :beams] | is_last_B[:, None]) & state.active_B[:, None]
    score_BJ = sum_BM[:, :beams] / new.to(sum_BM) ** goal.length_penalty
    score_BJ = score_BJ.masked_fill(~stops_BJ, -torch.inf)
    told = None
    if state.told is not None:
        own_CV = torch.log_softmax(logits_CV, -1, dtype=state.sum_BJ.dtype)
        own_BJV = own_CV.reshape(batch, beams, vocabulary)
        told = tell(state.told, own_BJV, parent_BM, last_BM, at)
    ended = _merge(state, token_BMS[:, :beams], score_BJ, new, told)
    first_B1 = torch.arange(0, batch * beams, beams, device=flat_BM.device).unsqueeze(1)
    from_BJ = (first_B1 + parent_BM.gather(1, going_BJ)).int()
    stay_C = torch.arange(batch * beams, dtype=torch.int32, device=flat_BM.device)
    active_B1 = state.active_B.unsqueeze(1)
    state = replace(
        ended,
        token_BJS=torch.where(active_B1.unsqueeze(2), _lines(token_BMS, going_BJ), state.token_BJS),
        sum_BJ=torch.where(active_B1, sum_BM.gather(1, going_BJ), state.sum_BJ),
        from_C=torch.where(active_B1, from_BJ, stay_C.reshape(batch, beams)).reshape(-1),
        new=new,
    )
    if told is not None and ended.told is not None:
        going, active_B = take(told, going_BJ), state.active_B
        state = replace(state, told=_where_active(active_B, going, ended.told))
    stops_B = is_last_B | _has_enough(state, terms=terms, goal=goal)
    return replace(state, active_B=state.active_B & ~stops_B)


@torch.no_grad()
def likeliest(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    *,
    most: int,
) -> tuple[Float[Array, "B M"], Int[Array, "B M"]]:
    """Return sums and numbers (beam * V + token, int32) of each row's likeliest continuations.

    Args:
        state: See `choose`, as for all but the last.
        logits_CV: See `choose`.
        prompts: See `choose`.
        terms: See `choose`.
        most: M.
    """
    logprob_CV = torch.log_softmax(logits_CV, -1, dtype=state.sum_BJ.dtype)
    if terms.processors is not None:
        logprob_CV = _processed(logprob_CV, state, prompts, terms)
    sum_CV = state.sum_BJ.reshape(-1, 1) + logprob_CV
    sum_BM, flat_BM = sum_CV.reshape(len(state.sum_BJ), -1).topk(most)
    return sum_BM, flat_BM.int()


def _processed(
    logprob_CV: Array, state: Beams, prompts: tuple[Array, Array], terms: Terms
) -> Array:
    """Return the log-probabilities as each beam's own text, prompt and new, changes them."""
    assert terms.processors is not None
    beams, new = state.token_BJS.shape[1], int(state.new)
    texts = [
        torch.cat((prompt_T[: int(count)], new_S[:new]))
        for prompt_T, count, beams_JS in zip(*prompts, state.token_BJS, strict=True)
        for new_S in beams_JS
    ]
    text_CW = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    length_C = prompts[1].repeat_interleave(beams) + new
    own = _for_beams(terms.processors, beams)
    return process(logprob_CV, own, text_CW, length_C, torch.full_like(length_C, new), terms.end_E)


def _for_beams(processors: Processors, beams: int) -> Processors:
    """Return what each row wants, once for each of its beams."""

    def each(x: Array) -> Array:
        return x.repeat_interleave(beams, 0)

    return Processors(
        each(processors.repetition_B),
        each(processors.presence_B),
        each(processors.frequency_B),
        each(processors.min_new_B),
        each(processors.bias_id_BJ),
        each(processors.bias_BJ),
        None if processors.known_BV is None else each(processors.known_BV),
    )


def _merge(state: Beams, token_BJS: Array, score_BJ: Array, new: Array, told: Told | None) -> Beams:
    """Return the search with the J best of the texts that have ended: of before, and given."""
    score_BM, place_BM = torch.cat((state.score_BJ, score_BJ), 1).sort(
        dim=1, descending=True, stable=True
    )
    place_BJ = place_BM[:, : score_BJ.shape[1]]
    length_BM = torch.cat((state.length_BJ, new.expand_as(state.length_BJ)), 1)
    ended_told = None
    if told is not None and state.ended_told is not None:
        ended_told = take(join(state.ended_told, told), place_BJ)
    return replace(
        state,
        ended_BJS=_lines(torch.cat((state.ended_BJS, token_BJS), 1), place_BJ),
        score_BJ=score_BM[:, : score_BJ.shape[1]],
        length_BJ=length_BM.gather(1, place_BJ),
        ended_told=ended_told,
    )


def _has_enough(state: Beams, *, terms: Terms, goal: Goal) -> Array:
    """Return which rows have found J texts and could find no better one."""
    worst_B, best_B = state.score_BJ[:, -1], state.sum_BJ[:, 0]
    is_ahead = bool(goal.is_patient) and float(goal.length_penalty) > 0
    length_B = terms.budget_B if is_ahead else state.new.expand_as(terms.budget_B)
    hope_B = best_B / length_B.to(best_B) ** goal.length_penalty
    return worst_B.isfinite() & (goal.is_eager | (hope_B <= worst_B))


def _where_active(active_B: Array, new: Told, old: Told) -> Told:
    pairs = zip(vars(new).values(), vars(old).values(), strict=True)
    return Told(*(torch.where(active_B.reshape(-1, *[1] * (x.ndim - 1)), x, y) for x, y in pairs))


def _lines(x_BMS: Array, place_BJ: Array) -> Array:
    return x_BMS.gather(1, place_BJ.unsqueeze(2).expand(-1, -1, x_BMS.shape[2]))
