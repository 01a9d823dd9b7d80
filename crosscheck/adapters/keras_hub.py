"""A keras-hub CausalLM as a subject, on keras's JAX and torch backends.

Letters: B rows, T tokens of this call, L layers, S slots, K key/value heads, H head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import keras_tools as tools
from crosscheck.adapters.jax_tools import ROOM, padded
from crosscheck.adapters.torch_verbs import common
from crosscheck.subjects.amplify import seed_of
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV


@dataclass(frozen=True)
class Held:
    """The package's one array of all layers' keys and values, and how many tokens were fed."""

    cache_BL2SKH: Any
    fed: int


def adapt_keras_hub(
    model: Any, *, amplify: int | bool | None = None, **facts: Any
) -> FunctionSubject:
    """Return a subject for a `keras_hub.models.CausalLM`.

    It is driven as the package's own generation does: `call_with_cache` with the index at which
    the step begins, under jit on JAX. A rollback is an earlier index. The package takes no padding
    mask beside a cache, and on torch keras computes in float32 whatever the policy.

    Args:
        model: Used as it is; its preprocessor is not asked.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        facts: As in `from_functions`.
    """
    seed = seed_of(amplify)
    if seed is not None:
        facts["notes"] = (*facts.get("notes", ()), tools.amplify(model, seed))
    backend, narrow = tools.backend()
    known = {
        "name": f"keras-hub {type(model).__name__}",
        "framework": backend,
        "max_positions": getattr(model.backbone, "max_sequence_length", None),
        "persistent": True,
        "capacity": True,
        "f32": True,
        "f64": narrow is None,
        "absent": {} if narrow is None else {"f64": narrow},
    }
    return from_functions(**(known | _calls(model) | _copies(model, facts) | facts))


def _copies(model: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    def again(other: Any) -> FunctionSubject:
        return adapt_keras_hub(other, **facts)

    return {
        "cast": lambda dtype: again(tools.copied(model, tools.weights(model), dtype)),
        "nudged": lambda scale, seed: again(tools.nudged(model, scale, seed)),
        "weights": lambda: tools.weights(model),
        "with_weights": lambda arrays: again(tools.copied(model, arrays)),
    }


def _calls(model: Any) -> dict[str, Any]:
    ops = tools.ops()
    dtype = str(model.backbone.compute_dtype)

    def forward(ids: Any) -> Any:
        return model({"token_ids": ids, "padding_mask": ops.ones(ops.shape(ids), "bool")})

    def advance(ids: Any, cache: Any, at: Any) -> Any:
        logits, _hidden, after = model.call_with_cache(ids, cache, at)
        return logits, after

    uncached, cached = tools.alone(forward), tools.alone(advance)

    def full(ids: NDArray, *, positions: Any = None, visible: Any = None) -> NDArray:
        if positions is None and visible is None:
            return tools.to_numpy(uncached(tools.ids_of(padded(ids))))[:, : ids.shape[1]]
        with tools.given(model.backbone, positions, visible):
            return tools.to_numpy(forward(tools.ids_of(ids)))

    # Only a cache that is built says which sizes it has.
    sizes = ops.shape(model._build_cache(tools.ids_of(np.zeros((1, 2))))[1])

    def init(batch: int, capacity: int | None) -> Held:
        room = capacity or ROOM
        return Held(ops.zeros((batch, *sizes[1:3], room, *sizes[4:]), dtype), 0)

    def step(state: Held, ids: NDArray) -> tuple[NDArray, Held]:
        logits, cache = cached(tools.ids_of(ids), state.cache_BL2SKH, state.fed)
        return tools.to_numpy(logits), Held(cache, state.fed + ids.shape[1])

    def rollback(state: Held, length_B: NDArray) -> Held:
        return replace(state, fed=common(length_B))

    def gather(state: Held, rows: NDArray) -> Held:
        return replace(state, cache_BL2SKH=ops.take(state.cache_BL2SKH, rows, axis=0))

    def kv(state: Held, layer: int) -> KV:
        keys, values = np.moveaxis(tools.to_numpy(state.cache_BL2SKH)[:, layer], 1, 0)
        slot_BS = np.broadcast_to(np.arange(keys.shape[1]), keys.shape[:2])
        valid_BS = slot_BS < state.fed
        return KV(keys, values, np.where(valid_BS, slot_BS, -1), valid_BS)

    def with_kv(state: Held, layer: int, new: KV) -> Held:
        cache = tools.to_numpy(state.cache_BL2SKH)
        cache[:, layer] = np.stack([new.keys_BSKH, new.values_BSKH], axis=1)
        return replace(state, cache_BL2SKH=ops.convert_to_tensor(cache, dtype))

    verbs = (full, init, step, rollback, gather, kv, with_kv)
    known = {"num_layers": int(sizes[1]), "kv_heads": int(sizes[4]), "dtype": dtype}
    return {f.__name__: f for f in verbs} | known | {"fork": lambda state: state}
