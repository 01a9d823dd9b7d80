"""This twin behind the protocol that a differential tester drives.

Numpy at the boundary, opaque state.

Letters: B rows, T tokens, S slots, K key/value heads, H head width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv import caches
from jaxkv.caches import Cache
from jaxkv.generation import Generated, generate
from jaxkv.model import Decoder, forward, params_of
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError
from jaxkv.streaming import stream

BUCKETS = (1, 8, 24, 64, 256, 1024, 4096)


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

    Steps are padded to a few widths so that little is compiled.
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
        self.info = SubjectInfo(
            name=name or f"jaxkv/{layout}",
            framework="jax",
            dtype=str(model.dtype),
            vocab_size=model.config.vocab_size,
            num_layers=model.config.num_layers,
            capabilities=frozenset(
                {
                    "cache",
                    "chunk",
                    "persistent",
                    "rollback",
                    "gather",
                    "left_pad",
                    "right_pad",
                    "kv",
                    "capture",
                    "f64",
                }
            ),
        )
        self._params = params_of(model)
        # Own jitted functions, so that a test that swaps a formula and makes a new subject gets a
        # new trace.
        self._forward = jax.jit(
            lambda params, ids, cache, count, **promises: forward(
                params, ids, cache, count, config=model.config, **promises
            ),
            static_argnames=("fresh", "rectangular"),
        )
        self._capture = jax.jit(self._captured)

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
        ids_BT, count_B, width = _pad(ids, count)
        logits_BTV, _ = self._forward(self._params, ids_BT, None, count_B)
        return np.asarray(logits_BTV)[:, :width]

    def init(self, batch: int, capacity: int) -> Cache:
        """Return an empty state."""
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
            state: Earlier tokens.
            ids: Token ids [B, T].
            count: How many of the T are real in each row; all by default.
            check: Whether a row without room is an error, or only marked in the state.

        Raises:
            CapacityError: A row has no room.
            ShapeError: The state belongs to another model, dtype or batch.
            RequestError: An id is outside the vocabulary, or the model in training mode.
        """
        ids = _checked("step", ids, self.model)
        ids_BT, count_B, width = _pad(ids, count)
        length_B, counts = np.asarray(state.length_B), np.asarray(count_B)
        logits_BTV, state = self._forward(
            self._params,
            ids_BT,
            state,
            count_B,
            fresh=ids_BT.shape[1] > 1 and not length_B.any(),
            rectangular=ids_BT.shape[1] == 1
            and len({*length_B.tolist()}) == 1
            and bool(counts.all()),
        )
        if check:
            caches.check(state)
        return np.asarray(logits_BTV)[:, :width], state

    def rollback(self, state: Cache, length: np.ndarray) -> Cache:
        """Return the state with only the first length[b] tokens of each row."""
        return caches.rollback(state, jnp.asarray(length, jnp.int32))

    def gather(self, state: Cache, rows: np.ndarray) -> Cache:
        """Return the state of the named rows."""
        return caches.gather(state, jnp.asarray(rows, jnp.int32))

    def fork(self, state: Cache) -> Cache:
        """Return a second state that lives on by itself."""
        return caches.fork(state)

    def length(self, state: Cache) -> np.ndarray:
        """Return how many tokens each row holds."""
        return np.asarray(state.length_B)

    def kv(self, state: Cache, layer: int) -> KV:
        """Return one layer's stored keys and values."""
        return KV(*(np.asarray(array) for array in caches.read(state, layer)))

    def poison(self, state: Cache) -> Cache:
        """Return the state with NaN in every slot that holds no token.

        What it answers must not change.
        """
        return caches.poison(state)

    def capture(self, ids: np.ndarray, points: list[str] | None = None) -> dict[str, np.ndarray]:
        """Return intermediate results of an uncached forward by name.

        In the order of the computation.
        """
        ids_BT, count_B, width = _pad(ids, None)
        seen = {
            name: np.asarray(x)[:, :width]
            for name, x in self._capture(self._params, ids_BT, count_B).items()
        }
        order = (
            ["embed"]
            + [
                f"layers.{i}.{name}"
                for i in range(self.info.num_layers)
                for name in ("attn_norm", "v", "attn", "mlp", "resid")
            ]
            + ["norm", "logits"]
        )
        return {name: seen[name] for name in order if points is None or name in points}

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

    def _captured(self, params: Any, ids_BT: Any, count_B: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        forward(params, ids_BT, None, count_B, config=self.model.config, tap=seen.__setitem__)
        return seen


def _pad(ids: np.ndarray, count: np.ndarray | None) -> tuple[Any, Any, int]:
    ids = np.asarray(ids)
    batch, width = ids.shape
    bucket = next((size for size in BUCKETS if size >= width), width)
    padded = np.zeros((batch, bucket), np.int32)
    padded[:, :width] = ids
    counts = np.full(batch, width, np.int32) if count is None else np.asarray(count, np.int32)
    return jnp.asarray(padded), jnp.asarray(counts), width


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
