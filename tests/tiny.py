"""The two small models that all tests share, on both twins and every layout.

Sizes are pairwise distinct, so that a swapped axis cannot pass:
B=4 L=3 D=40 N=6 K=3 G=2 H=18 R=9 F=52 V=97, windows 5 and 8, capacity 44, steps of 1, 8 or 24,
pages of 4.
"""

import importlib
import os
from dataclasses import dataclass
from functools import cache

import hypothesis
import numpy as np
import pytest

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny import CONFIGS

BATCH, CAPACITY, LONGEST, SLACK = 4, 44, 24, 3
PAGE = 4
TWINS = ("jaxkv", "torchkv")


@dataclass(frozen=True)
class Cell:
    """One combination that every property holds on."""

    twin: str
    model: str
    layout: str

    def __str__(self) -> str:
        return f"{self.twin}-{self.model}-{self.layout}"

    @property
    def config(self) -> ModelConfig:
        return CONFIGS[self.model]

    @property
    def subject(self):
        return make_subject(self)


# Every model and every layout, each pair that differs; the rest of the product when deep.
_PAIRS = (
    ("reference", "contiguous"),
    ("llama", "contiguous"),
    ("llama", "window"),
    ("llama", "paged"),
    ("gpt2", "contiguous"),
)
_REST = (("reference", "paged"), ("gpt2", "paged"))
DEEP = os.environ.get("JAXKV_DEEP") == "1"
CELLS = tuple(
    Cell(twin, model, layout)
    for twin in TWINS
    for model, layout in (_PAIRS + _REST if DEEP else _PAIRS)
)
# For what a model's formulas have no part in: streams, endings, draws, dtypes.
CORE = tuple(cell for cell in CELLS if DEEP or cell.model == "llama")


@cache
def weights(model: str) -> dict[str, np.ndarray]:
    return random_arrays(CONFIGS[model], seed=7)


@cache
def make_model(twin: str, model: str, dtype: str = "float64"):
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    return from_arrays(CONFIGS[model], weights(model), dtype=dtype)


@cache
def make_subject(cell: Cell, dtype: str = "float64", slack: int = SLACK):
    return new_subject(make_model(cell.twin, cell.model, dtype), cell, slack=slack)


def new_subject(model, cell: Cell, *, slack: int = SLACK):
    """Return a subject with compiled functions of its own: a swapped formula takes effect in it."""
    kind = importlib.import_module(f"{cell.twin}.subject").Subject
    return kind(
        model, layout=cell.layout, slack=slack, page_size=PAGE if cell.layout == "paged" else None
    )


def module(cell: Cell, name: str):
    """Return a module of the cell's twin."""
    return importlib.import_module(f"{cell.twin}.{name}")


def ids_of(cell: Cell, seed: int, batch: int = BATCH, length: int = LONGEST) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, cell.config.vocab_size, (batch, length))


def feed(subject, state, ids, sizes):
    """Return the logits of chunks of the given sizes fed one after the other, and the state."""
    logits, at = [], 0
    for size in sizes:
        out, state = subject.step(state, ids[:, at : at + size])
        logits.append(out)
        at += size
    return np.concatenate(logits, axis=1), state


def shared_by(cells):
    """Run a property on each cell, and divide the examples that it owes among them."""
    each = -(-hypothesis.settings.default.max_examples // len(cells))
    on_cells = pytest.mark.parametrize("cell", cells, ids=str)
    return lambda test: on_cells(hypothesis.settings(max_examples=each)(test))
