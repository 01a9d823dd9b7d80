"""The verbs on whole rows: going back, choosing rows, keeping a copy, starting anew.

Letters: B rows, C rows of a gathered cache.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor as Array

from jaxkv.spec.errors import RequestError, RollbackError, ShapeError
from torchkv.caches import cross
from torchkv.caches.layouts import keeper_of, module_of
from torchkv.caches.state import Cache, Epoch


def rollback(cache: Cache, length_B: Int[Array, " B"]) -> Cache:
    """Return the cache as if each row had only ever held its first length_B[b] tokens.

    Clears overflow_B.

    It shares the buffers with the one passed in, and the next step of either consumes the other.

    Args:
        cache: Any cache.
        length_B: int32, new length of each row.

    Raises:
        RollbackError: A length is negative, above the row's, or below what a ring still holds.
        ShapeError: length_B is not one number a row.
        RequestError: The cache was consumed.
        Unsupported: The layout stores nothing.
    """
    length_B = torch.as_tensor(length_B, device=cache.length_B.device)
    if length_B.shape != cache.length_B.shape:
        rows = cache.length_B.shape[0]
        raise ShapeError(
            f"rollback: length_B has shape {tuple(length_B.shape)}, expected ({rows},), one "
            "length a row."
        )
    cache.epoch.check("rollback", "cache")
    length_B = length_B.to(torch.int32, copy=True)
    floors = [module_of(site).floor(site, cache) for site in cache.sites]
    _check_rollback(length_B, torch.stack(floors).amax(0), cache.length_B)
    shared = keeper_of(cache.shared).rollback_shared(cache.shared, length_B)
    return dataclasses.replace(
        cache, length_B=length_B, overflow_B=torch.zeros_like(cache.overflow_B), shared=shared
    )


def gather(cache: Cache, rows_B: Int[Array, " C"]) -> Cache:
    """Return a cache whose row i is row rows_B[i] of this one.

    Rows may repeat, be left out, or change in number.

    It has buffers of its own, and the one passed in stays in use; but a paged cache shares its
    pages with the one passed in, rows that share a source share it on, and then the next step of
    either consumes the other.

    Raises:
        RequestError: A row is out of range, or leaves the rows that share its source, or the cache
            was consumed.
        Unsupported: The layout stores nothing.

    Cost: copies the rows' buffers; of the paged layout only the table.
    """
    cache.epoch.check("gather", "cache")
    batch = cache.length_B.shape[0]
    rows_B = torch.as_tensor(rows_B, device=cache.length_B.device)
    for i, row in enumerate(rows_B.tolist()):
        if not 0 <= row < batch:
            raise RequestError(
                f"gather: rows_B[{i}] is {row}, expected 0 to {batch - 1} (the cache has {batch} "
                "rows)."
            )
    rows_B = rows_B.to(torch.int32)
    _check_stray(cache, rows_B, batch)
    return _take(cache, rows_B, keep_sources=False)


def spread(cache: Cache, times: int) -> Cache:
    """Return a cache in which each row stands `times` times, one copy after the other.

    As `gather` with every row repeated; but what an encoder left is not copied: the copies of a row
    share its source, and `gather` moves rows among those only.

    Like a gathered cache it has buffers of its own, unless it shares pages or sources with the one
    passed in: then the next step of either consumes the other.

    Args:
        cache: Any cache.
        times: How often.

    Raises:
        RequestError: times is below 1, or the cache was consumed.
        Unsupported: The layout stores nothing.

    Cost: copies the rows' buffers `times` times; of the paged layout only the table.
    """
    if times < 1:
        raise RequestError(f"spread: times is {times}, expected at least 1. Leave it out.")
    cache.epoch.check("spread", "cache")
    row_B = torch.arange(cache.length_B.shape[0], dtype=torch.int32, device=cache.length_B.device)
    return _take(cache, row_B.repeat_interleave(times), keep_sources=True)


def fork(cache: Cache) -> Cache:
    """Return a second cache with buffers of its own, which outlives the first one's being consumed.

    Raises:
        RequestError: The cache was consumed.

    Cost: copies every buffer.
    """
    cache.epoch.check("fork", "cache")
    sites = tuple(_copy(site) for site in cache.sites)
    length_B, peak_B, overflow_B = (
        mark_B.clone() for mark_B in (cache.length_B, cache.peak_B, cache.overflow_B)
    )
    shared = None if cache.shared is None else _copy(cache.shared)
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity)


def reset(cache: Cache, only_B: Bool[Array, " B"] | None = None) -> Cache:
    """Return the cache with rows empty and their marks cleared.

    What the buffers hold in them no longer matters: a request that is done or given up leaves its
    row so, and the next one begins in it, whatever the other rows do meanwhile.

    It shares the buffers with the one passed in, and the next step of either consumes the other.

    Args:
        cache: Any cache.
        only_B: Which rows; None resets all, and counts copied pages from 0 again.

    Raises:
        ShapeError: only_B is not one mark a row.
        RequestError: The cache was consumed.

    Cost: none; buffers are not rewritten.
    """
    cache.epoch.check("reset", "cache")
    keeper = keeper_of(cache.shared)
    marks = cache.length_B, cache.peak_B, cache.overflow_B
    if only_B is None:
        length_B, peak_B, overflow_B = (torch.zeros_like(mark_B) for mark_B in marks)
        shared = keeper.reset_shared(cache.shared)
    else:
        only_B = torch.as_tensor(only_B, device=cache.length_B.device)
        if only_B.shape != cache.length_B.shape:
            raise ShapeError(
                f"reset: only_B has shape {tuple(only_B.shape)}, expected "
                f"{tuple(cache.length_B.shape)}, one mark a row."
            )
        length_B, peak_B, overflow_B = (mark_B.masked_fill(only_B, 0) for mark_B in marks)
        shared = keeper.clear_shared(cache.shared, only_B)
    return dataclasses.replace(
        cache,
        length_B=length_B,
        peak_B=peak_B,
        overflow_B=overflow_B,
        shared=shared,
        sites=tuple(
            cross.reset_site(site, only_B) if isinstance(site, cross.CrossSite) else site
            for site in cache.sites
        ),
    )


def _take(cache: Cache, rows_B: Array, *, keep_sources: bool) -> Cache:
    batch = cache.length_B.shape[0]
    sites = tuple(
        site
        if keep_sources and isinstance(site, cross.CrossSite)
        else module_of(site).gather_site(site, rows_B, batch=batch)
        for site in cache.sites
    )
    length_B, peak_B, overflow_B = (
        mark_B.index_select(0, rows_B)
        for mark_B in (cache.length_B, cache.peak_B, cache.overflow_B)
    )
    shared = keeper_of(cache.shared).gather_shared(cache.shared, rows_B)
    in_place = any(new is old for new, old in zip(sites, cache.sites, strict=True))
    epoch = cache.epoch if in_place else Epoch()
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity, epoch)


def _copy(node: Any) -> Any:
    arrays = {name: x.clone() for name, x in vars(node).items() if isinstance(x, Array)}
    return dataclasses.replace(node, **arrays)


def _check_stray(cache: Cache, rows_B: Array, batch: int) -> None:
    for site in cache.sites:
        if not isinstance(site, cross.CrossSite):
            continue
        stray_B = cross.stray_rows(site, rows_B, batch=batch)
        for i, (row, is_stray) in enumerate(zip(rows_B.tolist(), stray_B.tolist(), strict=True)):
            if is_stray:
                raise RequestError(
                    f"gather: rows_B[{i}] is {row}, a row of another source than row {i}'s. Rows "
                    "that share a source (beams) stay with it; make the cache with beams=1."
                )


def _check_rollback(length_B: Array, floor_B: Array, have_B: Array) -> None:
    facts = torch.stack((length_B, floor_B, have_B), 1).tolist()
    for row, (wanted, least, have) in enumerate(facts):
        if wanted < 0 or wanted > have:
            raise RollbackError(
                f"rollback: length_B[{row}] is {wanted}, expected 0 to {have}, what the row holds."
            )
        if wanted < least:
            raise RollbackError(
                f"rollback: length_B[{row}] is {wanted}, a ring of this cache has evicted what "
                f"lies below {least}. "
                f"Make the cache with slack of at least {least - wanted} more."
            )
