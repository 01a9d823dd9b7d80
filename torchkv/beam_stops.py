"""Stop strings in a search: the host looks at the likeliest continuations before each choice.

Letters: B rows, J beams of a row, C beams of all rows, T prompt tokens with padding, E end tokens,
M continuations of a row, V vocabulary.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.stop import Stops
from torchkv.beams import Beams, Goal, choose, feed, likeliest, open_search
from torchkv.caches import Cache
from torchkv.loop import Sources, Terms
from torchkv.model import Params


def search_past(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    goal: Goal,
    sources: Sources | None,
    stops: Stops,
    *,
    config: ModelConfig,
    rectangular: bool,
    **sizes: Any,
) -> tuple[Beams, Cache]:
    """Return the finished search, in which a stop string ends a text as an end token does.

    That is transformers' rule: a continuation whose newest token completes a stop string competes
    with the ended texts, by the score of all its tokens, and does not go on.

    Args:
        params: See `search`, as for all that are not named here.
        ids_BT: See `search`.
        count_B: See `search`.
        terms: See `search`.
        goal: See `search`.
        sources: See `search`.
        stops: What ends a text.
        config: See `search`.
        rectangular: See `search`.
        **sizes: The others of `search`.

    Cost: the text of each of a row's likeliest continuations, at least
    twice as many as its beams.
    """
    how, prompts = {"config": config, "rectangular": rectangular}, (ids_BT, count_B)
    state, cache, logits_CV = open_search(params, *prompts, sources, **how, **sizes)
    while True:
        ranked = partial(likeliest, state, logits_CV, prompts, terms)
        hit_BM = hits(ranked, state, terms.end_E, stops, vocabulary=logits_CV.shape[1])
        state = choose_past(state, logits_CV, hit_BM, prompts, terms, goal)
        if not bool(state.active_B.any()):
            return state, cache
        state, cache, logits_CV = feed(params, state, cache, **how)


def choose_past(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    hit_BM: Int[Array, "B M"],
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    goal: Goal,
) -> Beams:
    """Return `choose`, by arguments in their order."""
    return choose(state, logits_CV, hit_BM, prompts=prompts, terms=terms, goal=goal)


def hits(
    ranked: Any, state: Beams, end_E: Int[Array, " E"], stops: Stops, *, vocabulary: int
) -> Int[Array, "B M"]:
    """Return which continuations complete a stop string, int32 [B, M]; J * V for none.

    Of as many of the likeliest that in each row J go on, or of all.

    Args:
        ranked: `likeliest` but for its last argument.
        state: Before the choice.
        end_E: Tokens that end a text anyway.
        stops: What else ends one.
        vocabulary: V.
    """
    beams, new, ends = state.sum_BJ.shape[1], int(state.new), set(end_E.tolist())
    texts, none = state.token_BJS[:, :, :new].tolist(), beams * vocabulary
    most = min((2 + len(end_E)) * beams, none)
    while True:
        sum_BM, flat_BM = ranked(most=most)
        found = [
            _of_row(texts[b], flat_BM[b][sum_BM[b] > -torch.inf].tolist(), ends, stops, vocabulary)
            if is_active
            else ([], beams)
            for b, is_active in enumerate(state.active_B.tolist())
        ]
        is_all_B = (sum_BM == -torch.inf).any(1).tolist()
        enough = zip(found, is_all_B, strict=True)
        if most == none or all(going >= beams or is_all for (_, going), is_all in enough):
            width = max(1, *(len(row) for row, _ in found))
            lines = [[*row, *[none] * (width - len(row))] for row, _ in found]
            return torch.tensor(lines, dtype=torch.int32, device=flat_BM.device)
        most = min(2 * most, none)


def _of_row(
    texts: list[list[int]], ranked: list[int], ends: set[int], stops: Stops, vocabulary: int
) -> tuple[list[int], int]:
    """Return the continuations that complete a stop string, and how many others go on."""
    open_ = [flat for flat in ranked if flat % vocabulary not in ends]
    hit = [
        flat
        for flat in open_
        if stops.look([*texts[flat // vocabulary], flat % vocabulary], is_last=False).stop
    ]
    return hit, len(open_) - len(hit)
