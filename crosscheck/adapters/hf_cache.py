"""The cache objects of transformers by their attributes alone, so that edited copies work too.

Letters: B rows, S slots, K key/value heads, H head width.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_tools import to_numpy, to_torch, torch_module
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.subjects.protocol import KV

NAMES = {
    "dynamic": "DynamicCache",
    "static": "StaticCache",
    "sliding": "SlidingWindowCache",
    "quantized": "QuantizedCache",
}
CAPACITY_NAMES = ("max_cache_len", "capacity")
REFUSALS = (RuntimeError, ValueError, IndexError, NotImplementedError, AttributeError, TypeError)


class OldLayer:
    """One layer of a cache of transformers 4.42 to 4.53: lists of keys and of values, or pairs."""

    def __init__(self, cache: Any, layer: int, keys: Any, values: Any) -> None:
        self._layer, self._keys, self._values = layer, keys, values
        for name in ("max_cache_len", "batch_select_indices"):
            if hasattr(cache, name):
                setattr(self, name, getattr(cache, name))

    @property
    def keys(self) -> Any:
        """Return the layer's keys."""
        return self._keys[self._layer]

    @keys.setter
    def keys(self, new: Any) -> None:
        self._keys[self._layer] = new

    @property
    def values(self) -> Any:
        """Return the layer's values."""
        return self._values[self._layer]

    @values.setter
    def values(self, new: Any) -> None:
        self._values[self._layer] = new


def old_layers(cache: Any) -> list[OldLayer]:
    """Return the layers of a cache of transformers 4.42 to 4.53; [] of a newer one."""
    if isinstance(cache, tuple):
        pairs = [pair for pair in cache if pair is not None]
        keys, values = ([pair[part] for pair in pairs] for part in (0, 1))
    elif hasattr(cache, "key_cache") and not hasattr(cache, "layers"):
        keys, values = cache.key_cache, cache.value_cache
    else:
        return []
    return [OldLayer(cache, layer, keys, values) for layer in range(len(keys))]


def cache_class(cache: Any) -> Callable[..., Any] | None:
    """Return what makes a cache: a class by name, a callable as it is, None for the model's own.

    Raises:
        CrosscheckError: transformers has no cache of that name.
    """
    if cache is None or callable(cache):
        return cache
    import transformers

    name = NAMES.get(cache, str(cache))
    # Not every release tells all of its caches at the top.
    homes = (transformers, transformers.cache_utils)
    made = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
    if made is None:
        raise CrosscheckError(
            f"adapt: cache is {cache!r}, expected {', '.join(NAMES)}, the name of a cache class of "
            f"transformers {transformers.__version__}, or a callable."
        )
    return made


def expression(cache: Any, make: Any) -> str | None:
    """Return Python text that makes an empty cache of `self.model`, where it has a public name."""
    if cache is None:
        return "None"
    name = getattr(make, "__name__", "")
    if not str(getattr(make, "__module__", "")).startswith("transformers."):
        return None
    room = ", max_cache_len=capacity" if has_capacity(make) else ""
    return f"__import__('transformers').{name}(config=self.model.config{room})"


def has_capacity(make: Callable[..., Any] | None) -> bool:
    """Return whether a maker of caches takes a capacity."""
    return make is not None and any(n in _parameters(make) for n in CAPACITY_NAMES)


def make_cache(
    make: Callable[..., Any], model: Any, batch: int, capacity: int, options: Mapping[str, Any]
) -> Any:
    """Return a new cache, given what its maker's signature asks for by name."""
    weight = next(model.parameters())
    offered = {
        "config": model.config,
        "model": model,
        "max_cache_len": capacity,
        "capacity": capacity,
        "batch": batch,
        "batch_size": batch,
        "max_batch_size": batch,
        "dtype": weight.dtype,
        "device": weight.device,
    } | dict(options)
    wanted = _parameters(make)
    return make(**{k: v for k, v in offered.items() if k in wanted})


def _parameters(make: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return set()


def all_layers(cache: Any) -> list[Any]:
    """Return a cache's layers, those of self-attention where it also holds cross-attention."""
    inner = getattr(cache, "self_attention_cache", cache)
    return list(getattr(inner, "layers", ())) or old_layers(inner)


def copied(cache: Any) -> Any:
    """Return a deep copy; codes, which are replaced and never written into, are shared."""
    codes = [
        code
        for layer in all_layers(cache)
        for name in ("keys", "values")
        if (code := getattr(layer, f"_quantized_{name}", None)) is not None
    ]
    return copy.deepcopy(cache, {id(code): code for code in codes})


def kv_layers(cache: Any) -> list[Any]:
    """Return the layers that hold keys and values (not states of recurrences)."""
    return [layer for layer in all_layers(cache) if hasattr(layer, "keys")]


def is_quantized(layer: Any) -> bool:
    """Return whether a layer keeps codes instead of keys."""
    return hasattr(layer, "_quantized_keys")


def stored(layer: Any, name: str) -> Any:
    """Return a layer's keys or values as a tensor [B, K, S, H]; None while it is empty."""
    tail = getattr(layer, name)
    tail = tail if tail is not None and tail.dim() == 4 else None
    codes = getattr(layer, f"_quantized_{name}", None)
    if codes is None:
        return tail
    whole = layer._dequantize(codes)
    pending = getattr(layer, "_pending_beam_idx", None)
    whole = whole if pending is None else whole.index_select(0, pending)
    if tail is None or tail.shape[-2] == 0:
        return whole
    return torch_module().cat([whole, tail], dim=-2)


def read_kv(cache: Any, layer: int, real_BS: NDArray, position_BS: NDArray) -> KV:
    """Return one layer's cache; the newest token fed lies in the last slot that is filled."""
    keys, values = (stored(kv_layers(cache)[layer], name) for name in ("keys", "values"))
    if keys is None or values is None:
        empty = np.zeros((real_BS.shape[0], 0))
        return KV(empty[..., None, None], empty[..., None, None], empty.astype(int), empty > 0)
    slots, fed = keys.shape[-2], real_BS.shape[1]
    token_S = np.arange(slots) + max(0, fed - slots)
    inside = token_S < fed
    at = np.where(inside, token_S, 0)
    rows = keys.shape[0]
    real, position = (
        (a[:, at] if fed else np.zeros((rows, slots), a.dtype)) for a in (real_BS, position_BS)
    )
    valid = real.astype(bool) & inside
    return KV(
        to_numpy(keys.transpose(1, 2)),
        to_numpy(values.transpose(1, 2)),
        np.where(valid, position, -1),
        valid,
    )


def write_kv(cache: Any, layer: int, kv: KV) -> None:
    """Replace one layer's keys and values in place."""
    held = kv_layers(cache)[layer]
    if is_quantized(held):
        raise Refused("with_kv: the layer is quantized, its codes can't be replaced exactly.")
    for name, array_BSKH in (("keys", kv.keys_BSKH), ("values", kv.values_BSKH)):
        old = getattr(held, name)
        new = to_torch(np.swapaxes(array_BSKH, 1, 2), like=old)
        if hasattr(held, "max_cache_len"):
            old.copy_(new)
        else:
            setattr(held, name, new)


def crop(cache: Any, drop: int) -> None:
    """Take the newest tokens back, as the package does it.

    `is_croppable` is not asked: a cache that crops without a word although it can't is a fault
    that a caller would meet.

    Raises:
        Refused: The package refuses.
    """
    try:
        cache.crop(-drop)
    except REFUSALS as error:
        raise Refused(f"rollback: {drop} tokens back: {_said(error)}.") from None


def select_rows(cache: Any, rows: NDArray, verb: str) -> None:
    """Reorder, repeat or leave out rows in place, with the package's verb.

    Raises:
        Refused: The package refuses.
    """
    try:
        getattr(cache, verb)(to_torch(rows.astype(np.int64)))
    except REFUSALS as error:
        raise Refused(f"gather: {verb}({rows.tolist()}): {_said(error)}.") from None


def gather_verb(cache: Any) -> str:
    """Return the verb that every layer has; the general one first."""
    layers = all_layers(cache)
    if layers and all(hasattr(layer, "batch_select_indices") for layer in layers):
        return "batch_select_indices"
    return "reorder_cache"


def reported_length(cache: Any) -> int | None:
    """Return how many tokens the cache says that it holds."""
    try:
        return int(cache.get_seq_length())
    except REFUSALS:
        return None


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}".rstrip(". ")
