"""A TransformerWrapper of x-transformers as a subject: the whole prefix goes in with each step.

Letters: B rows, T tokens of this call, S tokens fed so far.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_tools as tools
from crosscheck.adapters.torch_family import family_subject, ids_of, kv_of, like
from crosscheck.subjects.functions import FunctionSubject
from crosscheck.subjects.protocol import KV


@dataclass(frozen=True)
class Held:
    """The package's intermediates, and every token fed so far."""

    cache: Any
    ids_BS: NDArray


def adapt_x_transformers(
    model: Any, *, amplify: int | bool | None = None, **facts: Any
) -> FunctionSubject:
    """Return a subject for an x-transformers `TransformerWrapper` around a `Decoder`.

    It is driven as the package's own generation does: the whole text with `cache=` and
    `return_intermediates=True`, and `cache_age` where a step has several tokens, as in
    speculation. A model that says `can_cache_kv=False` is not asked for a cache.

    Args:
        model: Used as it is, in eval mode.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        facts: As in `from_functions`.
    """
    known: dict[str, Any] = {
        "name": "x-transformers TransformerWrapper",
        "max_positions": model.max_seq_len,
        "persistent": True,
    }
    if not model.can_cache_kv:
        known |= {"cache": False, "chunk": False, "persistent": False}
        known |= {"absent": {"cache": "the model says can_cache_kv=False"}}
    return family_subject(model, _calls, amplify=amplify, **(known | facts))


def _calls(model: Any) -> dict[str, Any]:
    def full(ids: NDArray) -> NDArray:
        with tools.quiet():
            return tools.to_numpy(model(ids_of(ids)))

    def init(batch: int, capacity: int | None) -> Held:
        return Held(None, np.zeros((batch, 0), np.int64))

    def step(state: Held, ids: NDArray) -> tuple[NDArray, Held]:
        new, all_BS = ids.shape[1], np.concatenate([state.ids_BS, ids], 1)
        aged = {} if state.cache is None or new == 1 else {"cache_age": new}
        with tools.quiet():
            held: Any = copy.copy(state.cache)
            logits, cache = model(ids_of(all_BS), cache=held, return_intermediates=True, **aged)
        return tools.to_numpy(logits[:, -new:]), Held(cache, all_BS)

    def kv(state: Held, layer: int) -> KV:
        keys, values = _attentions(state)[layer].cached_kv
        return kv_of(keys, values, state.ids_BS.shape[1])

    def with_kv(state: Held, layer: int, changed: KV) -> Held:
        cache = copy.deepcopy(state.cache)
        after = replace(state, cache=cache)
        k, v = _attentions(after)[layer].cached_kv
        _attentions(after)[layer].cached_kv = (
            like(changed.keys_BSKH, k),
            like(changed.values_BSKH, v),
        )
        return after

    calls: dict[str, Any] = {"full": full, "init": init, "step": step}
    calls |= {"fork": lambda state: state}
    try:
        held = step(init(1, None), np.zeros((1, 2), np.int64))[1]
        pairs = [each.cached_kv for each in _attentions(held)]
    except Exception:
        # The relations say what a model that cannot be stepped does; here nothing can be read.
        return calls
    plain = all(p is not None and all(x is not None and x.ndim == 4 for x in p) for p in pairs)
    return calls | ({"kv": kv, "with_kv": with_kv, "num_layers": len(pairs)} if plain else {})


def _attentions(state: Held) -> list[Any]:
    return [each for each in state.cache.attn_intermediates if each is not None]
