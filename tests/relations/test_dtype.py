"""One dtype from the first write to the last: what a cache was made with is what it holds."""

import importlib

import numpy as np
import pytest

from tests.tiny import CORE, make_model, module

BYTES = {"float32": 4, "bfloat16": 2}
pytestmark = [
    pytest.mark.parametrize("cell", CORE, ids=str),
    pytest.mark.parametrize("dtype", BYTES),
]


def stored(cell, cache) -> set[str]:
    site = importlib.import_module(f"{cell.twin}.caches.state").Cache
    assert isinstance(cache, site)
    buffers = [x for each in cache.sites for x in vars(each).values() if hasattr(x, "dtype")]
    return {str(x.dtype).removeprefix("torch.") for x in buffers}


def test_every_write_keeps_the_dtype_of_the_cache(cell, dtype):
    """KV-25: prefill, a chunk, a step, rollback, fork, and a whole generation."""
    kind = importlib.import_module(f"{cell.twin}.subject").Subject
    subject = kind(make_model(cell.twin, cell.model, dtype), layout=cell.layout, slack=3)
    caches = module(cell, "caches")
    seen, state = [], subject.init(2, 40)
    size = caches.nbytes(state)

    for ids in (np.ones((2, 5), int), np.ones((2, 3), int), np.ones((2, 1), int)):
        _, state = subject.step(state, ids)
        seen.append(stored(cell, state))
    state = subject.rollback(state, np.array([7, 8]))
    seen += [stored(cell, state), stored(cell, subject.fork(state))]
    kept = subject.generate([[1, 2], [3]], 4, keep_cache=True, capacity=40).cache

    assert [*seen, stored(cell, kept)] == [{dtype}] * 6
    assert caches.nbytes(state) == caches.nbytes(kept) == size
