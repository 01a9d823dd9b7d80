"""torchkv with its step of decode compiled by `torch.compile`, as a subject: `--compile`."""

import os
import shutil
from collections.abc import Callable
from typing import Any

from bench.cases import Case
from bench.rows import Row, missing
from bench.runner import Rows, Run
from torchkv.compiled import SMALLEST_WINDOW, compiled_steps

NAME = "torchkv-compiled"
COMPILERS = ("g++", "clang++", "cl")


class CompiledRunner:
    """A torchkv runner's model, each call within `compiled_steps`.

    Args:
        eager: A `TwinRunner` of torchkv; the model is shared.
    """

    name = NAME

    def __init__(self, eager: Any):
        self._eager, self.model = eager, eager.model

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call that continues the prompts; the first one compiles."""
        return within(self._eager.prepare(prompts, budget, capacity=capacity))

    def kept(self, prompts: Rows, budget: int) -> Callable[[int], list[list[int]]]:
        """Return the call that continues the prompts by so many tokens; they have entered here."""
        return within(self._eager.kept(prompts, budget))

    def slots_read(self, case: Case) -> int:
        """Return how many slots of a row the longest step reads: a window of a power of two."""
        window = max(SMALLEST_WINDOW, 1 << (case.prompt + case.new - 2).bit_length())
        return min(window, case.capacity or window)


def within(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call with its steps compiled."""

    def run(*arguments: Any) -> Any:
        with compiled_steps():
            return call(*arguments)

    return run


def lacking() -> str | None:
    """Return why nothing can be compiled for the CPU here; None if it can."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else list(COMPILERS)
    if any(shutil.which(name) for name in names):
        return None
    return f"unsupported: torch.compile needs a C++ compiler, none of {', '.join(names)} is there"


def refused(bench: str, case: Case, metric: str, *, asked: bool) -> list[Row]:
    """Return the row that says why the subject is not in the table, where it was asked for."""
    why = lacking() if asked else None
    return [] if why is None else [missing(bench, case.name, NAME, metric, "ms", why)]
