"""The verbs on what the buffers hold: looking at it, counting it, and cutting it to size.

Letters: B rows, S slots, K key/value heads, H head width.
"""

import dataclasses

import jax
from jaxtyping import Array, Bool, Float, Int

from jaxkv.caches.cross import CrossSite, Source, fill_site
from jaxkv.caches.layouts import keeper_of, module_of
from jaxkv.caches.state import Cache
from jaxkv.spec.errors import RequestError, ShapeError


def fill(cache: Cache, source: Source) -> Cache:
    """Return the cache with what an encoder left in its cross attentions.

    Before the first step of a request; the rows' lengths stay.

    Args:
        cache: Of a model with an encoder.
        source: From `encoder.encode`: one text a row, or one for so many rows (`init`'s beams).

    Raises:
        ShapeError: The source is wider than the cache has slots for it, or for another model, dtype
            or number of rows.
    """
    places = [i for i, site in enumerate(cache.sites) if isinstance(site, CrossSite)]
    if len(places) != len(source):
        raise ShapeError(
            f"fill: source has {len(source)} layers, the cache {len(places)} cross attentions. "
            "Was it made for another model?"
        )
    sites = [*cache.sites]
    for i, each in zip(places, source, strict=True):
        sites[i] = fill_site(sites[i], each)
    return dataclasses.replace(cache, sites=tuple(sites))


def read(
    cache: Cache, layer: int
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return one layer's keys (rotated, as stored), values, the position of each slot.

    And which slots are valid.

    Raises:
        RequestError: There is no such layer.
        Unsupported: The layout stores nothing.
    """
    if not 0 <= layer < len(cache.sites):
        raise RequestError(f"read: layer is {layer}, expected 0 to {len(cache.sites) - 1}.")
    site = cache.sites[layer]
    return module_of(site).read(site, cache.shared, cache.length_B, cache.peak_B)


def nbytes(cache: Cache) -> int:
    """Return the bytes of all arrays of the cache: buffers, lengths, marks."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


def narrow(cache: Cache, *, slots: int) -> Cache:
    """Return a cache of at most `slots` tokens a row for the steps of one program.

    So that they read no more than that.

    Capacity must not cost time, and a step reads its whole buffers: a program copies the front of a
    large cache once, works on it, and puts it back with `widen`.

    Args:
        cache: Any cache.
        slots: Tokens that the longest row will hold at most.

    Not checked here: that no row holds more; `generation.plan` sees to it.
    Cost: copies slots / capacity of the buffers; none when the cache is no larger.
    """
    if slots >= cache.capacity:
        return cache
    sites = tuple(module_of(site).narrow_site(site, slots=slots) for site in cache.sites)
    shared = keeper_of(cache.shared).narrow_shared(cache.shared, slots=slots)
    return dataclasses.replace(cache, shared=shared, sites=sites, capacity=slots)


def widen(cache: Cache, like: Cache) -> Cache:
    """Return the cache in the larger buffers of the one that it was narrowed from.

    Cost: writes the narrow buffers' elements.
    """
    if cache.capacity == like.capacity:
        return cache
    pairs = zip(cache.sites, like.sites, strict=True)
    sites = tuple(module_of(site).widen_site(site, old) for site, old in pairs)
    shared = keeper_of(cache.shared).widen_shared(cache.shared, like.shared)
    return dataclasses.replace(cache, shared=shared, sites=sites, capacity=like.capacity)


def scrub(cache: Cache) -> Cache:
    """Return the cache with values of 0 in every slot that holds no token.

    After it every step of a loop can be `clean`: none has to pass over the values again.

    Cost: rewrites the values' buffers once.
    """
    sites = tuple(
        module_of(site).scrub_site(site, cache.shared, cache.length_B, cache.peak_B)
        for site in cache.sites
    )
    return dataclasses.replace(cache, sites=sites)


def poison(cache: Cache) -> Cache:
    """Return the cache with NaN in every slot that holds no token.

    A probe, what the cache answers must not change.
    """
    sites = tuple(
        module_of(site).poison_site(site, cache.shared, cache.length_B, cache.peak_B)
        for site in cache.sites
    )
    return dataclasses.replace(cache, sites=sites)
