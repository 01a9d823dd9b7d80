"""Small wrong subjects for the tests of the engine: each one fault on a right toy."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.toys import Toy


@dataclass(frozen=True)
class Leaky(Toy):
    """A rollback that shortens only the count: what was dropped is still attended to."""

    def rollback(self, state, length):
        kept = super().rollback(state, length)
        return replace(kept, stores=state.stores)

    def _row(self, ids, b, raw_T, start, held, options, put, cross):
        row = super()._row(ids, b, raw_T, start, held, options, put, cross)
        return replace(row, see=lambda index_S, window: np.ones((len(raw_T), len(index_S)), bool))


@dataclass(frozen=True)
class Odd(Toy):
    """Answers steps through `change(logits, step number)`."""

    change: Any = None
    calls: list = field(default_factory=list)

    def step(self, state, ids, **options):
        self.calls.append(ids.shape)
        logits, state = super().step(state, ids, **options)
        return self.change(logits, len(self.calls)), state


@dataclass(frozen=True)
class OddFull(Toy):
    """Answers the uncached forward through `change(ids, logits, call number)`."""

    change: Any = None
    calls: list = field(default_factory=list)

    def full(self, ids, **options):
        self.calls.append(ids.shape)
        return self.change(ids, super().full(ids, **options), len(self.calls))


def without_kv(kind=Toy, **fields):
    """Return a toy that declares a cache and little else, so that few relations run."""
    kept = {"cache", "chunk", "rollback", "gather", "fork", "f64", "f32", "count"}
    everything = Toy().info.capabilities
    return kind(without=frozenset(everything - kept), **fields)
