"""This twin behind the protocol that a differential tester drives.

Numpy at the boundary, opaque state.

Letters: B rows, T tokens, S slots, K key/value heads, H head width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from jaxkv.spec.errors import CapacityError, RequestError, ShapeError
from torchkv import caches
from torchkv.caches import Cache
from torchkv.generation import Generated, generate
from torchkv.model import Decoder, forward, params_of
from torchkv.streaming import stream


@dataclass(frozen=True)
class SubjectInfo:
    """What the tester may know about a subject.

    Attributes:
        name: For reports.
        framework: "jax" or "torch".
        dtype: Of the parameters and the cache.
        vocab_size: V.
        num_layers: Sites of the cache.
        capabilities: What it can be asked for.
    """

    name: str
    framework: str
    dtype: str
    vocab_size: int
    num_layers: int
    capabilities: frozenset[str]


@dataclass(frozen=True)
class KV:
    """One layer's cache as stored.

    Keys (after rotation) and values, the position of each slot, which slots are valid.
    """

    keys_BSKH: np.ndarray
    values_BSKH: np.ndarray
    position_BS: np.ndarray
    valid_BS: np.ndarray


class Subject:
    """A decoder with a cache layout, driven by numpy arrays.

    A state that was stepped on is consumed; `fork` keeps a copy. So "persistent" is not offered.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        layout: str = "contiguous",
        slack: int = 0,
        page_size: int | None = None,
        name: str | None = None,
    ):
        self.model, self.layout = model, layout
        self.slack, self.page_size = slack, page_size
        offered = "cache chunk rollback gather left_pad right_pad kv capture f64"
        self.info = SubjectInfo(
            name=name or f"torchkv/{layout}",
            framework="torch",
            dtype=str(model.dtype).removeprefix("torch."),
            vocab_size=model.config.vocab_size,
            num_layers=model.config.num_layers,
            capabilities=frozenset(offered.split()),
        )
        self._params = params_of(model)

    def full(self, ids: np.ndarray, *, count: np.ndarray | None = None) -> np.ndarray:
        """Return logits [B, T, V] of whole texts without a cache.

        Raises:
            CapacityError: The texts are longer than the model's positions.
            RequestError: An id is outside the vocabulary, or the model in training mode.
        """
        ids = _checked("full", ids, self.model)
        room = self.model.config.max_positions
        if ids.shape[1] > room and count is None:
            raise CapacityError(
                f"full: {ids.shape[1]} tokens exceed the model's {room} positions. "
                f"Feed {ids.shape[1] - room} fewer."
            )
        logits_BTV, _ = self._forward(None, ids, count)
        return logits_BTV

    def init(self, batch: int, capacity: int) -> Cache:
        """Return an empty state."""
        with self.model.embed.device:
            return caches.init(
                self.model.config,
                batch=batch,
                capacity=capacity,
                dtype=self.model.dtype,
                slack=self.slack,
                layout=self.layout,
                **({} if self.page_size is None else {"page_size": self.page_size}),
            )

    def step(
        self,
        state: Cache,
        ids: np.ndarray,
        *,
        count: np.ndarray | None = None,
        check: bool = True,
    ) -> tuple[np.ndarray, Cache]:
        """Return logits [B, T, V] of count[b] more tokens of each row, and the next state.

        Args:
            state: Earlier tokens; consumed.
            ids: Token ids [B, T].
            count: How many of the T are real in each row; all by default.
            check: Whether a row without room is an error, or only marked in the state.

        Raises:
            CapacityError: A row has no room.
            ShapeError: The state belongs to another model, dtype or batch.
            RequestError: An id is outside the vocabulary, or the model in training mode.
        """
        ids = _checked("step", ids, self.model)
        fresh = ids.shape[1] > 1 and not bool(state.length_B.any())
        logits_BTV, after = self._forward(state, ids, count, fresh=fresh)
        assert after is not None  # forward returns a cache for a cache
        if check:
            caches.check(after)
        return logits_BTV, after

    def rollback(self, state: Cache, length: np.ndarray) -> Cache:
        """Return the state with only the first length[b] tokens of each row."""
        return caches.rollback(state, self._ints(length))

    def gather(self, state: Cache, rows: np.ndarray) -> Cache:
        """Return the state of the named rows."""
        return caches.gather(state, self._ints(rows))

    def fork(self, state: Cache) -> Cache:
        """Return a second state that lives on by itself."""
        return caches.fork(state)

    def length(self, state: Cache) -> np.ndarray:
        """Return how many tokens each row holds."""
        return _to_numpy(state.length_B)

    def kv(self, state: Cache, layer: int) -> KV:
        """Return one layer's stored keys and values."""
        return KV(*(_to_numpy(array) for array in caches.read(state, layer)))

    def poison(self, state: Cache) -> Cache:
        """Return the state with NaN in every slot that holds no token.

        What it answers must not change.
        """
        return caches.poison(state)

    def capture(self, ids: np.ndarray, points: list[str] | None = None) -> dict[str, np.ndarray]:
        """Return intermediate results of an uncached forward by name.

        In the order of the computation.
        """
        seen: dict[str, Array] = {}
        self._forward(None, ids, None, tap=seen.__setitem__)
        return {n: _to_numpy(x) for n, x in seen.items() if points is None or n in points}

    def generate(
        self, prompts: Any, max_new_tokens: int | Sequence[int], **options: Any
    ) -> Generated:
        """Return the prompts continued on this subject's layout."""
        return generate(
            self.model,
            prompts,
            max_new_tokens=max_new_tokens,
            layout=self.layout,
            page_size=self.page_size,
            slack=self.slack,
            **options,
        )

    def stream(
        self, prompts: Any, max_new_tokens: int | Sequence[int], **options: Any
    ) -> Iterator[list[list[int]]]:
        """Return an iterator over the same tokens as they come."""
        return stream(
            self.model,
            prompts,
            max_new_tokens=max_new_tokens,
            layout=self.layout,
            slack=self.slack,
            page_size=self.page_size,
            **options,
        )

    def _forward(
        self, state: Cache | None, ids: np.ndarray, count: np.ndarray | None, **options: Any
    ) -> tuple[np.ndarray, Cache | None]:
        ids = np.asarray(ids)
        counts = np.full(len(ids), ids.shape[1]) if count is None else count
        with torch.no_grad():
            logits_BTV, after = forward(
                self._params,
                self._ints(ids),
                state,
                self._ints(counts),
                config=self.model.config,
                **options,
            )
        return _to_numpy(logits_BTV), after

    def _ints(self, array: np.ndarray) -> Array:
        return torch.tensor(
            np.ascontiguousarray(array), dtype=torch.int32, device=self.model.embed.device
        )


def _to_numpy(x: Array) -> np.ndarray:
    # numpy has no bfloat16; float32 holds it exactly. A copy, since later steps write in place.
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()


def _checked(function: str, ids: Any, model: Decoder) -> np.ndarray:
    ids, vocab_size = np.asarray(ids), model.config.vocab_size
    if model.training:
        raise RequestError(
            f"{function}: the model has training=True, whose dropout no cache survives. "
            "Set training=False."
        )
    if ids.ndim != 2 or 0 in ids.shape:
        raise ShapeError(
            f"{function}: ids has shape {ids.shape}, expected [batch, time] with at least 1 token."
        )
    outside = np.argwhere((ids < 0) | (ids >= vocab_size))
    if len(outside):
        row, place = outside[0].tolist()
        raise RequestError(
            f"{function}: ids[{row}][{place}] is {ids[row, place]}, expected 0 to "
            f"{vocab_size - 1} (the model's vocabulary)."
        )
    return ids
