"""The same model in another form: more key/value heads, another window, another dtype.

Letters: K key/value heads, G query heads a key/value head, H head width, D width.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from flax import nnx

from jaxkv.model import Decoder
from jaxkv.spec.checkpoint import Weights
from jaxkv.spec.config import Attention, ModelConfig
from jaxkv.spec.errors import RequestError
from jaxkv.weights import from_arrays, to_arrays


def cast(model: Decoder, dtype: Any) -> Decoder:
    """Return the model in another dtype; to a wider one each number stays what it is.

    Raises:
        RequestError: The dtype cannot be had.

    Cost: copies the weights.
    """
    return from_arrays(model.config, to_arrays(model), dtype=dtype)


def repeat_kv_heads(model: Decoder) -> Decoder:
    """Return the model with a key/value head of its own for each query head, of the same function.

    Query head n reads head n // G, so each head is repeated G times in place.

    Cost: copies the weights.
    """
    arrays, layers = to_arrays(model), []
    for i, layer in enumerate(model.config.layers):
        a = layer.attention
        for name in (f"layers.{i}.attn.{x}.{part}" for x in "kv" for part in ("weight", "bias")):
            if name in arrays:
                arrays[name] = _repeat(arrays[name], a)
        wide = dataclasses.replace(a, num_kv_heads=a.num_heads)
        layers.append(dataclasses.replace(layer, attention=wide))
    config = dataclasses.replace(model.config, layers=tuple(layers))
    return from_arrays(config, arrays, dtype=model.dtype)


def change_window(model: Decoder, window: int) -> Decoder:
    """Return the model with another window on the same arrays.

    In the layers that have one; in all layers if none has.

    Raises:
        ConfigError: window is below 1.
    """
    attentions = [layer.attention for layer in model.config.layers]
    are_all_full = all(a.window is None for a in attentions)
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(a, window=window))
        if are_all_full or a.window is not None
        else layer
        for layer, a in zip(model.config.layers, attentions, strict=True)
    )
    return _with_config(model, dataclasses.replace(model.config, layers=layers))


def nudge(model: Decoder, scale: float, seed: int) -> Decoder:
    """Return the model with every weight times 1 + scale * a standard normal number.

    Cost: copies the weights, one tensor at a time.
    """
    moved = {
        name: (x.shape, partial(_moved, x, scale, (seed, place)))
        for place, (name, x) in enumerate(to_arrays(model).items())
    }
    return from_arrays(model.config, Weights(moved), dtype=model.dtype)


def _moved(x: np.ndarray, scale: float, seed: tuple[int, int]) -> np.ndarray:
    factor = np.random.default_rng(seed).standard_normal(x.shape)
    factor *= scale
    factor += 1
    return (x * factor).astype(x.dtype, copy=False)


def options_of(name: str, model: Decoder, known: Sequence[str]) -> dict[str, Any]:
    """Return what of a subject another form of it changes, as `Subject` takes it.

    Args:
        name: "gqa_as_mha", "layout_paged", "window=4", ...
        model: The subject's.
        known: The forms that there are, with N for a number.

    Raises:
        RequestError: The form is none of them.
    """
    form, _, number = name.partition("=")
    is_known = name in known if not number else f"{form}=N" in known and number.isdecimal()
    if not is_known:
        raise RequestError(f"variant: name is {name!r}, expected one of {', '.join(known)}.")
    kind, _, layout = form.partition("layout_")
    return {
        "gqa_as_mha": lambda: {"model": repeat_kv_heads(model)},
        "window": lambda: {"model": change_window(model, int(number))},
        "page_size": lambda: {"page_size": int(number)},
        "mla_naive": lambda: {"absorbed": False},
        "mla_absorbed": lambda: {"absorbed": True},
        "eager": lambda: {"compiled": False},
        "jit": lambda: {"compiled": True},
        "exact": lambda: {"layout": "contiguous"},
        "": lambda: {"layout": layout},
    }[kind]()


def _repeat(rows: np.ndarray, a: Attention) -> np.ndarray:
    by_head = rows.reshape(a.num_kv_heads, a.head_dim, *rows.shape[1:])
    return np.repeat(by_head, a.groups, axis=0).reshape(-1, *rows.shape[1:])


def _with_config(model: Decoder, config: ModelConfig) -> Decoder:
    changed = nnx.merge(*nnx.split(model))
    changed.config = config
    return changed
