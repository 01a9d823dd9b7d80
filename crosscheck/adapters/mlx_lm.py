"""A model of mlx-lm as a subject: its prompt cache is copied for each step.

Letters: B rows, T tokens of this call, S slots, K key/value heads, H head width.
"""

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_verbs import common
from crosscheck.errors import Refused
from crosscheck.subjects.amplify import NOTE, amplified, seed_of
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV

NARROW = "its attention and rotary kernels take no float64"
NO_ROWS = "its prompt caches have no verb for rows"


@dataclass(frozen=True)
class Held:
    """The package's prompt cache, one object a layer, and how many tokens were fed."""

    cache: Any
    fed: int


def adapt_mlx(model: Any, *, amplify: int | bool | None = None, **facts: Any) -> FunctionSubject:
    """Return a subject for a model of mlx-lm: `mlx_lm.models.<family>.Model`.

    It is driven as `mlx_lm.generate` does: `make_prompt_cache`, `model(ids, cache=cache)` and, to
    roll back, `trim_prompt_cache`, which refuses by returning that it trimmed nothing.

    Args:
        model: Used as it is, in eval mode.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        facts: As in `from_functions`.
    """
    seed = seed_of(amplify)
    if seed is not None:
        _put(model, amplified(_weights(model), seed=seed))
        facts["notes"] = (*facts.get("notes", ()), NOTE.format(seed=seed))
    model.eval()
    # What is computed lazily would be computed by another thread later, which has no such stream.
    importlib.import_module("mlx.core").eval(model.parameters())
    args = getattr(model, "args", None)
    kinds = getattr(args, "layer_types", None)
    width = getattr(args, "sliding_window", None)
    known = {
        "name": f"mlx-lm {type(model).__module__.rpartition('.')[2]}",
        "framework": "mlx",
        "num_layers": len(model.layers),
        "kv_heads": getattr(args, "num_key_value_heads", None),
        "max_positions": getattr(args, "max_position_embeddings", None),
        "windows": tuple(width if "sliding" in kind else None for kind in kinds) if kinds else (),
        "persistent": True,
        "f32": True,
        "f64": False,
        "absent": {"f64": NARROW, "gather": NO_ROWS},
    }
    return from_functions(**(known | _calls(model) | _copies(model, facts) | facts))


def _copies(model: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    def with_weights(arrays: Mapping[str, NDArray]) -> FunctionSubject:
        twin = copy.deepcopy(model)
        _put(twin, arrays)
        return adapt_mlx(twin, **facts)

    def nudged(scale: float, seed: int) -> FunctionSubject:
        rng = np.random.default_rng(seed)
        held = _weights(model)
        return with_weights(
            {k: w * (1 + scale * rng.standard_normal(w.shape)) for k, w in held.items()}
        )

    calls = {"with_weights": with_weights, "nudged": nudged, "weights": lambda: _weights(model)}
    # Whatever the dtype was, float32 is what the kernels compute in.
    return calls | {"cast": lambda _dtype: with_weights(_weights(model))}


def _calls(model: Any) -> dict[str, Any]:
    mx = importlib.import_module("mlx.core")
    caches = importlib.import_module("mlx_lm.models.cache")

    def full(ids: NDArray) -> NDArray:
        return _numpy(model(mx.array(np.asarray(ids, np.int32))))

    def init(batch: int) -> Held:
        return Held(caches.make_prompt_cache(model), 0)

    def step(state: Held, ids: NDArray) -> tuple[NDArray, Held]:
        cache = copy.deepcopy(state.cache)
        logits = _numpy(model(mx.array(np.asarray(ids, np.int32)), cache=cache))
        return logits, Held(cache, state.fed + ids.shape[1])

    def rollback(state: Held, length_B: NDArray) -> Held:
        cache, drop = copy.deepcopy(state.cache), state.fed - common(length_B)
        done = caches.trim_prompt_cache(cache, drop)
        if done != drop:
            raise Refused(f"rollback: trim_prompt_cache took back {done} of {drop} tokens.")
        return Held(cache, state.fed - drop)

    def kv(state: Held, layer: int) -> KV:
        held = state.cache[layer]
        keys, values = (np.swapaxes(_numpy(x), 1, 2) for x in (held.keys, held.values))
        slot_BS = np.broadcast_to(np.arange(keys.shape[1]), keys.shape[:2])
        valid_BS = slot_BS < state.fed
        return KV(keys, values, np.where(valid_BS, slot_BS, -1), valid_BS)

    def with_kv(state: Held, layer: int, new: KV) -> Held:
        cache = copy.deepcopy(state.cache)
        for name, array in (("keys", new.keys_BSKH), ("values", new.values_BSKH)):
            setattr(cache[layer], name, mx.array(np.swapaxes(array, 1, 2).astype(np.float32)))
        return Held(cache, state.fed)

    verbs = [full, init, step, rollback]
    # A ring's slots are in no order that could be read off.
    if {type(each).__name__ for each in caches.make_prompt_cache(model)} == {"KVCache"}:
        verbs += [kv, with_kv]
    return {f.__name__: f for f in verbs} | {"fork": lambda state: state}


def _numpy(array: Any) -> NDArray:
    mx = importlib.import_module("mlx.core")
    return np.array(array.astype(mx.float32))


def _weights(model: Any) -> dict[str, NDArray]:
    flat = importlib.import_module("mlx.utils").tree_flatten(model.parameters())
    return {name: _numpy(array) for name, array in flat}


def _put(model: Any, arrays: Mapping[str, NDArray]) -> None:
    mx = importlib.import_module("mlx.core")
    pairs = [(name, mx.array(array.astype(np.float32))) for name, array in arrays.items()]
    model.load_weights(pairs, strict=False)
