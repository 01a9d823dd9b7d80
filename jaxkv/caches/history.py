"""The verbs between steps: which tokens a row keeps, and which rows a cache has.

Letters: B rows, C rows of the result.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from jaxkv.caches import cross
from jaxkv.caches.layouts import keeper_of, module_of
from jaxkv.caches.state import Cache
from jaxkv.spec.errors import RequestError, RollbackError, ShapeError


def rollback(cache: Cache, length_B: Int[Array, " B"]) -> Cache:
    """Return the cache as if each row had only ever held its first length_B[b] tokens.

    Clears overflow_B.

    Under jit, where nothing can be raised, a row with a length that is refused keeps its tokens and
    is marked in overflow_B by how far the length is off.

    Args:
        cache: Any cache.
        length_B: int32, new length of each row.

    Raises:
        RollbackError: A length is negative, above the row's, or below what a ring still holds.
        ShapeError: length_B is not one number a row.
        Unsupported: The layout stores nothing.
    """
    length_B = jnp.asarray(length_B)
    if length_B.shape != cache.length_B.shape:
        rows = cache.length_B.shape[0]
        raise ShapeError(
            f"rollback: length_B has shape {length_B.shape}, expected ({rows},), one length a row."
        )
    length_B = length_B.astype(jnp.int32)
    floor_B = jnp.zeros_like(length_B)
    for site in cache.sites:
        floor_B = jnp.maximum(floor_B, module_of(site).floor(site, cache))
    if not _is_traced(length_B, cache.length_B):
        _check_rollback(length_B, floor_B, cache.length_B)
    off_B = jnp.maximum(jnp.maximum(length_B - cache.length_B, floor_B - length_B), 0)
    kept_B = jnp.where(off_B == 0, length_B, cache.length_B)
    shared = keeper_of(cache.shared).rollback_shared(cache.shared, kept_B)
    return Cache(kept_B, cache.peak_B, off_B, shared, cache.sites, cache.capacity)


def gather(cache: Cache, rows_B: Int[Array, " C"]) -> Cache:
    """Return a cache whose row i is row rows_B[i] of this one.

    Rows may repeat, be left out, or change in number.

    Under jit a row out of range is marked in the result's overflow_B.

    Raises:
        RequestError: A row is out of range, or leaves the rows that share its source.
        Unsupported: The layout stores nothing.

    Cost: copies the rows' buffers; of the paged layout only the table.
    """
    batch = cache.length_B.shape[0]
    rows_B = jnp.asarray(rows_B).astype(jnp.int32)
    off_B = jnp.maximum(jnp.maximum(rows_B - batch + 1, -rows_B), 0)
    stray_B = _stray_rows(cache, rows_B, batch)
    if not _is_traced(rows_B):
        for i, row in enumerate(rows_B.tolist()):
            if not 0 <= row < batch:
                raise RequestError(
                    f"gather: rows_B[{i}] is {row}, expected 0 to {batch - 1} (the cache "
                    f"has {batch} rows)."
                )
        _check_stray(rows_B, stray_B)
    taken = _take(cache, rows_B, keep_sources=False)
    overflow_B = taken.overflow_B + jnp.maximum(off_B, stray_B)
    return dataclasses.replace(taken, overflow_B=overflow_B)


def spread(cache: Cache, times: int) -> Cache:
    """Return a cache in which each row stands `times` times, one copy after the other.

    As `gather` with every row repeated; but what an encoder left is not copied: the copies of a row
    share its source, and `gather` moves rows among those only.

    Args:
        cache: Any cache.
        times: How often; static.

    Raises:
        RequestError: times is below 1.
        Unsupported: The layout stores nothing.

    Cost: copies the rows' buffers `times` times; of the paged layout only the table.
    """
    if times < 1:
        raise RequestError(f"spread: times is {times}, expected at least 1. Leave it out.")
    batch = cache.length_B.shape[0]
    rows_B = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), times)
    return _take(cache, rows_B, keep_sources=True)


def fork(cache: Cache) -> Cache:
    """Return a second cache with buffers of its own.

    Which outlives the first one's being donated or consumed.

    Without donation it is not needed: a cache is never changed, so the old one can simply be kept.

    Cost: copies every buffer.
    """
    return jax.tree.map(jnp.copy, cache)


def reset(cache: Cache, only_B: Bool[Array, " B"] | None = None) -> Cache:
    """Return the cache with rows empty and their marks cleared.

    What the buffers hold in them no longer matters: a request that is done or given up leaves its
    row so, and the next one begins in it, whatever the other rows do meanwhile.

    Args:
        cache: Any cache.
        only_B: Which rows; None resets all, and counts copied pages from 0 again.

    Raises:
        ShapeError: only_B is not one mark a row.

    Cost: none; buffers are not rewritten.
    """
    keeper = keeper_of(cache.shared)
    marks = cache.length_B, cache.peak_B, cache.overflow_B
    if only_B is None:
        length_B, peak_B, overflow_B = (jnp.zeros_like(mark_B) for mark_B in marks)
        shared = keeper.reset_shared(cache.shared)
    else:
        only_B = jnp.asarray(only_B)
        if only_B.shape != cache.length_B.shape:
            raise ShapeError(
                f"reset: only_B has shape {only_B.shape}, expected {cache.length_B.shape}, one "
                "mark a row."
            )
        length_B, peak_B, overflow_B = (jnp.where(only_B, 0, mark_B) for mark_B in marks)
        shared = keeper.clear_shared(cache.shared, only_B)
    sites = tuple(
        cross.reset_site(site, only_B) if isinstance(site, cross.CrossSite) else site
        for site in cache.sites
    )
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity)


def _take(cache: Cache, rows_B: Array, *, keep_sources: bool) -> Cache:
    batch = cache.length_B.shape[0]
    sites = tuple(
        site
        if keep_sources and isinstance(site, cross.CrossSite)
        else module_of(site).gather_site(site, rows_B, batch=batch)
        for site in cache.sites
    )
    length_B, peak_B, overflow_B = (
        jnp.take(x_B, rows_B, mode="clip")
        for x_B in (cache.length_B, cache.peak_B, cache.overflow_B)
    )
    shared = keeper_of(cache.shared).gather_shared(cache.shared, rows_B)
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity)


def _stray_rows(cache: Cache, rows_B: Array, batch: int) -> Array:
    stray_B = jnp.zeros_like(rows_B)
    for site in cache.sites:
        if isinstance(site, cross.CrossSite):
            stray_B = jnp.maximum(stray_B, cross.stray_rows(site, rows_B, batch=batch))
    return stray_B


def _check_stray(rows_B: Array, stray_B: Array) -> None:
    for i, (row, is_stray) in enumerate(zip(rows_B.tolist(), stray_B.tolist(), strict=True)):
        if is_stray:
            raise RequestError(
                f"gather: rows_B[{i}] is {row}, a row of another source than row {i}'s. Rows that "
                "share a source (beams) stay with it; make the cache with beams=1."
            )


def _check_rollback(length_B: Array, floor_B: Array, have_B: Array) -> None:
    for row, (wanted, least, have) in enumerate(
        zip(length_B.tolist(), floor_B.tolist(), have_B.tolist(), strict=True)
    ):
        if wanted < 0 or wanted > have:
            raise RollbackError(
                f"rollback: length_B[{row}] is {wanted}, expected 0 to {have}, what the row holds."
            )
        if wanted < least:
            raise RollbackError(
                f"rollback: length_B[{row}] is {wanted}, a ring of this cache has evicted "
                f"what lies below {least}. "
                f"Make the cache with slack of at least {least - wanted} more."
            )


def _is_traced(*arrays: Array) -> bool:
    return any(isinstance(array, Tracer) for array in arrays)
