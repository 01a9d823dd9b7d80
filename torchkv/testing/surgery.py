"""What a tester does to a cache beside its verbs: other keys and values, other pages, more room.

None of it is for products: everything is copied, so the old cache stays.

Letters: B rows, S slots, K key/value heads, H head width, C columns of the table, A pages, P page
size.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from jaxkv.spec.errors import Unsupported
from torchkv import caches
from torchkv.caches import Cache
from torchkv.caches.contiguous import ContiguousSite
from torchkv.caches.paged import PagedSite
from torchkv.caches.state import Epoch
from torchkv.caches.window import WindowSite


def write(cache: Cache, layer: int, k_BSKH: np.ndarray, v_BSKH: np.ndarray) -> Cache:
    """Return the cache with one layer's keys and values replaced, slot by slot as `read` has them.

    In the paged layout every row has pages of its own afterwards.
    """
    cache = caches.fork(cache) if cache.shared is None else _unshare(cache)
    site = cache.sites[layer]
    first = next(x for x in vars(site).values() if isinstance(x, Array))
    keys, values = (
        torch.tensor(x, dtype=first.dtype, device=first.device).transpose(1, 2).contiguous()
        for x in (k_BSKH, v_BSKH)
    )
    sites = [*cache.sites]
    sites[layer] = _replaced(site, cache.shared, keys, values)
    return dataclasses.replace(cache, sites=tuple(sites))


def permute_pages(cache: Cache, seed: int) -> Cache:
    """Return the cache with the pages of its pool in another order, and the table that says so.

    Raises:
        Unsupported: The layout has no pages.
    """
    if cache.shared is None:
        raise Unsupported("permute_pages: this layout has no pages. Use layout='paged'.")
    order = np.random.default_rng(seed).permutation(len(cache.shared.count_A) - 1)
    # The trash page keeps its number, 0.
    source_A = torch.tensor([0, *(1 + order).tolist()], device=cache.length_B.device)
    target_A = source_A.argsort()
    return _relaid(cache, target_A[cache.shared.table_BC.long()], source_A)


def grow(cache: Cache, like: Cache) -> Cache:
    """Return the cache in buffers as large as those of an empty one with more room."""
    if cache.shared is not None:
        old, new = cache.shared, like.shared
        extra = max(len(new.count_A) - len(old.count_A), 0)
        source_A = torch.arange(len(old.count_A), device=old.count_A.device)
        source_A = torch.cat([source_A, source_A.new_zeros(extra)])
        grown = _relaid(cache, _front(old.table_BC, new.table_BC), source_A)
        return dataclasses.replace(grown, capacity=like.capacity)
    sites = []
    for site, new in zip(cache.sites, like.sites, strict=True):
        names = [name for name, value in vars(site).items() if isinstance(value, Array)]
        wide = {name: _front(getattr(site, name), getattr(new, name)) for name in names}
        sites.append(dataclasses.replace(site, **wide))
    return dataclasses.replace(cache, sites=tuple(sites), capacity=like.capacity, epoch=Epoch())


def _replaced(site: Any, pages: Any, k_BKSH: Array, v_BKSH: Array) -> Any:
    if isinstance(site, ContiguousSite) and site.rank is None:
        return ContiguousSite(k_BKSH, v_BKSH, None)
    if isinstance(site, ContiguousSite):
        return ContiguousSite(_merged(site.k_BKSH, k_BKSH, v_BKSH), None, site.rank)
    if isinstance(site, WindowSite):
        return WindowSite(k_BKSH, v_BKSH, site.window, site.slack)
    assert isinstance(site, PagedSite)  # the layouts of the product
    page_BC = pages.table_BC.long()
    k_AKPH = site.k_AKPH.clone()
    v_AKPH = (k_AKPH[..., : site.rank] if site.v_AKPH is None else site.v_AKPH).clone()
    for pool, new in ((k_AKPH, k_BKSH), (v_AKPH, v_BKSH)):
        pool[page_BC] = new.unflatten(2, (page_BC.shape[1], -1)).transpose(1, 2)
    if site.rank is None:
        return PagedSite(k_AKPH, v_AKPH, None)
    return PagedSite(_merged(site.k_AKPH, k_AKPH, v_AKPH), None, site.rank)


def _merged(old_BKSH: Array, k_BKSH: Array, v_BKSH: Array) -> Array:
    """Return the keys whose first channels are values too: what changed on either side is there."""
    rank = v_BKSH.shape[-1]
    has_changed = v_BKSH != old_BKSH[..., :rank]
    return torch.cat((torch.where(has_changed, v_BKSH, k_BKSH[..., :rank]), k_BKSH[..., rank:]), -1)


def _unshare(cache: Cache) -> Cache:
    table_BC = cache.shared.table_BC
    own_BC = torch.arange(1, 1 + table_BC.numel(), device=table_BC.device).reshape(table_BC.shape)
    source_A = torch.cat([table_BC.new_zeros(1), table_BC.flatten()]).long()
    return _relaid(cache, own_BC.masked_fill(table_BC == 0, 0), source_A)


def _relaid(cache: Cache, table_BC: Array, source_A: Array) -> Cache:
    """Return the cache whose page a holds what page source_A[a] held, under another table."""
    count_A = torch.bincount(table_BC.flatten().long(), minlength=len(source_A))
    count_A[0] = 0
    pages = dataclasses.replace(
        cache.shared, table_BC=table_BC.to(torch.int32), count_A=count_A.to(torch.int32)
    )
    sites = tuple(
        dataclasses.replace(
            site,
            **{
                name: pool[source_A] for name, pool in vars(site).items() if isinstance(pool, Array)
            },
        )
        if isinstance(site, PagedSite)
        else site
        for site in cache.sites
    )
    return dataclasses.replace(cache, shared=pages, sites=sites, epoch=Epoch())


def _front(old: Array, new: Array) -> Array:
    wide = new.clone()
    wide[tuple(slice(size) for size in old.shape)] = old
    return wide
