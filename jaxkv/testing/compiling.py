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
from jaxkv.caches.cross import CrossSite
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.weight_shapes import weight_shapes
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


def fit_lines(tree: Any, *, have: int, rows: int) -> Any:
    """Return arrays of so many rows, on the host: zeros added at the end, or the last left out.

    Args:
        tree: Of arrays whose first axis is rows, or rows and heads.
        have: Rows in it.
        rows: Rows of the result.
    """
    if have == rows:
        return tree

    def fit(x_B: Any) -> np.ndarray:
        lines = x_B.shape[0] // have * rows
        kept = np.asarray(x_B)[:lines]
        if len(kept) == lines:
            return kept
        wide = np.zeros((lines, *kept.shape[1:]), kept.dtype)
        wide[: len(kept)] = kept
        return wide

    return jax.tree.map(fit, tree)


def with_rows(cache: Cache, rows: int) -> Cache:
    """Return the cache, on the host, with empty rows added at the end, or the last left out."""
    have = len(cache.length_B)
    if rows == have or cache.shared is None:
        return fit_lines(cache, have=have, rows=rows)
    # Rows own pages by number: the pool stays as it is.
    per_row = (
        cache.length_B,
        cache.peak_B,
        cache.overflow_B,
        cache.shared.table_BC,
        cache.shared.wanted_B,
    )
    length_B, peak_B, overflow_B, table_BC, wanted_B = jax.device_put(
        fit_lines(per_row, have=have, rows=rows)
    )
    shared = dataclasses.replace(cache.shared, table_BC=table_BC, wanted_B=wanted_B)
    sites = tuple(
        jax.device_put(fit_lines(site, have=have, rows=rows))
        if isinstance(site, CrossSite)
        else site
        for site in cache.sites
    )
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity)


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
