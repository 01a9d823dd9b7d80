"""What a keras model is made of: its weights, its dtype, and what may be given to its layers.

Letters: B rows, T tokens, S slots, D model width, N heads, H head width.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.jax_tools import numpy_of, traced
from crosscheck.adapters.torch_tools import quiet
from crosscheck.subjects.amplify import NOTE, amplified


def backend() -> tuple[str, str | None]:
    """Return the framework behind keras, and why it can't compute in float64, if so."""
    name = importlib.import_module("keras").backend.backend()
    if name != "jax":
        return name, f"keras's {name} backend resolves float64 to float32"
    import jax

    wide = jax.config.read("jax_enable_x64")
    return name, None if wide else "JAX_ENABLE_X64 is not set"


def ops() -> Any:
    """Return keras's operations, which whoever brings a keras model has imported."""
    return importlib.import_module("keras").ops


def alone(function: Any) -> Any:
    """Return the function under jit on JAX, and without gradients elsewhere."""
    if backend()[0] == "jax":
        return traced(function)

    def call(*given: Any) -> Any:
        with quiet():
            return function(*given)

    return call


def to_numpy(array: Any) -> NDArray:
    """Return a copy as numpy."""
    return numpy_of(ops().convert_to_numpy(array)).copy()


def ids_of(ids_BT: NDArray) -> Any:
    """Return token ids as keras's layers take them."""
    return ops().convert_to_tensor(np.asarray(ids_BT, np.int32))


def weights(model: Any) -> dict[str, NDArray]:
    """Return the floating-point weights by path."""
    return {w.path: to_numpy(w) for w in model.weights if "float" in str(w.dtype)}


def copied(model: Any, arrays: Mapping[str, NDArray], dtype: str | None = None) -> Any:
    """Return a second model with these weights, in another dtype where one is given."""
    config = model.backbone.get_config() | ({} if dtype is None else {"dtype": dtype})
    twin = type(model)(backbone=type(model.backbone).from_config(config), preprocessor=None)
    _put(twin, arrays)
    return twin


def nudged(model: Any, scale: float, seed: int) -> Any:
    """Return a second model whose weights are each times 1 + scale * normal noise."""
    rng = np.random.default_rng(seed)
    moved = {k: w * (1 + scale * rng.standard_normal(w.shape)) for k, w in weights(model).items()}
    return copied(model, moved)


def amplify(model: Any, seed: int) -> str:
    """Write amplified weights into a model, and return the note that says so.

    A kernel sums over its first axis (D, N, H), an output projection over all but its last
    (N, H, D).
    """
    arrays = weights(model)
    flat = {
        k: w.reshape(-1, w.shape[-1]) if "output" in k else w.reshape(len(w), -1)
        for k, w in arrays.items()
        if w.ndim >= 2
    }
    drawn = amplified(arrays | flat, seed=seed, fan_in_axis=0)
    _put(model, {k: w.reshape(arrays[k].shape) for k, w in drawn.items()})
    return NOTE.format(seed=seed)


@contextmanager
def given(backbone: Any, positions_BT: Any, visible_BTS: Any) -> Iterator[None]:
    """Let a backbone's layers use these positions, and these masks, while the context lasts."""
    changed: list[tuple[Any, str]] = []

    def change(layer: Any, name: str, function: Any) -> None:
        vars(layer)[name] = function
        changed.append((layer, name))

    if visible_BTS is not None:
        mask = ops().convert_to_tensor(np.asarray(visible_BTS, bool))
        for layer in backbone.transformer_layers:
            change(layer, "_compute_self_attention_mask", lambda *_given, **_named: mask)
    if positions_BT is not None:
        places = ids_of(positions_BT)
        for layer in backbone._flatten_layers():
            if {"start_index", "positions"} <= inspect.signature(layer.call).parameters.keys():
                change(layer, "call", _placed(layer.call, places))
    try:
        yield
    finally:
        for layer, name in changed:
            del vars(layer)[name]


def _placed(call: Any, places: Any) -> Any:
    return lambda inputs, *_given, **_named: call(inputs, positions=places)


def _put(model: Any, arrays: Mapping[str, NDArray]) -> None:
    for weight in model.weights:
        if weight.path in arrays:
            weight.assign(arrays[weight.path])
