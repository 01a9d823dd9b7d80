"""What a tester does to a cache beside its verbs: other keys and values, other pages, more room.

None of it is for products: everything is copied, on the host.

Letters: B rows, S slots, K key/value heads, H head width, C columns of the table, A pages, P page
size, Y = A*K.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches import Cache
from jaxkv.caches.contiguous import ContiguousSite
from jaxkv.caches.paged import PagedSite
from jaxkv.caches.window import WindowSite
from jaxkv.spec.errors import Unsupported


def write(cache: Cache, layer: int, k_BSKH: np.ndarray, v_BSKH: np.ndarray) -> Cache:
    """Return the cache with one layer's keys and values replaced, slot by slot as `read` has them.

    In the paged layout every row has pages of its own afterwards.
    """
    if isinstance(cache.sites[layer], PagedSite):
        cache = _unshare(cache)
        columns = cache.shared.table_BC.shape[1]
        site = _write_pages(cache.sites[layer], cache.shared, k_BSKH, v_BSKH, columns)
    else:
        site = _write_slots(cache.sites[layer], k_BSKH, v_BSKH)
    sites = [*cache.sites]
    sites[layer] = site
    return dataclasses.replace(cache, sites=tuple(sites))


def permute_pages(cache: Cache, seed: int) -> Cache:
    """Return the cache with the pages of its pool in another order, and the table that says so.

    Raises:
        Unsupported: The layout has no pages.
    """
    if cache.shared is None:
        raise Unsupported("permute_pages: this layout has no pages. Use layout='paged'.")
    total = cache.shared.count_A.shape[0]
    # The trash page keeps its number, 0.
    source_A = np.concatenate([[0], 1 + np.random.default_rng(seed).permutation(total - 1)])
    target_A = np.argsort(source_A)
    return _relaid(cache, target_A[np.asarray(cache.shared.table_BC)], source_A)


def grow(cache: Cache, like: Cache) -> Cache:
    """Return the cache in buffers as large as those of an empty one with more room."""
    if cache.shared is not None:
        table_BC = np.asarray(cache.shared.table_BC)
        added = like.shared.table_BC.shape[1] - table_BC.shape[1]
        extra = max(like.shared.count_A.shape[0] - cache.shared.count_A.shape[0], 0)
        source_A = np.concatenate(
            [np.arange(cache.shared.count_A.shape[0]), np.zeros(extra, np.int64)]
        )
        grown = _relaid(cache, np.pad(table_BC, ((0, 0), (0, added))), source_A)
        return dataclasses.replace(grown, capacity=like.capacity)
    sites = tuple(
        dataclasses.replace(
            site,
            **{
                name: _front(getattr(site, name), getattr(new, name))
                for name, value in vars(site).items()
                if hasattr(value, "shape")
            },
        )
        for site, new in zip(cache.sites, like.sites, strict=True)
    )
    return dataclasses.replace(cache, sites=sites, capacity=like.capacity)


def _write_slots(site: Any, k_BSKH: np.ndarray, v_BSKH: np.ndarray) -> Any:
    rows, slots, kv_heads, width = k_BSKH.shape
    lines = rows * kv_heads
    k_XHS = k_BSKH.transpose(0, 2, 3, 1).reshape(lines, width, slots)
    v_XSH = v_BSKH.transpose(0, 2, 1, 3).reshape(lines, slots, -1)
    if isinstance(site, ContiguousSite):
        dtype, rank = site.k_XHS.dtype, site.rank
        if rank is not None:
            return ContiguousSite(jnp.asarray(_merged(site.k_XHS, k_XHS, v_XSH)), None, rank)
        return ContiguousSite(jnp.asarray(k_XHS, dtype), jnp.asarray(v_XSH, dtype), None)
    assert isinstance(site, WindowSite)  # the layouts of the product
    dtype = site.k_XHC.dtype
    return WindowSite(jnp.asarray(k_XHS, dtype), jnp.asarray(v_XSH, dtype), site.window, site.slack)


def _merged(old_XHS: Any, k_XHS: np.ndarray, v_XSH: np.ndarray) -> np.ndarray:
    """Return the keys whose first channels are values too: what changed on either side is there."""
    merged_XHS, rank = np.array(k_XHS, old_XHS.dtype), v_XSH.shape[2]
    values_XHS = v_XSH.swapaxes(1, 2)
    has_changed = values_XHS != np.asarray(old_XHS)[:, :rank]
    merged_XHS[:, :rank] = np.where(has_changed, values_XHS, merged_XHS[:, :rank])
    return merged_XHS


def _write_pages(
    site: PagedSite, pages: Any, k_BSKH: np.ndarray, v_BSKH: np.ndarray, columns: int
) -> PagedSite:
    rows, _, kv_heads, width = k_BSKH.shape
    size, total = pages.page_size, pages.count_A.shape[0]
    page_BC = np.asarray(pages.table_BC)
    k_BCPKH, v_BCPKH = (x.reshape(rows, columns, size, kv_heads, -1) for x in (k_BSKH, v_BSKH))
    k_AKHP = np.array(site.k_YHP).reshape(total, kv_heads, width, size)
    k_AKHP[page_BC] = k_BCPKH.transpose(0, 1, 3, 4, 2)
    k_YHP = k_AKHP.reshape(-1, width, size)
    if site.rank is not None:
        v_AKPH = k_AKHP[:, :, : site.rank].swapaxes(2, 3).copy()
        v_AKPH[page_BC] = v_BCPKH.transpose(0, 1, 3, 2, 4)
        merged = _merged(site.k_YHP, k_YHP, v_AKPH.reshape(-1, size, site.rank))
        return PagedSite(jnp.asarray(merged), None, kv_heads, site.rank)
    v_AKPH = np.array(site.v_YPH).reshape(total, kv_heads, size, width)
    v_AKPH[page_BC] = v_BCPKH.transpose(0, 1, 3, 2, 4)
    v_YPH = v_AKPH.reshape(-1, size, width)
    return PagedSite(jnp.asarray(k_YHP), jnp.asarray(v_YPH), kv_heads, None)


def _unshare(cache: Cache) -> Cache:
    table_BC = np.asarray(cache.shared.table_BC)
    own_BC = 1 + np.arange(table_BC.size).reshape(table_BC.shape)
    source_A = np.concatenate([[0], table_BC.reshape(-1)])
    return _relaid(cache, np.where(table_BC > 0, own_BC, 0), source_A)


def _relaid(cache: Cache, table_BC: np.ndarray, source_A: np.ndarray) -> Cache:
    """Return the cache whose page a holds what page source_A[a] held, under another table."""
    count_A = np.bincount(table_BC.reshape(-1), minlength=len(source_A))
    count_A[0] = 0
    pages = dataclasses.replace(
        cache.shared,
        table_BC=jnp.asarray(table_BC, jnp.int32),
        count_A=jnp.asarray(count_A, jnp.int32),
    )
    sites = tuple(
        jax.tree.map(partial(_lines, source_A=source_A, kv_heads=site.num_kv_heads), site)
        if isinstance(site, PagedSite)
        else site
        for site in cache.sites
    )
    return dataclasses.replace(cache, shared=pages, sites=sites)


def _lines(x_Y: Any, source_A: np.ndarray, kv_heads: int) -> Any:
    by_page = np.asarray(x_Y).reshape(-1, kv_heads, *x_Y.shape[1:])
    return jnp.asarray(by_page[source_A].reshape(-1, *x_Y.shape[1:]))


def _front(old: Any, new: Any) -> Any:
    wide = np.array(new)
    wide[tuple(slice(size) for size in old.shape)] = np.asarray(old)
    return jnp.asarray(wide)
