"""Greedy ids with drafts: verify k of them in one step, keep what agrees, roll the rest back."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Draft = Callable[[NDArray, int], NDArray]


def speculate(subject: Any, ids: NDArray, new: int, draft: Draft, k: int) -> NDArray:
    """Return ids [B, T + new].

    Args:
        subject: With step and rollback.
        ids: The prompts [B, T].
        new: How many ids each row gets.
        draft: (texts so far [1, n], k) -> ids [1, k].
        k: Drafted ids a step.
    """
    return np.stack([_row(subject, [int(i) for i in row], new, draft, k) for row in ids])


def _row(subject: Any, text: list[int], new: int, draft: Draft, k: int) -> NDArray:
    wanted = len(text) + new
    state = subject.init(1, wanted + k)
    if len(text) > 1:
        _, state = subject.step(state, np.array([text[:-1]]))
    while len(text) < wanted:
        drafted = [int(i) for i in draft(np.array([text]), k)[0]]
        logits, state = subject.step(state, np.array([[text[-1], *drafted]]))
        chosen = [int(i) for i in np.argmax(logits[0], axis=-1)]
        agree = next((i for i in range(k) if drafted[i] != chosen[i]), k)
        # The model's own id after the accepted ones comes for nothing: the last logits hold it.
        text = [*text, *drafted[:agree], chosen[agree]]
        state = subject.rollback(state, np.array([len(text) - 1]))
    return np.array(text[:wanted])
