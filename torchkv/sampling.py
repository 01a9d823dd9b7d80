"""Logits -> token.

Letters: B rows, S slots, V vocabulary, M tokens that may be drawn, A likeliest tokens.


Order and ties of the filters are those of transformers 5.24, generation/logits_process.py:
temperature, top-k, top-p, min-p, each on what the one before left.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor as Array


@dataclass(frozen=True)
class Sampler:
    """One number a row.

    Attributes:
        temperature_B: float32; 0 is greedy.
        top_k_B: int32, how many of the likeliest tokens stay.
        tail_B: float32, 1 - top_p.
        min_p_B: float32, the least probability that stays, as a share of the largest.
        seed_B: int64; with a token's place it decides the token's random number.
    """

    temperature_B: Float[Array, " B"]
    top_k_B: Int[Array, " B"]
    tail_B: Float[Array, " B"]
    min_p_B: Float[Array, " B"]
    seed_B: Int[Array, " B"]


@dataclass(frozen=True)
class TopTokens:
    """The likeliest tokens at each place of each text.

    Attributes:
        id_BSA: int32, the likeliest first; of equal ones the lowest id.
        logprob_BSA: float32, their log-probabilities under the model's own distribution.
    """

    id_BSA: Int[Array, "B S A"]
    logprob_BSA: Float[Array, "B S A"]


def greedy(logits_BV: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Return the id of each row's largest logit, int32; of equal ones the lowest id."""
    return logits_BV.argmax(-1).to(torch.int32)


def sample(
    logits_BV: Float[Array, "B V"], sampler: Sampler, place_B: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Return one token a row, int32, drawn as the row's own settings, seed and place say.

    Nothing of a row enters another row's token.

    Args:
        logits_BV: The model's.
        sampler: A row of temperature 0 takes `greedy`.
        place_B: int32, where in its row's text each token will stand.
    """
    token_B, draws_B = greedy(logits_BV), sampler.temperature_B > 0
    drawn_B = choose(warp(logits_BV, sampler), uniform(sampler.seed_B, place_B))
    return torch.where(draws_B, drawn_B, token_B)


def warp(logits_BV: Float[Array, "B V"], sampler: Sampler) -> Float[Array, "B V"]:
    """Return the logits over the temperature, with -inf for every token that a filter drops.

    At least one token stays. In at least float32. A row of temperature 0 is not divided.

    Cost: sorts the vocabulary, if top-p drops anything in any row.
    """
    rows = zip(
        _widen(logits_BV),
        sampler.temperature_B.tolist(),
        sampler.top_k_B.tolist(),
        sampler.tail_B.tolist(),
        sampler.min_p_B.tolist(),
        strict=True,
    )
    return torch.stack([_warp_row(*row) for row in rows])


def _warp_row(logits_V: Array, temperature: float, top_k: int, tail: float, min_p: float) -> Array:
    # Relative to the peak, which so survives a division by the smallest temperature.
    logits_V = (logits_V - logits_V.max()) / (temperature or 1.0)
    if top_k < len(logits_V):
        logits_V = logits_V.masked_fill(logits_V < logits_V.topk(top_k).values[-1], -torch.inf)
    if tail > 0:
        # From the least likely up: of equal tokens at the border those with the higher ids stay.
        rising_V, order_V = logits_V.sort(stable=True)
        is_dropped_V = rising_V.softmax(0).cumsum(0) <= tail
        is_dropped_V[-1] = False
        logits_V = logits_V.index_fill(0, order_V[is_dropped_V], -torch.inf)
    if min_p > 0:
        probability_V = logits_V.softmax(0)
        logits_V = logits_V.masked_fill(probability_V < min_p * probability_V.max(), -torch.inf)
    return logits_V


def uniform(
    seed_B: Int[Array, " B"], place_B: Int[Array, " B"], *, stream: int = 0
) -> Float[Array, " B"]:
    """Return one float64 number of [0, 1) a row: a function of its seed and place alone.

    From a generator of the row's own; its numbers are not the other twin's.

    Args:
        seed_B: Of each row.
        place_B: int32, of the token in its row's text.
        stream: A place has further numbers, independent of the first: one a stream.
    """
    pairs = zip(seed_B.tolist(), place_B.tolist(), strict=True)
    return torch.stack([_uniform(*pair, stream) for pair in pairs]).to(seed_B.device)


def _uniform(seed: int, place: int, stream: int) -> Array:
    # torch's generator takes 32 bits of a seed: all numbers are hashed into them.
    entropy = [seed, place, stream] if stream else [seed, place]
    mixed = np.random.SeedSequence(entropy).generate_state(1)
    generator = torch.Generator().manual_seed(int(mixed[0]))
    return torch.rand((), dtype=torch.float64, generator=generator)


def choose(logits_BV: Float[Array, "B V"], uniform_B: Float[Array, " B"]) -> Int[Array, " B"]:
    """Return the token at which each row's cumulative probability first exceeds its number, int32.

    Source: inverse transform sampling, Devroye 1986, section III.2.
    """
    pairs = zip(logits_BV.double().softmax(-1), uniform_B.double(), strict=True)
    return torch.stack([_choose(*pair) for pair in pairs]).to(torch.int32)


def _choose(probability_V: Array, number: Array) -> Array:
    token_M = probability_V.nonzero().squeeze(1)
    sum_M = probability_V[token_M].cumsum(0)
    at = torch.searchsorted(sum_M, number * sum_M[-1], right=True)
    return token_M[at.clamp(max=len(token_M) - 1)]


def logprob(logits_BV: Float[Array, "B V"], token_B: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the natural logarithm of each token's probability, float32.

    Under the model's own distribution: no temperature, no filter.
    """
    logprob_BV = _widen(logits_BV).log_softmax(-1)
    return logprob_BV.gather(1, token_B.long().unsqueeze(1)).squeeze(1).float()


def top_logprobs(
    logits_BV: Float[Array, "B V"], *, top: int
) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
    """Return ids, int32, and log-probabilities, float32, of each row's `top` likeliest tokens.

    The likeliest first, of equal ones the lowest id. Under the model's own distribution, as
    `logprob`.

    Cost: sorts the vocabulary.
    """
    # topk leaves open which of equal ones comes first.
    falling_BV, id_BV = _widen(logits_BV).log_softmax(-1).sort(stable=True, descending=True)
    return id_BV[:, :top].to(torch.int32), falling_BV[:, :top].float()


def no_tokens(batch: int, slots: int, top: int) -> TopTokens:
    """Return room for the `top` likeliest tokens at each place."""
    return TopTokens(
        torch.zeros((batch, slots, top), dtype=torch.int32), torch.zeros((batch, slots, top))
    )


def _widen(logits_BV: Array) -> Array:
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
