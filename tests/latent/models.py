"""The tiny deepseek models of these tests, and subjects of both twins on them."""

from functools import cache

import numpy as np

from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from tests.tiny import Cell, module, new_subject

LAYOUTS = ("contiguous", "paged")
IDS = np.random.default_rng(0).integers(0, 97, (4, 24))
# Rows in steps of at most 8: they end apart, and some take none in a step.
RAGGED = ((8, 8, 7, 1), (1, 8, 0, 8), (3, 3, 3, 3), (8, 0, 8, 8))


@cache
def subject(twin: str, layout: str, form: str = "", family: str = "deepseek_v3"):
    """Return a subject in float64, in one form or, by default, in the cheaper one of each step."""
    if form:
        return subject(twin, layout, "", family).variant(form)
    cell = Cell(twin, family, layout)
    config = tiny_family(family)
    model = module(cell, "weights").from_arrays(config, random_arrays(config, 3), dtype="float64")
    return new_subject(model, cell)


def ragged(cell, state=None):
    """Return the logits of the texts fed in ragged steps, zeros where none is, and the state."""
    state = cell.init(4, 44) if state is None else state
    at, steps = np.zeros(4, int), []
    for counts in np.transpose(RAGGED):
        ids = np.zeros((4, 8), int)
        for row, count in enumerate(counts):
            ids[row, :count] = IDS[row, at[row] : at[row] + count]
        out, state = cell.step(state, ids, count=counts)
        steps.append(np.where((np.arange(8) < counts[:, None])[..., None], out, 0))
        at += counts
    return np.concatenate(steps, axis=1), state
