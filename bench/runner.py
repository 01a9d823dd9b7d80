"""The compared programs behind one call: prompts and a budget in, ids out, on the same weights."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Rows = Sequence[Sequence[int]]
Run = Callable[[], list[list[int]]]


class Runner(Protocol):
    """A program that continues prompts of one length greedily."""

    name: str
    model: Any

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call to time: it gives the new ids of each prompt.

        What a capacity costs to allocate is paid here, apart from the call.
        """
        ...
