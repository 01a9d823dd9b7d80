"""The model behind a subject: numpy in, numpy out, with a cache, without one, or explicitly.

Letters: B rows, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches import Cache, Source
from jaxkv.encoder import encode
from jaxkv.model import Decoder, forward, params_of
from jaxkv.testing import compiling, explicit_state
from jaxkv.testing.explicit_codes import Form
from jaxkv.testing.explicit_state import ExplicitState
from jaxkv.testing.inputs import Tokens
from jaxkv.testing.plan import plan_step
from jaxkv.testing.states import State


class Driver:
    """One model's forward, compiled or op by op.

    Steps are padded to a few sizes so that little is compiled; the rows of a cache only in small
    models, where copying it costs less than compiling.

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
        self._is_small = compiling.is_small(model.config)
        if like is not None:
            self._forward, self._capture = like._forward, like._capture
            self._encode = like._encode
        elif compiled:
            how = compiling.compiler_options(model.config)
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
        wide = compiling.fit_rows(rows)
        source = self._encode(self._params, *self._padded(texts, rows=wide, least=2))
        return jax.device_put(compiling.fit_lines(source, have=wide, rows=rows))

    def run(
        self, state: Cache | None, tokens: Tokens, source: Source | None = None
    ) -> tuple[np.ndarray, Cache | None]:
        """Return logits [B, T, V] of a step on a layout's cache, or without one, and the next."""
        rows, width = tokens.ids_BT.shape
        wide = self._rows(state, tokens)
        ids_BT, count_B = self._padded(tokens, rows=wide, least=2 if state is None else 1)
        promises = {} if state is None else _promises(state, tokens, ids_BT.shape[1])
        if state is not None and wide != rows:
            state = compiling.with_rows(state, wide)
        if source is not None:
            source = compiling.fit_lines(source, have=rows, rows=wide)
        logits_BTV, after = self._forward(
            self._params, ids_BT, state, count_B, source=source, **promises
        )
        if after is not None and wide != rows:
            after = jax.device_put(compiling.with_rows(after, rows))
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
        form: Form | None,
    ) -> tuple[np.ndarray, ExplicitState]:
        """Return logits [B, T, V] of a step with given positions or visibility, and the next state.

        Args:
            function: The caller, for messages.
            state: Any; None for whole texts without a cache.
            tokens: The new ones.
            source: From `encode`, for whole texts of a model with an encoder.
            positions: See `plan_step`.
            visible: See `plan_step`.
            form: What is read from codes, where the state does not say so.
        """
        if state is None:
            rows, width = tokens.ids_BT.shape
            state = explicit_state.empty(
                self.model, batch=rows, capacity=width, form=form, source=source or ()
            )
        if not isinstance(state, ExplicitState):
            state = explicit_state.from_cache(state, self.model, form=form)
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
        wide = self._rows(state, tokens)
        ids_BT, count_B = self._padded(tokens, rows=wide)
        stands = {name: _padded_to(tokens.collect(x), ids_BT) for name, x in (given or {}).items()}
        if state is not None and wide != rows:
            state = compiling.with_rows(state, wide)
        seen, after = self._capture(self._params, ids_BT, state, count_B, stands)
        if after is not None and wide != rows:
            after = jax.device_put(compiling.with_rows(after, rows))
        found = {name: np.asarray(x)[:rows, :width] for name, x in seen.items()}
        return {name: tokens.scatter(x) for name, x in found.items()}, after

    def _rows(self, state: Cache | None, tokens: Tokens) -> int:
        """Return the number of rows that is compiled for; a state of another one is refused."""
        rows = len(tokens.ids_BT)
        fits = state is None or (self._is_small and len(state.length_B) == rows)
        return compiling.fit_rows(rows) if fits else rows

    def _padded(
        self, tokens: Tokens, *, rows: int, least: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        given, width = tokens.ids_BT.shape
        wide = compiling.fit_tokens(max(width, least), self.model.config)
        ids_BT = np.zeros((rows, wide), np.int32)
        ids_BT[:given, :width] = tokens.front_BT
        return ids_BT, np.pad(tokens.count_B, (0, rows - given))

    def _forwarded(
        self, params: Any, ids_BT: Any, cache: Cache | None, count_B: Any, **promises: Any
    ) -> tuple[Any, Cache | None]:
        how = {"config": self.model.config, "absorbed": self.absorbed, **promises}
        # Where nothing is compiled, the host's arrays arrive here as they are.
        cache = jax.tree.map(jnp.asarray, cache)
        return forward(params, jnp.asarray(ids_BT), cache, jnp.asarray(count_B), **how)

    def _encoded(self, params: Any, ids_BE: Any, count_B: Any) -> Source:
        return encode(params, jnp.asarray(ids_BE), jnp.asarray(count_B), config=self.model.config)

    def _captured(
        self, params: Any, ids_BT: Any, cache: Cache | None, count_B: Any, stands: Any
    ) -> tuple[dict[str, Any], Cache | None]:
        seen: dict[str, Any] = {}

        def tap(name: str, x: Any) -> Any:
            seen[name] = x
            return stands.get(name, x)

        how = {"config": self.model.config, "absorbed": self.absorbed}
        ids_BT, count_B = jnp.asarray(ids_BT), jnp.asarray(count_B)
        _, after = forward(params, ids_BT, cache, count_B, **how, tap=tap)
        return seen, after


def _padded_to(x_BTD: np.ndarray, ids_BT: np.ndarray) -> np.ndarray:
    short = [(0, wide - n) for wide, n in zip(ids_BT.shape, x_BTD.shape, strict=False)]
    return np.pad(x_BTD, (*short, *((0, 0),) * (x_BTD.ndim - 2)))


def _promises(state: Cache, tokens: Tokens, width: int) -> dict[str, bool]:
    length_B = np.asarray(state.length_B)
    are_alike = len({*length_B.tolist()}) == 1 and bool(tokens.count_B.all())
    return {
        "fresh": width > 1 and not length_B.any(),
        "rectangular": width == 1 and are_alike,
    }
