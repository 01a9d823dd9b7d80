"""What the flax adapters share: a functional cached model behind the protocol.

Letters: B rows, T tokens, S slots, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import structure
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV

ROOM = 64
BUCKET = 8


class Functional(Protocol):
    """A model whose cache is a tree of arrays that goes in and comes out."""

    def full(self, ids_BT: NDArray) -> Any:
        """Return uncached logits."""
        ...

    def empty(self, batch: int, capacity: int) -> Any:
        """Return an empty cache."""
        ...

    def advance(self, cache: Any, ids_BT: NDArray) -> tuple[Any, Any]:
        """Return logits and the next cache; the old one is unchanged."""
        ...

    def weights(self) -> dict[str, NDArray]:
        """Return the weights by name."""
        ...

    def with_weights(self, arrays: Mapping[str, NDArray], dtype: str | None = None) -> Any:
        """Return the same model with these weights, computing in another dtype where given."""
        ...


@dataclass(frozen=True)
class Fed:
    """A cache, how many tokens of every row were fed, and its room."""

    cache: Any
    fed: int
    capacity: int


def numpy_of(array: Any) -> NDArray:
    """Return numpy; bfloat16 becomes float32 exactly."""
    found = np.asarray(array)
    return found if found.dtype.kind in "fiub" else found.astype(np.float32)


def traced(function: Any) -> Any:
    """Return the function under jit; where it can not be traced, operation by operation."""
    import jax

    jitted, plain = jax.jit(function), []

    def call(*given: Any) -> Any:
        if not plain:
            try:
                return jitted(*given)
            except jax.errors.JAXTypeError:
                plain.append(True)
        return function(*given)

    return call


def floats_as(tree: Any, dtype: str) -> Any:
    """Return the tree with its floating-point arrays in this dtype."""
    import jax
    import jax.numpy as jnp

    def change(array: Any) -> Any:
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(change, tree)


def padded(ids_BT: NDArray) -> NDArray:
    """Return ids filled with zeros to a multiple of 8: fewer shapes to compile.

    Later tokens change no earlier logits of a causal model, and one that is not causal shows it.
    """
    return np.pad(ids_BT, ((0, 0), (0, -ids_BT.shape[1] % BUCKET)))


def embedding(rows: int, width: int, seed: int = 0) -> NDArray:
    """Return the seeded table through which a module without one is given tokens."""
    return np.random.default_rng(seed).standard_normal((rows, width))


def causal_options(parameters: Mapping[str, Any], ids_BT: Any, *, decode: bool) -> dict:
    """Return what a call is given by name: decode, deterministic, and its causality."""
    options: dict[str, Any] = {}
    if "decode" in parameters:
        options["decode"] = decode
    if "deterministic" in parameters:
        options["deterministic"] = True
    if "is_causal" in parameters:
        options["is_causal"] = True
    elif "mask" in parameters and not decode:
        rows, length = ids_BT.shape[:2]
        causal = np.tri(length, dtype=bool)
        options["mask"] = np.broadcast_to(causal, (rows, 1, length, length))
    return options


def subject(model: Functional, *, cached: bool, facts: Mapping[str, Any]) -> FunctionSubject:
    """Return a subject for a functional model.

    Args:
        model: The model.
        cached: Whether `empty` and `advance` work.
        facts: Fields of the info, capabilities and callables that the user gave.
    """
    calls: dict[str, Any] = {"full": lambda ids: numpy_of(model.full(ids))}
    weights = model.weights()
    kinds = {str(w.dtype) for w in weights.values()}
    known = {"framework": "jax", "dtype": kinds.pop() if len(kinds) == 1 else "float32"}
    flags: dict[str, Any] = {"f32": True, "f64": _x64()}
    absent = {} if _x64() else {"f64": "JAX_ENABLE_X64 is not set"}

    def cast(dtype: str) -> FunctionSubject:
        if dtype == "float64" and not _x64():
            raise CrosscheckError("cast: dtype is 'float64', expected JAX_ENABLE_X64=1 for it.")
        return subject(model.with_weights(weights, dtype), cached=cached, facts=facts)

    def nudged(scale: float, seed: int) -> FunctionSubject:
        rng = np.random.default_rng(seed)
        moved = {n: w * (1 + scale * rng.standard_normal(w.shape)) for n, w in weights.items()}
        return subject(model.with_weights(moved), cached=cached, facts=facts)

    def with_weights(arrays: Mapping[str, NDArray]) -> FunctionSubject:
        return subject(model.with_weights(arrays), cached=cached, facts=facts)

    calls |= {"cast": cast, "nudged": nudged, "with_weights": with_weights}
    calls["weights"] = model.weights
    if cached:
        more, against = _cache_calls(model)
        calls |= more
        absent |= against
        flags |= {"persistent": True, "capacity": True, "chunk": "chunk" not in against}
    merged: dict[str, Any] = known | flags | calls | dict(facts)
    merged["absent"] = absent | dict(facts.get("absent", {}))
    return from_functions(**merged)


def _x64() -> bool:
    import jax

    return bool(jax.config.read("jax_enable_x64"))


def _cache_calls(model: Functional) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the calls that a cache allows, and what speaks against the others."""

    def init(batch: int, capacity: int | None) -> Fed:
        room = capacity or ROOM
        return Fed(model.empty(batch, room), 0, room)

    def step(state: Fed, ids: NDArray) -> tuple[NDArray, Fed]:
        logits, cache = model.advance(state.cache, ids)
        return numpy_of(logits), Fed(cache, state.fed + ids.shape[1], state.capacity)

    def sample(rows: int, tokens: int) -> Any:
        state = init(rows, 7 if tokens == 3 else 9)
        return step(state, np.zeros((rows, 1), np.int32))[1].cache

    calls: dict[str, Any] = {"init": init, "step": step, "fork": lambda state: state}
    axes = structure.find_axes(sample)
    if axes is not None:
        calls |= _tree_calls(axes, sample(2, 3))
    try:
        step(init(2, 7), np.zeros((2, 2), np.int32))
    except Exception as error:
        said = " ".join(str(error).split())[:120]
        return calls, {"chunk": f"a step takes one token: {type(error).__name__}: {said}"}
    return calls, {}


def _tree_calls(axes: structure.Axes, held: Any) -> dict[str, Any]:
    import jax.numpy as jnp

    def gather(state: Fed, rows: NDArray) -> Fed:
        return Fed(structure.gather(state.cache, axes, rows), state.fed, state.capacity)

    def rollback(state: Fed, length_B: NDArray) -> Fed:
        if len(set(length_B.tolist())) != 1:
            raise Refused("rollback: rows keep unlike lengths, this cache has one for all rows.")
        length = int(length_B[0])

        def change(_i: int, array: Any) -> Any:
            counts = np.issubdtype(array.dtype, np.integer) and array.ndim <= 1
            return jnp.full_like(array, length) if counts else array

        return Fed(structure.rebuilt(state.cache, change), length, state.capacity)

    def kv(state: Fed, layer: int) -> KV:
        return structure.read_kv(state.cache, axes, layer, state.fed, numpy_of)

    def with_kv(state: Fed, layer: int, new: KV) -> Fed:
        cache = structure.write_kv(state.cache, axes, layer, new, _like)
        return Fed(cache, state.fed, state.capacity)

    calls: dict[str, Any] = {"gather": gather}
    pairs = structure.layers(held)
    if pairs:
        calls |= {"kv": kv, "with_kv": with_kv, "num_layers": len(pairs)}
    if _counts(held):
        calls["rollback"] = rollback
    return calls


def _counts(tree: Any) -> bool:
    found = structure.leaves(tree) or []
    return any(np.issubdtype(a.dtype, np.integer) and a.ndim <= 1 for a in found)


def _like(array: NDArray, old: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array, old.dtype)
