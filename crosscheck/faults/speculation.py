"""Faults of drafting ids, verifying them in one step, and taking back what was rejected."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.planted import Planted
from crosscheck.faults.registry import fault

NEEDS = {"cache", "chunk", "rollback", "speculate"}


class Speculating(Planted):
    """Drafts for itself, one row at a time, with two places for a fault."""

    def speculate(self, ids: NDArray, new: int, draft: Any, k: int) -> NDArray:
        """Return ids [B, T + new]."""
        return np.stack([self.row([int(i) for i in text], new, draft, k) for text in ids])

    def row(self, text: list[int], new: int, draft: Any, k: int) -> NDArray:
        """Return one text with its new ids."""
        wanted = len(text) + new
        state = self.inner.init(1, len(text) + (new + 1) * (k + 1))
        if len(text) > 1:
            _, state = self.inner.step(state, np.array([text[:-1]]))
        while len(text) < wanted:
            drafted = [int(i) for i in draft(np.array([text]), k)[0]]
            logits, state = self.inner.step(state, np.array([[text[-1], *drafted]]))
            chosen = [int(i) for i in np.argmax(logits[0], axis=-1)]
            agree = next((i for i in range(k) if drafted[i] != chosen[i]), k)
            text = [*text, *drafted[:agree], chosen[self.bonus(agree)]]
            state = self.taken_back(state, k - agree)
        return np.array(text[:wanted])

    def bonus(self, agree: int) -> int:
        """Return the row of the verifying step that gives the id after the accepted ones."""
        return agree

    def taken_back(self, state: Any, rejected: int) -> Any:
        """Return the state without the rejected drafts."""
        return self.inner.rollback(state, self.inner.length(state) - rejected)


class KeepsDrafts(Speculating):
    """Leaves rejected drafts in the cache."""

    def taken_back(self, state: Any, rejected: int) -> Any:
        """Return the state as it is."""
        return state


class WrongBonus(Speculating):
    """Takes the id after the accepted ones from the row before the right one."""

    def bonus(self, agree: int) -> int:
        """Return the row before."""
        return max(agree - 1, 0)


@fault(
    name="spec.leak",
    needs=NEEDS,
    kinds="F",
    shows="overwrite",
    advice="Look at how many drafted tokens the rollback after a rejection takes back.",
)
def spec_leak(subject: Any) -> Planted:
    """Rejected drafts stay in the cache."""
    return KeepsDrafts(subject)


@fault(
    name="spec.bonus",
    needs=NEEDS,
    kinds="F",
    shows="output",
    advice="Look at which row of the verifying step the id after the accepted ones comes from.",
)
def spec_bonus(subject: Any) -> Planted:
    """The id after the accepted drafts is that of the position before."""
    return WrongBonus(subject)
