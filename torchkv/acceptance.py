"""Which drafted tokens a model keeps, and the token that it adds: pure functions of numbers.

Letters: B rows, K drafted tokens, T = K + 1 places of a verifying step, V vocabulary. Source:
speculative sampling, Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1 and appendix A.1.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from torchkv import sampling
from torchkv.sampling import Sampler


def probabilities(logits_BTV: Float[Array, "B T V"], sampler: Sampler) -> Float[Array, "B T V"]:
    """Return what each row draws from at each place, after its own temperature and filters.

    A row of temperature 0 has 1 at its likeliest token. In at least float32.

    Cost: as of `sampling.warp`, of B*T rows.
    """
    places = []
    for logits_BV in logits_BTV.unbind(1):
        p_BV = sampling.warp(logits_BV, sampler).softmax(-1)
        for b, temperature in enumerate(sampler.temperature_B.tolist()):
            if temperature == 0:
                p_BV[b] = 0
                p_BV[b, logits_BV[b].argmax()] = 1
        places.append(p_BV)
    return torch.stack(places, 1)


def draw(p_BV: Float[Array, "B V"], uniform_B: Float[Array, " B"]) -> Int[Array, " B"]:
    """Return one token a row, int32, drawn from probabilities that need not sum to 1."""
    return sampling.choose(p_BV.log(), uniform_B)


def judge_greedy(
    logits_BTV: Float[Array, "B T V"], draft_BK: Int[Array, "B K"], count_B: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return how many first drafts of each row are its likeliest tokens, and the one after them.

    Args:
        logits_BTV: At the token before the drafts, then at each draft.
        draft_BK: int32.
        count_B: int32, how many of the K are drafts.
    """
    rows, found = logits_BTV.argmax(-1).tolist(), []
    for own, drafts, count in zip(rows, draft_BK.tolist(), count_B.tolist(), strict=True):
        agreed = 0
        while agreed < count and drafts[agreed] == own[agreed]:
            agreed += 1
        found.append((agreed, own[agreed]))
    return _columns(found, count_B)


def judge(
    p_BTV: Float[Array, "B T V"],
    q_BKV: Float[Array, "B K V"] | None,
    draft_BK: Int[Array, "B K"],
    count_B: Int[Array, " B"],
    accept_BK: Float[Array, "B K"],
    next_BT: Float[Array, "B T"],
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return how many first drafts of each row are kept, and the token after them, both int32.

    Draft x is kept with probability min(1, p(x) / q(x)). After a rejection the next token comes
    from the positive part of p - q, normed; after all drafts from p. So each token has p's
    distribution, whatever q is.

    Args:
        p_BTV: The model's probabilities before and after each draft.
        q_BKV: Those that the drafts were drawn from; None for drafts that nothing was drawn for.
        draft_BK: int32.
        count_B: int32, how many of the K are drafts.
        accept_BK: A number of [0, 1) a draft.
        next_BT: One a place, of which the token after the kept drafts takes its own.
    """
    found = []
    for b, (drafts, count) in enumerate(zip(draft_BK.tolist(), count_B.tolist(), strict=True)):
        kept, rest_V = 0, None
        while kept < count and rest_V is None:
            token, p_V = drafts[kept], p_BTV[b, kept]
            q_V = _sure(token, p_V) if q_BKV is None else q_BKV[b, kept]
            if float(accept_BK[b, kept]) < float(p_V[token]) / float(q_V[token]):
                kept += 1
                continue
            rest_V = (p_V - q_V).clamp(min=0)
            # Equal distributions reject nothing but by rounding: then no difference is left.
            rest_V = rest_V if bool(rest_V.any()) else p_V
        left_V = p_BTV[b, kept] if rest_V is None else rest_V
        found.append((kept, int(draw(left_V[None], next_BT[b, kept : kept + 1]))))
    return _columns(found, count_B)


def _sure(token: int, like_V: Array) -> Array:
    q_V = torch.zeros_like(like_V)
    q_V[token] = 1
    return q_V


def _columns(pairs: list[tuple[int, int]], like_B: Array) -> tuple[Array, Array]:
    kept_B, next_B = torch.tensor(pairs, dtype=torch.int32, device=like_B.device).unbind(1)
    return kept_B, next_B
