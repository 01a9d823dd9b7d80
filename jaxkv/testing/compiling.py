"""How a tester's calls compile little: sizes rounded up to a few, and a cheap way to compile.

A tiny model's run is nearly all compiling: every new number of rows, tokens or slots is another
program.
"""

import dataclasses
import math
from functools import cache
from typing import Any

import jax
import numpy as np

from jaxkv.caches import Cache
from jaxkv.spec.config import ModelConfig, weight_shapes
from jaxkv.testing.inputs import BUCKETS

ROWS = (4, 16, 64)
SMALL = 2**20
# A step of a small model may have 8 tokens or 24: the time is the same, one program less is not.
_WIDTHS = (1, 24, 64, 256, 1024, 4096)
_SLOTS = (128, 512)
# Without fused kernels and LLVM's optimizer, in one part: 0.14 s a program of a tiny model instead
# of 0.8 (jaxlib 0.10.2). A release that lacks an option is spared it.
_CHEAP = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@cache
def is_small(config: ModelConfig) -> bool:
    """Return whether copying the model's caches costs less than compiling for their sizes."""
    return sum(map(math.prod, weight_shapes(config).values())) < SMALL


def compiler_options(config: ModelConfig) -> dict[str, Any] | None:
    """Return how the model's programs are compiled: a small one is spared the code's polish."""
    return _known_options() if is_small(config) else None


def fit_rows(rows: int) -> int:
    """Return the number of rows that is compiled for."""
    return _fit(rows, ROWS)


def fit_tokens(tokens: int, config: ModelConfig) -> int:
    """Return the number of tokens that is compiled for."""
    return _fit(tokens, _WIDTHS if is_small(config) else BUCKETS)


def fit_slots(slots: int) -> int:
    """Return the number of slots that is compiled for, where no layout of the product is run."""
    return _fit(slots, _SLOTS)


def with_rows(cache: Cache, rows: int) -> Cache:
    """Return the cache, on the host, with empty rows added at the end, or the last left out."""
    have = len(cache.length_B)
    if rows == have:
        return cache

    def fit(x_B: Any) -> np.ndarray:
        # Rows lead, or rows and heads in one axis.
        lines = x_B.shape[0] // have * rows
        kept = np.asarray(x_B)[:lines]
        if len(kept) == lines:
            return kept
        wide = np.zeros((lines, *kept.shape[1:]), kept.dtype)
        wide[: len(kept)] = kept
        return wide

    if cache.shared is None:
        return jax.tree.map(fit, cache)
    # Rows own pages by number: the pool stays as it is.
    table_BC, wanted_B = (
        jax.device_put(fit(x)) for x in (cache.shared.table_BC, cache.shared.wanted_B)
    )
    shared = dataclasses.replace(cache.shared, table_BC=table_BC, wanted_B=wanted_B)
    length_B, peak_B, overflow_B = (
        jax.device_put(fit(x)) for x in (cache.length_B, cache.peak_B, cache.overflow_B)
    )
    return Cache(length_B, peak_B, overflow_B, shared, cache.sites, cache.capacity)


def widened(cache: Cache) -> Cache:
    """Return the cache with the number of rows that is compiled for; a large one as it is."""
    rows = len(cache.length_B)
    size = sum(leaf.size for leaf in jax.tree.leaves(cache.sites))
    if size >= SMALL or cache.shared is not None:
        return cache
    return jax.device_put(with_rows(cache, fit_rows(rows)))


def _fit(number: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= number), number)


@cache
def _known_options() -> dict[str, Any]:
    known = {}
    for name, value in _CHEAP.items():
        try:
            jax.jit(lambda x: x, compiler_options={name: value})(0)
        except jax.errors.JaxRuntimeError:
            continue
        known[name] = value
    return known
