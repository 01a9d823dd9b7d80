"""The model behind a subject: numpy in, numpy out, with a cache, without one, or explicitly.

Letters: B rows, T tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches import Cache, Source
from jaxkv.caches.cross import CrossSite
from jaxkv.encoder import encode
from jaxkv.model import Decoder, forward, params_of
from jaxkv.testing import explicit_state
from jaxkv.testing.explicit_state import ExplicitState
from jaxkv.testing.inputs import BUCKETS, Tokens
from jaxkv.testing.plan import plan_step
from jaxkv.testing.states import State

# Rows are padded to these numbers for the same reason as tokens to BUCKETS: with a cache only in
# small models, where copying it costs less than compiling.
ROWS = (1, 4, 16, 64)
SMALL = 2**20


class Driver:
    """One model's forward, compiled or op by op.

    Steps are padded to a few widths so that little is compiled.

    Args:
        model: Whose forward.
        compiled: Whether by `jax.jit`.
        like: A driver of a model of the same config, whose compiled functions serve for this one.
        absorbed: The form of attentions to latents; None for the cheaper one.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        compiled: bool,
        like: "Driver | None" = None,
        absorbed: bool | None = None,
    ):
        self.model, self.absorbed = model, absorbed
        self._params = params_of(model)
        # Own functions, so that a test that swaps a formula and makes a new subject gets a new
        # trace.
        self._forward, self._capture = self._forwarded, self._captured
        self._encode = self._encoded
        self._is_small = sum(leaf.size for leaf in jax.tree.leaves(self._params)) < SMALL
        if like is not None:
            self._forward, self._capture = like._forward, like._capture
            self._encode = like._encode
        elif compiled:
            # A tiny model spends its time in the compiler: it is spared the machine code's polish.
            how = {"xla_backend_optimization_level": 0} if self._is_small else None
            self._forward = jax.jit(
                self._forwarded,
                static_argnames=("fresh", "rectangular"),
                compiler_options=how,
            )
            self._capture = jax.jit(self._captured, compiler_options=how)
            self._encode = jax.jit(self._encoded, compiler_options=how)

    def encode(self, texts: Tokens) -> Source:
        """Return what the encoder leaves of each row's text."""
        rows = len(texts.count_B)
        source = self._encode(self._params, *_padded(texts, rows=_fit(rows, ROWS)))
        return jax.tree.map(partial(_fit_rows, have=_fit(rows, ROWS), rows=rows), source)

    def run(
        self, state: Cache | None, tokens: Tokens, source: Source | None = None
    ) -> tuple[np.ndarray, Cache | None]:
        """Return logits [B, T, V] of a step on a layout's cache, or without one, and the next."""
        rows, width = tokens.ids_BT.shape
        is_padded = state is None or (self._is_small and len(state.length_B) == rows)
        wide = _fit(rows, ROWS) if is_padded else rows
        ids_BT, count_B = _padded(tokens, rows=wide)
        promises = {} if state is None else _promises(state, tokens, ids_BT.shape[1])
        if state is not None and is_padded:
            state = _with_rows(state, wide)
        if source is not None:
            source = jax.tree.map(partial(_fit_rows, have=rows, rows=wide), source)
        logits_BTV, after = self._forward(
            self._params, ids_BT, state, count_B, source=source, **promises
        )
        if after is not None and is_padded:
            after = _with_rows(after, rows)
        return tokens.scatter(np.asarray(logits_BTV)[:rows, :width]), after

    def run_explicit(
        self,
        function: str,
        state: State | None,
        tokens: Tokens,
        source: Source | None = None,
        *,
        positions: Any,
        visible: Any,
    ) -> tuple[np.ndarray, ExplicitState]:
        """Return logits [B, T, V] of a step with given positions or visibility, and the next state.

        Args:
            function: The caller, for messages.
            state: Any; None for whole texts without a cache.
            tokens: The new ones.
            source: From `encode`, for whole texts of a model with an encoder.
            positions: See `plan_step`.
            visible: See `plan_step`.
        """
        if state is None:
            rows, width = tokens.ids_BT.shape
            state = explicit_state.empty(
                self.model, batch=rows, capacity=_fit(width, BUCKETS), source=source or ()
            )
        if not isinstance(state, ExplicitState):
            state = explicit_state.from_cache(state, self.model)
        plan = plan_step(
            function,
            tokens,
            state.length_B,
            state.position_BS,
            positions=positions,
            visible=visible,
            max_positions=self.model.config.max_positions,
        )
        return explicit_state.advance(
            state, plan, self.model, forward=lambda *args: self._forward(self._params, *args)
        )

    def capture(
        self,
        tokens: Tokens,
        state: Cache | None = None,
        *,
        given: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[dict[str, np.ndarray], Cache | None]:
        """Return the intermediate results of a step, or of an uncached forward, and the next state.

        Args:
            tokens: The new ones.
            state: Earlier ones; None for a forward without a cache.
            given: Point -> what goes on there instead.
        """
        rows, width = tokens.ids_BT.shape
        wide = _fit(rows, ROWS) if state is None else rows
        ids_BT, count_B = _padded(tokens, rows=wide)
        stands = {name: _padded_to(tokens.collect(x), ids_BT) for name, x in (given or {}).items()}
        seen, after = self._capture(self._params, ids_BT, state, count_B, stands)
        found = {name: np.asarray(x)[:rows, :width] for name, x in seen.items()}
        return {name: tokens.scatter(x) for name, x in found.items()}, after

    def _forwarded(
        self, params: Any, ids_BT: Any, cache: Cache | None, count_B: Any, **promises: Any
    ) -> tuple[Any, Cache | None]:
        how = {"config": self.model.config, "absorbed": self.absorbed, **promises}
        return forward(params, ids_BT, cache, count_B, **how)

    def _encoded(self, params: Any, ids_BE: Any, count_B: Any) -> Source:
        return encode(params, ids_BE, count_B, config=self.model.config)

    def _captured(
        self, params: Any, ids_BT: Any, cache: Cache | None, count_B: Any, stands: Any
    ) -> tuple[dict[str, Any], Cache | None]:
        seen: dict[str, Any] = {}

        def tap(name: str, x: Any) -> Any:
            seen[name] = x
            return stands.get(name, x)

        how = {"config": self.model.config, "absorbed": self.absorbed}
        _, after = forward(params, ids_BT, cache, count_B, **how, tap=tap)
        return seen, after


def _fit(number: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= number), number)


def _padded(tokens: Tokens, *, rows: int) -> tuple[Any, Any]:
    given, width = tokens.ids_BT.shape
    ids_BT = np.zeros((rows, _fit(width, BUCKETS)), np.int32)
    ids_BT[:given, :width] = tokens.front_BT
    return jnp.asarray(ids_BT), jnp.asarray(np.pad(tokens.count_B, (0, rows - given)))


def _padded_to(x_BTD: np.ndarray, ids_BT: Any) -> Any:
    short = [(0, wide - n) for wide, n in zip(ids_BT.shape, x_BTD.shape, strict=False)]
    return jnp.asarray(np.pad(x_BTD, (*short, *((0, 0),) * (x_BTD.ndim - 2))))


def _promises(state: Cache, tokens: Tokens, width: int) -> dict[str, bool]:
    length_B = np.asarray(state.length_B)
    are_alike = len({*length_B.tolist()}) == 1 and bool(tokens.count_B.all())
    return {
        "fresh": width > 1 and not length_B.any(),
        "rectangular": width == 1 and are_alike,
    }


def _with_rows(cache: Cache, rows: int) -> Cache:
    """Return the cache with empty rows added at the end, or the last rows left out."""
    have = len(cache.length_B)
    if rows == have:
        return cache

    fit = partial(_fit_rows, have=have, rows=rows)
    length_B, peak_B, overflow_B = map(fit, (cache.length_B, cache.peak_B, cache.overflow_B))
    shared, sites = cache.shared, cache.sites
    if shared is None:
        sites = jax.tree.map(fit, sites)
    else:
        table_BC, wanted_B = fit(shared.table_BC), fit(shared.wanted_B)
        shared = dataclasses.replace(shared, table_BC=table_BC, wanted_B=wanted_B)
        sites = tuple(
            jax.tree.map(fit, site) if isinstance(site, CrossSite) else site for site in sites
        )
    return Cache(length_B, peak_B, overflow_B, shared, sites, cache.capacity)


def _fit_rows(x_B: Any, *, have: int, rows: int) -> Any:
    # Rows lead, or rows and heads in one axis.
    lines = x_B.shape[0] // have * rows
    kept = np.asarray(x_B)[:lines]
    return jnp.asarray(np.pad(kept, ((0, lines - len(kept)), *[(0, 0)] * (kept.ndim - 1))))
