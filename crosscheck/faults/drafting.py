"""Greedy ids with drafts, over any subject: k are verified in one step, the wrong ones dropped."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.relations.drive import room_for
from crosscheck.subjects.protocol import describe

Bonus = Callable[[int], int]
Back = Callable[[Any, int], Any]


def speculated(
    subject: Any,
    ids: NDArray,
    new: int,
    draft: Any,
    k: int,
    *,
    bonus: Bonus | None = None,
    back: Back | None = None,
) -> NDArray:
    """Return ids [B, T + new], one row after the other.

    Args:
        subject: With step, rollback and length.
        ids: The prompts [B, T].
        new: How many ids each row gets.
        draft: (text [1, n], k) -> ids [1, k].
        k: Drafted ids a step.
        bonus: How many drafts were accepted -> the row of the verifying step that gives the id
            after them.
        back: (state, how many drafts were rejected) -> the state without them.
    """

    def without(state: Any, rejected: int) -> Any:
        return subject.rollback(state, np.asarray(subject.length(state)) - rejected)

    back, bonus = back or without, bonus or (lambda accepted: accepted)
    rows = []
    for prompt in ids:
        text = [int(i) for i in prompt]
        wanted = len(text) + new
        state = subject.init(1, room_for(describe(subject), len(text) + (new + 1) * (k + 1)))
        if len(text) > 1:
            _, state = subject.step(state, np.array([text[:-1]]))
        while len(text) < wanted:
            drafted = [int(i) for i in draft(np.array([text]), k)[0]]
            logits, state = subject.step(state, np.array([[text[-1], *drafted]]))
            chosen = [int(i) for i in np.argmax(logits[0], axis=-1)]
            agree = next((i for i in range(k) if drafted[i] != chosen[i]), k)
            text = [*text, *drafted[:agree], chosen[bonus(agree)]]
            state = back(state, k - agree)
        rows.append(text[:wanted])
    return np.array(rows)
