"""A right decoder behind the protocol of a subject, in numpy: every capability, in one flavor each.

Letters: B rows, T tokens, S slots, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import Refused
from crosscheck.subjects.protocol import KV, SubjectInfo
from tests.toys.config import ToyConfig, weights_of
from tests.toys.info import make_info
from tests.toys.layouts import Paged, empty_pages, from_plain
from tests.toys.model import Row, cross_kv, run_row
from tests.toys.prefix import PrefixStore
from tests.toys.quantized import RESIDUAL, empty_quantized
from tests.toys.speculate import speculate
from tests.toys.stores import Store, View, empty


@dataclass(frozen=True)
class State:
    """Lengths, one store a layer, and the encoder's keys and values [layer][row]."""

    length_B: NDArray
    stores: tuple[Any, ...]
    cross: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Toy:
    """A tiny decoder; `layout` is contiguous, heads_first, paged or quantized.

    Attributes:
        config: Sizes, windows, kind.
        layout: Of layers without a window; those with one keep a ring.
        form: "", "gqa_as_mha" or "mla_naive": another form of the same function.
        dtype: Of weights, cache and logits.
        slack: Tokens beyond the window that a ring keeps for a rollback.
        page: Slots of a page.
        seed: Of the weights.
        nudge: (scale, seed): weights are multiplied by 1 + scale * noise.
        without: Capabilities that are not declared.
        traces: Of the compiled form: width of a step -> steps of this width so far.
    """

    config: ToyConfig = field(default_factory=ToyConfig)
    layout: str = "contiguous"
    form: str = ""
    dtype: str = "float64"
    slack: int = 3
    page: int = 4
    seed: int = 0
    nudge: tuple[float, int] = (0.0, 0)
    without: frozenset[str] = frozenset()
    traces: dict[int, int] | None = None

    @property
    def info(self) -> SubjectInfo:
        return make_info(self)

    @property
    def rollback_room(self) -> int | None:
        """Tokens that may be taken back once a window has filled; None without a window."""
        return self.slack if any(self.config.windows) else None

    @property
    def weights(self) -> dict[str, NDArray]:
        return weights_of(self.config, self.seed, self.dtype, self.nudge)

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits of whole texts."""
        return self._full(ids, lambda _row, _name, _x: None, **options)

    def capture(self, ids: NDArray, points: Sequence[str] | None = None) -> dict[str, NDArray]:
        """Return intermediate results by name."""
        seen: dict[str, dict[int, NDArray]] = {}
        self._full(ids, lambda row, name, x: seen.setdefault(name, {}).__setitem__(row, x))
        rows = range(len(ids))
        return {
            name: np.stack([x[row] for row in rows])
            for name, x in seen.items()
            if points is None or name in points
        }

    def _full(self, ids: NDArray, tap: Any, *, encoder: NDArray | None = None, **options: Any):
        def put(_layer: int, k: NDArray, v: NDArray) -> View:
            return View(k, v, np.arange(len(k)))

        cross = self._cross(encoder)
        logits = np.zeros((*np.shape(ids), self.config.vocab), self.dtype)
        for b, raw_T in enumerate(real_tokens(ids, options)):
            row = self._row(ids, b, raw_T, 0, 0, options, put, cross)
            if len(raw_T):
                taps = lambda name, x, b=b: tap(b, name, x)  # noqa: E731
                logits[b, raw_T] = run_row(self.config, self.weights, self.form, row, taps)
        return logits

    def init(self, batch: int, capacity: int | None, *, encoder: NDArray | None = None) -> State:
        """Return an empty state."""
        stores = tuple(self._store(batch, capacity, window) for window in self.config.windows)
        return State(np.zeros(batch, np.int64), stores, self._cross(encoder))

    def step(self, state: State, ids: NDArray, **options: Any) -> tuple[NDArray, State]:
        """Return logits of the next tokens, and the next state; the old one stays as it is."""
        stores, length = list(state.stores), state.length_B.copy()
        logits = np.zeros((*np.shape(ids), self.config.vocab), self.dtype)
        for b, raw_T in enumerate(real_tokens(ids, options)):
            start = int(state.length_B[b])

            def put(layer: int, k: NDArray, v: NDArray, b: int = b, start: int = start) -> View:
                view, stores[layer] = stores[layer].write(b, start, k, v)
                return view

            held = int(state.length_B.max(initial=0))
            row = self._row(ids, b, raw_T, start, held, options, put, state.cross)
            if len(raw_T):
                logits[b, raw_T] = run_row(
                    self.config, self.weights, self.form, row, lambda _name, _x: None
                )
            length[b] += len(raw_T)
        return logits, replace(state, length_B=length, stores=tuple(stores))

    def length(self, state: State) -> NDArray:
        """Return how many tokens each row holds."""
        return state.length_B.copy()

    def rollback(self, state: State, length: NDArray) -> State:
        """Return the state with only the first tokens of each row."""
        length = np.broadcast_to(np.asarray(length, np.int64), state.length_B.shape)
        if (length > state.length_B).any() or (length < 0).any():
            raise Refused(
                f"rollback: length is {length.tolist()}, expected 0 to {state.length_B.tolist()}."
            )
        stores = tuple(store.cut(length) for store in state.stores)
        return replace(state, length_B=length.copy(), stores=stores)

    def gather(self, state: State, rows: Sequence[int]) -> State:
        """Return the state whose row i is the old rows[i]."""
        rows = [int(row) for row in rows]
        stores = tuple(store.take(rows) for store in state.stores)
        cross = tuple(tuple(layer[row] for row in rows) for layer in state.cross)
        return State(state.length_B[rows], stores, cross)

    def fork(self, state: State) -> State:
        """Return the state itself: it is frozen."""
        return state

    def grow(self, state: State, capacity: int) -> State:
        """Return the state with more room."""
        return replace(state, stores=tuple(store.grow(capacity) for store in state.stores))

    def kv(self, state: State, layer: int) -> KV:
        """Return what one layer holds."""
        return state.stores[layer].kv()

    def with_kv(self, state: State, layer: int, kv: KV) -> State:
        """Return the state with one layer's contents replaced."""
        stores = list(state.stores)
        stores[layer] = stores[layer].with_kv(kv)
        return replace(state, stores=tuple(stores))

    def permute_pages(self, state: State, seed: int) -> State:
        """Return the state with its pages in another order."""
        stores = tuple(s.permuted(seed) if isinstance(s, Paged) else s for s in state.stores)
        return replace(state, stores=stores)

    def prefix_store(self) -> PrefixStore:
        """Return a store that reuses the pages of earlier texts."""
        return PrefixStore(self)

    def speculate(self, ids: NDArray, new: int, draft: Any, k: int) -> NDArray:
        """Return the texts with `new` greedy ids more, drafted k at a time."""
        return speculate(self, ids, new, draft, k)

    def quant_bound(self) -> dict[str, float]:
        """Return the largest error by point: half a step of layer 0, and measured logits."""
        return {"k.0": 4.5e-4, "v.0": 2.2e-4, "logits": 4e-3}

    def quant_residual(self) -> int:
        """Return how many of the last tokens are exact."""
        return RESIDUAL

    def encoder_inputs(self, batch: int, seed: int) -> NDArray:
        """Return what an encoder might give."""
        shape = (batch, 5, self.config.encoder_width)
        return np.random.default_rng(seed).normal(size=shape).astype(self.dtype)

    def nudged(self, scale: float, seed: int) -> "Toy":
        """Return the same subject with weights times (1 + scale * noise)."""
        return replace(self, nudge=(scale, seed))

    def cast(self, dtype: str) -> "Toy":
        """Return the same function in another dtype."""
        return replace(self, dtype=dtype)

    def variant(self, name: str) -> "Toy":
        """Return the same function in another form, or another window or page size."""
        key, _, value = name.partition("=")
        if key == "window":
            windows = (int(value),) * len(self.config.windows)
            return replace(self, config=replace(self.config, windows=windows))
        if key == "page_size":
            return replace(self, page=int(value))
        if name not in self.info.variants:
            raise Refused(f"variant: name is {name!r}, expected one of {self.info.variants}.")
        if name.startswith("layout_"):
            return replace(self, layout=name.removeprefix("layout_"))
        if name == "exact":
            return replace(self, layout="contiguous")
        if name in ("jit", "eager"):
            return replace(self, traces={} if name == "jit" else None)
        return replace(self, form=name)

    def compilations(self) -> int:
        """Return how many widths were traced."""
        return len(self.traces or {})

    def _store(self, batch: int, capacity: int | None, window: int | None) -> Store | Paged:
        shape, dtype = self.kv_shape, np.dtype(self.dtype)
        if window is not None or self.layout in ("contiguous", "heads_first"):
            store = empty(batch, capacity, shape, dtype, window=window, slack=self.slack)
            return from_plain(store) if not window and self.layout == "heads_first" else store
        if self.layout == "paged":
            return empty_pages(batch, capacity, shape, dtype, self.page)
        return empty_quantized(batch, capacity, shape, dtype)

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """Heads, key width and value width of what is stored."""
        c = self.config
        if c.kind == "mla" and self.form != "mla_naive":
            return 1, c.latent + c.rope_head, c.latent
        many = c.kind == "mla" or self.form == "gqa_as_mha"
        return (c.heads if many else c.kv_heads), c.head, c.head

    def _cross(self, encoder: NDArray | None) -> tuple[tuple[Any, ...], ...]:
        if not self.config.cross:
            return ()
        if encoder is None:
            raise Refused("toy: encoder is missing, expected [B, E, D] (the model attends to it).")
        encoder = np.asarray(encoder, self.dtype)
        layers = range(len(self.config.windows))
        return tuple(
            tuple(cross_kv(self.config, self.weights, i, one) for one in encoder) for i in layers
        )

    def _row(
        self,
        ids: NDArray,
        b: int,
        raw_T: NDArray,
        start: int,
        held: int,
        options: dict[str, Any],
        put: Any,
        cross: tuple[tuple[Any, ...], ...],
    ) -> Row:
        if self.traces is not None:
            self.traces.setdefault(len(raw_T), start)
        index_T = start + np.arange(len(raw_T))
        positions, visible = options.get("positions"), options.get("visible")
        position_T = index_T if positions is None else np.asarray(positions)[b, raw_T]
        limit = self.config.max_positions
        if len(raw_T) and not 0 <= position_T.min() <= position_T.max() < limit:
            raise Refused(f"toy: position {position_T.max()}, expected 0 to {limit - 1}.")

        def see(index_S: NDArray, window: int | None) -> NDArray:
            if visible is not None:
                padded = np.concatenate([np.arange(start), held + raw_T])
                return np.asarray(visible)[b][np.ix_(raw_T, padded[index_S])]
            distance_TS = index_T[:, None] - index_S
            return (distance_TS >= 0) & (distance_TS < (window or len(index_S) + start + 1))

        layers = (lambda layer: cross[layer][b]) if cross else None
        return Row(np.asarray(ids)[b, raw_T], index_T, position_T, see, put, layers)


def real_tokens(ids: NDArray, options: dict[str, Any]) -> list[NDArray]:
    """Return the columns of each row's real tokens."""
    batch, width = np.shape(ids)
    real_BT = np.ones((batch, width), bool)
    if options.get("mask") is not None:
        real_BT &= np.asarray(options["mask"], bool)
    if options.get("count") is not None:
        real_BT &= np.arange(width) < np.asarray(options["count"])[:, None]
    return [np.flatnonzero(row) for row in real_BT]
