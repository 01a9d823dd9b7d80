"""Stop strings in a search: the host looks at the likeliest continuations before each choice.

Letters: B rows, J beams of a row, C beams of all rows, T prompt tokens with padding, E end tokens,
M continuations of a row, V vocabulary.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkv import programs
from jaxkv.beams import Beams, Goal, choose, feed, likeliest, open_search
from jaxkv.caches import Cache
from jaxkv.loop import Sources, Terms
from jaxkv.model import Params
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.stop import Stops


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

    Cost: two programs a step, and the text of each of a row's likeliest continuations, at least
    twice as many as its beams.
    """
    jitted, how = programs.PROGRAMS.jitted, {"config": config, "rectangular": rectangular}
    prompts = ids_BT, count_B
    state, cache, logits_CV = jitted(open_search)(params, *prompts, sources, **how, **sizes)
    while True:
        ranked = partial(jitted(likeliest), state, logits_CV, prompts, terms)
        hit_BM = hits(ranked, state, np.asarray(terms.end_E), stops, vocabulary=logits_CV.shape[1])
        state = jitted(choose_past)(state, logits_CV, jnp.asarray(hit_BM), prompts, terms, goal)
        if not np.asarray(state.active_B).any():
            return state, cache
        state, cache, logits_CV = jitted(feed, donate=("cache",))(params, state, cache, **how)


def choose_past(
    state: Beams,
    logits_CV: Float[Array, "C V"],
    hit_BM: Int[Array, "B M"],
    prompts: tuple[Int[Array, "B T"], Int[Array, " B"]],
    terms: Terms,
    goal: Goal,
) -> Beams:
    """Return `choose`, of which nothing is static."""
    return choose(state, logits_CV, hit_BM, prompts=prompts, terms=terms, goal=goal)


def hits(
    ranked: Any, state: Beams, end_E: np.ndarray, stops: Stops, *, vocabulary: int
) -> np.ndarray:
    """Return which continuations complete a stop string, int32 [B, M]; J * V for none.

    Of as many of the likeliest that in each row J go on, or of all.

    Args:
        ranked: `likeliest` but for its last argument.
        state: Before the choice.
        end_E: Tokens that end a text anyway.
        stops: What else ends one.
        vocabulary: V.
    """
    beams, new = state.sum_BJ.shape[1], int(state.new)
    token_BJS, active_B = np.asarray(state.token_BJS), np.asarray(state.active_B)
    ends, most = {*end_E.tolist()}, (2 + len(end_E)) * beams
    while True:
        most = min(most, beams * vocabulary)
        sum_BM, flat_BM = (np.asarray(x) for x in ranked(most=most))
        hit_BM = np.full(flat_BM.shape, beams * vocabulary, np.int32)
        going_B = np.where(active_B, 0, beams)
        for b, m in zip(*np.nonzero(active_B[:, None] & (sum_BM > -np.inf)), strict=True):
            beam, token = divmod(int(flat_BM[b, m]), vocabulary)
            if token in ends:
                continue
            text = [*token_BJS[b, beam, :new].tolist(), token]
            if stops.look(text, is_last=False).stop is None:
                going_B[b] += 1
            else:
                hit_BM[b, m] = flat_BM[b, m]
        enough_B = (going_B >= beams) | (sum_BM == -np.inf).any(1)
        if enough_B.all() or most == beams * vocabulary:
            return hit_BM
        most *= 2
