"""Beam search and its scores in plain Python, one text at a time, from whole texts without a cache.

What transformers does is told in docs/generation.md; here it is done with lists and sorting.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Next = Callable[[list[list[int]]], np.ndarray]


def beam_search(
    next_logits: Next,
    *,
    beams: int,
    budget: int,
    ends: tuple[int, ...] = (),
    penalty: float = 1.0,
    early: Any = False,
) -> list[tuple[float, list[int]]]:
    """Return the best texts of one row, new tokens only, with their scores, the best first."""
    return beam_search_in_steps(
        next_logits, beams=beams, budget=budget, ends=ends, penalty=penalty, early=early
    )[0]


def beam_search_in_steps(
    next_logits: Next, *, beams: int, budget: int, ends: tuple[int, ...], penalty: float, early: Any
) -> tuple[list[tuple[float, list[int]]], int]:
    """Return the same, and how many tokens every beam took until the row stopped.

    Args:
        next_logits: New tokens of some texts -> logits [texts, V] of what comes next in each.
        beams: Texts side by side.
        budget: New tokens at most.
        ends: Tokens that end a text.
        penalty: See `score`.
        early: True, False or "never".
    """
    going, ended, length = [(0.0, [])], [], 0
    for length in range(1, budget + 1):
        every = _continued(going, next_logits)
        for total, text in every[:beams]:
            if text[-1] in ends or length == budget:
                ended.append((score(total, length, penalty), text))
        ended = sorted(ended, reverse=True)[:beams]
        going = [each for each in every if each[1][-1] not in ends][:beams]
        if len(ended) == beams:
            at = budget if early == "never" and penalty > 0 else length
            if early is True or score(going[0][0], at, penalty) <= ended[-1][0]:
                break
    return ended, length


def score(total: float, length: int, penalty: float) -> float:
    """Return the sum of log-probabilities over the length to the power of the penalty."""
    return total / length**penalty


def _continued(going: list, next_logits: Next) -> list:
    logits = next_logits([text for _, text in going])
    logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))[:, None]
    logprobs = logprobs - logits.max(-1, keepdims=True)
    every = [
        (total + float(logprob), [*text, token])
        for (total, text), row in zip(going, logprobs, strict=True)
        for token, logprob in enumerate(row)
    ]
    return sorted(every, reverse=True)
