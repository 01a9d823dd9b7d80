"""The verbs on what the buffers hold: looking at it, counting it, and cutting it to size.

Letters: B rows, S slots, K key/value heads, H head width.
"""

import dataclasses
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.errors import RequestError, ShapeError
from torchkv.caches.cross import CrossSite, Source, fill_site
from torchkv.caches.layouts import keeper_of, module_of
from torchkv.caches.state import Cache, Epoch


def fill(cache: Cache, source: Source) -> Cache:
    """Return the cache with what an encoder left in its cross attentions.

    The one passed in is consumed.

    Before the first step of a request; the rows' lengths stay.

    Args:
        cache: Of a model with an encoder.
        source: From `encoder.encode`: one text a row, or one for so many rows (`init`'s beams).

    Raises:
        ShapeError: The source is wider than the cache has slots for it, or for another model, dtype
            or number of rows.
        RequestError: The cache was consumed.
    """
    cache.epoch.check("fill", "cache")
    places = [i for i, site in enumerate(cache.sites) if isinstance(site, CrossSite)]
    if len(places) != len(source):
        raise ShapeError(
            f"fill: source has {len(source)} layers, the cache {len(places)} cross attentions. "
            "Was it made for another model?"
        )
    sites = [*cache.sites]
    for i, each in zip(places, source, strict=True):
        sites[i] = fill_site(sites[i], each)
    return dataclasses.replace(cache, sites=tuple(sites), epoch=cache.epoch.next().settle())


def read(
    cache: Cache, layer: int
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return one layer's keys, values, the position of each slot, and which slots are valid.

    Keys are rotated, as stored.

    Raises:
        RequestError: There is no such layer, or the cache was consumed.
        Unsupported: The layout stores nothing.
    """
    if not 0 <= layer < len(cache.sites):
        raise RequestError(f"read: layer is {layer}, expected 0 to {len(cache.sites) - 1}.")
    cache.epoch.check("read", "cache")
    site = cache.sites[layer]
    return module_of(site).read(site, cache.shared, cache.length_B, cache.peak_B)


def nbytes(cache: Cache) -> int:
    """Return the bytes of all tensors of the cache: buffers, lengths, marks."""
    nodes: tuple[Any, ...] = (cache, cache.shared, *cache.sites)
    held = [
        x for node in nodes if node is not None for x in vars(node).values() if isinstance(x, Array)
    ]
    return sum(x.numel() * x.element_size() for x in held)


def narrow(cache: Cache, *, slots: int) -> Cache:
    """Return a cache of at most `slots` tokens a row on the same buffers, which `widen` puts back.

    Not needed for speed here: a step reads no further than the longest row.

    Args:
        cache: Any cache.
        slots: Tokens that the longest row will hold at most.

    Not checked here: that no row holds more; `planning.plan` sees to it.
    Cost: none, the buffers are views.
    """
    if slots >= cache.capacity:
        return cache
    sites = tuple(module_of(site).narrow_site(site, slots=slots) for site in cache.sites)
    shared = keeper_of(cache.shared).narrow_shared(cache.shared, slots=slots)
    return dataclasses.replace(cache, shared=shared, sites=sites, capacity=slots)


def widen(cache: Cache, like: Cache) -> Cache:
    """Return the cache in the larger buffers of the one that it was narrowed from.

    Raises:
        RequestError: The cache was consumed; or it has buffers of its own (`fork`) and `like` was.

    Cost: none, or a copy if the cache has buffers of its own.
    """
    if cache.capacity == like.capacity:
        return cache
    cache.epoch.check("widen", "cache")
    epoch = cache.epoch
    if epoch.ledger is not like.epoch.ledger:
        like.epoch.check("widen", "cache")
        epoch = like.epoch.next().settle()
    pairs = zip(cache.sites, like.sites, strict=True)
    sites = tuple(module_of(site).widen_site(site, old) for site, old in pairs)
    shared = keeper_of(cache.shared).widen_shared(cache.shared, like.shared)
    return dataclasses.replace(
        cache, shared=shared, sites=sites, capacity=like.capacity, epoch=epoch
    )


def scrub(cache: Cache) -> Cache:
    """Return the cache with 0 in every slot that holds no token, in place.

    The one passed in is consumed.

    After it every step of a loop can be `clean`: none has to pass over the buffers again.

    Raises:
        RequestError: The cache was consumed.

    Cost: writes the unused slots once.
    """
    cache.epoch.check("scrub", "cache")
    for site in cache.sites:
        module_of(site).scrub_site(site, cache.shared, cache.length_B, cache.peak_B)
    return dataclasses.replace(cache, epoch=cache.epoch.next().settle())


def poison(cache: Cache) -> Cache:
    """Return the cache with NaN in every slot that holds no token.

    A probe, what the cache answers must not change.

    Raises:
        RequestError: The cache was consumed.

    Cost: copies every buffer.
    """
    cache.epoch.check("poison", "cache")
    sites = tuple(
        module_of(site).poison_site(site, cache.shared, cache.length_B, cache.peak_B)
        for site in cache.sites
    )
    return dataclasses.replace(cache, sites=sites, epoch=Epoch())
