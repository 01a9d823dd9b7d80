"""A torchtune TransformerDecoder as a subject: its caches lie in the model, and are put there.

Letters: B rows, T tokens of this call, S slots.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_capture
from crosscheck.adapters import torch_tools as tools
from crosscheck.adapters.torch_family import ROOM, family_subject, ids_of, kv_of, like
from crosscheck.subjects.functions import FunctionSubject
from crosscheck.subjects.protocol import KV


@dataclass(frozen=True)
class Held:
    """The KVCache of each layer, how many tokens were fed, and the room."""

    caches: tuple[Any, ...]
    fed: int
    room: int


def adapt_torchtune(
    model: Any, *, amplify: int | bool | None = None, **facts: Any
) -> FunctionSubject:
    """Return a subject for a `torchtune.modules.TransformerDecoder`.

    It is driven as torchtune's own generation does: `setup_caches`, then `mask` (rows of a causal
    triangle as wide as the room) and `input_pos` with each step. Its caches know a reset and no
    rollback, and no verb for rows.

    Args:
        model: Used as it is, in eval mode; its own caches, if it has some, are let go.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        facts: As in `from_functions`.
    """
    known = {
        "name": "torchtune TransformerDecoder",
        "num_layers": len(model.layers),
        "max_positions": model.max_seq_len,
        "persistent": True,
        "capacity": True,
        "absent": {
            "rollback": "its caches can only be reset",
            "gather": "its caches have no verb for rows",
        },
    }
    return family_subject(model, _calls, amplify=amplify, **(known | facts))


def _calls(model: Any) -> dict[str, Any]:
    dtype = next(model.parameters()).dtype

    def run(ids: NDArray, visible_BTS: Any, positions: Any) -> NDArray:
        given = {"mask": visible_BTS, "input_pos": positions}
        given = {k: tools.to_torch(v) for k, v in given.items() if v is not None}
        with tools.quiet():
            return tools.to_numpy(model(ids_of(ids), **given))

    def full(ids: NDArray, *, positions: Any = None, visible: Any = None) -> NDArray:
        _put(model, None)
        return run(ids, visible, positions)

    def init(batch: int, capacity: int | None) -> Held:
        room = min(capacity or ROOM, model.max_seq_len)
        _put(model, None)
        model.setup_caches(batch, dtype, decoder_max_seq_len=room)
        return Held(_taken(model), 0, room)

    def step(
        state: Held, ids: NDArray, *, positions: Any = None, visible: Any = None
    ) -> tuple[NDArray, Held]:
        _put(model, copy.deepcopy(state.caches))
        rows, new = ids.shape
        end = state.fed + new
        place = np.broadcast_to(np.arange(state.fed, end), ids.shape)
        sees = np.broadcast_to(
            np.tri(new, state.room, state.fed, dtype=bool), (rows, new, state.room)
        )
        if visible is not None:
            sees = np.pad(visible, ((0, 0), (0, 0), (0, max(0, state.room - end))))
        try:
            logits = run(ids, sees, place if positions is None else positions)
        finally:
            after = _taken(model)
        return logits, replace(state, caches=after, fed=end)

    def kv(state: Held, layer: int) -> KV:
        held = state.caches[layer]
        return kv_of(held.k_cache, held.v_cache, state.fed)

    def with_kv(state: Held, layer: int, new: KV) -> Held:
        caches = copy.deepcopy(state.caches)
        caches[layer].k_cache = like(new.keys_BSKH, caches[layer].k_cache)
        caches[layer].v_cache = like(new.values_BSKH, caches[layer].v_cache)
        return replace(state, caches=caches)

    def capture(ids: NDArray, points: Any = None) -> dict[str, NDArray]:
        with torch_capture.tapped(model, points) as taps:
            taps["logits"] = full(ids)
        return torch_capture.ordered(taps, points, ids.shape)

    def capture_step(
        state: Held, ids: NDArray, points: Any = None, *, given: Any = None, **options: Any
    ) -> tuple[dict[str, NDArray], Held]:
        with torch_capture.tapped(model, points, given) as taps:
            taps["logits"], after = step(state, ids, **options)
        return torch_capture.ordered(taps, points, ids.shape), after

    verbs = (full, init, step, kv, with_kv, capture, capture_step)
    return {f.__name__: f for f in verbs} | {"fork": lambda state: state}


def _taken(model: Any) -> tuple[Any, ...]:
    """Take the caches out of the model."""
    caches = tuple(layer.attn.kv_cache for layer in model.layers)
    _put(model, None)
    return caches


def _put(model: Any, caches: tuple[Any, ...] | None) -> None:
    """Put caches into the model, or none."""
    for layer, cache in zip(model.layers, caches or (None,) * len(model.layers), strict=True):
        layer.attn.kv_cache = cache
        layer.attn.cache_enabled = cache is not None
