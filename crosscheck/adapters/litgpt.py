"""A litgpt GPT as a subject: its cache lies in the model and is put there for each step.

Letters: B rows, T tokens of this call, S slots.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_capture
from crosscheck.adapters import torch_tools as tools
from crosscheck.adapters.torch_family import (
    ROOM,
    additive,
    family_subject,
    given_argument,
    ids_of,
    kv_of,
    like,
)
from crosscheck.adapters.torch_verbs import common
from crosscheck.errors import Refused
from crosscheck.subjects.functions import FunctionSubject
from crosscheck.subjects.protocol import KV


@dataclass(frozen=True)
class Held:
    """The buffers [keys, values] of each layer, how many tokens were fed, and the room."""

    buffers: tuple[tuple[Any, Any], ...]
    fed: int
    room: int


def adapt_litgpt(model: Any, *, amplify: int | bool | None = None, **facts: Any) -> FunctionSubject:
    """Return a subject for a `litgpt.GPT`.

    It is driven as litgpt's own generation does: `set_kv_cache`, then `input_pos` and
    `input_pos_maxp1` with each step. A rollback is an earlier `input_pos`.

    Args:
        model: Used as it is, in eval mode; its own cache, if it has one, is let go.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        facts: As in `from_functions`.
    """
    config = model.config
    known = {
        "name": "litgpt GPT",
        "num_layers": config.n_layer,
        "kv_heads": config.n_query_groups,
        "max_positions": config.block_size,
        "vocab_size": config.padded_vocab_size,
        "windows": _windows(config),
        "persistent": True,
        "capacity": True,
    }
    return family_subject(model, _calls, amplify=amplify, **(known | facts))


def _calls(model: Any) -> dict[str, Any]:
    blocks = list(model.transformer.h)
    dtype = next(model.parameters()).dtype

    def full(ids: NDArray, *, visible: Any = None) -> NDArray:
        model.clear_kv_cache()
        model.max_seq_length = model.config.block_size
        mask = None if visible is None else additive(visible, dtype)
        with tools.quiet(), given_argument(blocks, "mask", 3, mask):
            return tools.to_numpy(model(ids_of(ids)))

    def init(batch: int, capacity: int | None) -> Held:
        room = min(capacity or ROOM, model.config.block_size)
        model.max_seq_length = room
        model.set_kv_cache(batch, dtype=dtype)
        return Held(_taken(blocks), 0, room)

    def step(state: Held, ids: NDArray, *, visible: Any = None) -> tuple[NDArray, Held]:
        end = state.fed + ids.shape[1]
        if end > state.room:
            raise Refused(f"step: {end} tokens, room for {state.room}.")
        model.max_seq_length = state.room
        model.set_kv_cache(len(ids), dtype=dtype)
        for block, (k, v) in zip(blocks, state.buffers, strict=True):
            block.attn.kv_cache.k, block.attn.kv_cache.v = k.clone(), v.clone()
        mask = None if visible is None else additive(visible, dtype)
        at = tools.to_torch(np.arange(state.fed, end))
        with tools.quiet(), given_argument(blocks, "mask", 3, mask):
            try:
                logits = model(ids_of(ids), input_pos=at, input_pos_maxp1=end)
            except ValueError as error:
                # A ring refuses a step that is longer than it is.
                raise Refused(f"step: {ids.shape[1]} tokens: {error}") from None
        return tools.to_numpy(logits), replace(state, buffers=_taken(blocks), fed=end)

    def rollback(state: Held, length_B: NDArray) -> Held:
        return replace(state, fed=common(length_B))

    def gather(state: Held, rows: NDArray) -> Held:
        index = tools.to_torch(rows.astype(np.int64))
        return replace(state, buffers=tuple((k[index], v[index]) for k, v in state.buffers))

    def kv(state: Held, layer: int) -> KV:
        return kv_of(*state.buffers[layer], state.fed)

    def with_kv(state: Held, layer: int, new: KV) -> Held:
        k, v = state.buffers[layer]
        changed = (like(new.keys_BSKH, k), like(new.values_BSKH, v))
        buffers = (*state.buffers[:layer], changed, *state.buffers[layer + 1 :])
        return replace(state, buffers=buffers)

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

    verbs = (full, init, step, rollback, gather, kv, with_kv, capture, capture_step)
    return {f.__name__: f for f in verbs} | {"fork": lambda state: state}


def _windows(config: Any) -> tuple[int | None, ...]:
    """Return the window of each layer: those that the config's indices name."""
    window = getattr(config, "sliding_window_size", None)
    named = getattr(config, "sliding_window_indices", None)
    if not window or named is None:
        return (None,) * config.n_layer
    return tuple(window if slides else None for slides in named)


def _taken(blocks: list[Any]) -> tuple[tuple[Any, Any], ...]:
    """Take the caches out of the model."""
    caches = [block.attn.kv_cache for block in blocks]
    for block in blocks:
        block.attn.kv_cache = None
    return tuple((cache.k, cache.v) for cache in caches)
