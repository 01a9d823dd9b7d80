"""The verbs on a tester's state, whether it is a cache of a layout or an explicit one.

Letters: B rows, S slots, K key/value heads, H head width.
"""

import jax.numpy as jnp
import numpy as np

from jaxkv import caches
from jaxkv.caches import Cache, Source
from jaxkv.caches.cross import CrossSite
from jaxkv.spec.errors import RequestError, ShapeError
from jaxkv.testing import compiling, explicit_state, surgery
from jaxkv.testing.explicit_state import ExplicitState, to_numpy
from jaxkv.testing.info import KV

State = Cache | ExplicitState


def lengths(state: State) -> np.ndarray:
    """Return how many tokens each row holds."""
    return np.array(state.length_B)


def rollback(state: State, length: np.ndarray) -> State:
    """Return the state with only the first length[b] tokens of each row."""
    if isinstance(state, ExplicitState):
        return explicit_state.rollback(state, length)
    return caches.rollback(state, jnp.asarray(length, jnp.int32))


def gather(state: State, rows: np.ndarray) -> State:
    """Return the state of the named rows."""
    if isinstance(state, ExplicitState):
        return explicit_state.gather(state, rows)
    return caches.gather(state, jnp.asarray(rows, jnp.int32))


def fork(state: State) -> State:
    """Return a second state that lives on by itself."""
    return state if isinstance(state, ExplicitState) else caches.fork(state)


def grow(state: State, like: Cache) -> State:
    """Return the state with as much room as an empty cache has.

    Raises:
        RequestError: That is less than it has.
    """
    if like.capacity < state.capacity:
        raise RequestError(
            f"grow: capacity is {like.capacity}, expected at least {state.capacity}, what the "
            "state has."
        )
    if isinstance(state, ExplicitState):
        return explicit_state.grow(state, like.capacity)
    return surgery.grow(state, like)


def read(state: State, layer: int) -> KV:
    """Return one layer's stored keys and values."""
    if isinstance(state, ExplicitState):
        return KV(*explicit_state.read(state, layer))
    stored = caches.read(compiling.widened(state), _site_of(state, layer))
    return KV(*(to_numpy(array)[: len(state.length_B)] for array in stored))


def write(state: State, layer: int, kv: KV) -> State:
    """Return the state with one layer's keys and values replaced, slot by slot.

    Raises:
        ShapeError: Their shape is another.
        RequestError: Positions or valid slots are not those that `read` gives.
    """
    have = read(state, layer)
    for name in ("keys_BSKH", "values_BSKH"):
        given, wanted = np.shape(getattr(kv, name)), getattr(have, name).shape
        if given != wanted:
            raise ShapeError(f"with_kv: {name} has shape {given}, expected {wanted}.")
    for name in ("position_BS", "valid_BS"):
        if not np.array_equal(getattr(kv, name), getattr(have, name)):
            raise RequestError(
                f"with_kv: {name} is not what kv({layer}) gives. Change keys and values only."
            )
    k_BSKH, v_BSKH = np.asarray(kv.keys_BSKH), np.asarray(kv.values_BSKH)
    if isinstance(state, ExplicitState):
        return explicit_state.write(state, layer, k_BSKH, v_BSKH)
    return surgery.write(state, _site_of(state, layer), k_BSKH, v_BSKH)


def permute_pages(state: State, seed: int) -> State:
    """Return the state with its pages laid in another order; an explicit one has none.

    Raises:
        Unsupported: The layout has none.
    """
    return state if isinstance(state, ExplicitState) else surgery.permute_pages(state, seed)


def poison(state: State) -> State:
    """Return the state with NaN in every slot that holds no token."""
    if isinstance(state, ExplicitState):
        return explicit_state.poison(state)
    return caches.poison(state)


def source_capacity(state: State) -> int | None:
    """Return how many tokens of a source a state has room for; None without an encoder."""
    sites = state.source if isinstance(state, ExplicitState) else state.sites
    held = [site for site in sites if isinstance(site, CrossSite)]
    return width_of(tuple(held)) if held else None


def width_of(source: Source) -> int:
    """Return how many slots an encoder's result takes: its longest text, padded."""
    return source[0].k_XHS.shape[2]


def _site_of(cache: Cache, layer: int) -> int:
    """Return the number of a layer's own attention: those to an encoder's result are left out."""
    own = [i for i, site in enumerate(cache.sites) if not isinstance(site, CrossSite)]
    return own[layer] if 0 <= layer < len(own) else layer
