"""The model behind a subject: numpy in, numpy out, with a cache, without one, or explicitly.

Letters: B rows, T tokens, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches import Cache
from jaxkv.model import Decoder, forward, params_of
from jaxkv.testing import explicit_state
from jaxkv.testing.explicit_state import ExplicitState
from jaxkv.testing.inputs import BUCKETS, Tokens
from jaxkv.testing.plan import plan_step
from jaxkv.testing.states import State


class Driver:
    """One model's forward, compiled or op by op.

    Steps are padded to a few widths so that little is compiled.

    Attributes:
        forwarded: Real tokens that went through the model so far.
    """

    def __init__(self, model: Decoder, *, compiled: bool):
        self.model, self.forwarded = model, 0
        self._params = params_of(model)
        # Own functions, so that a test that swaps a formula and makes a new subject gets a new
        # trace.
        self._forward, self._capture = self._forwarded, self._captured
        if compiled:
            self._forward = jax.jit(self._forwarded, static_argnames=("fresh", "rectangular"))
            self._capture = jax.jit(self._captured)

    def run(self, state: Cache | None, tokens: Tokens) -> tuple[np.ndarray, Cache | None]:
        """Return logits [B, T, V] of a step on a layout's cache, or without one, and the next."""
        ids_BT, count_B = _padded(tokens)
        promises = {} if state is None else _promises(state, tokens, ids_BT.shape[1])
        self.forwarded += int(tokens.count_B.sum())
        logits_BTV, after = self._forward(self._params, ids_BT, state, count_B, **promises)
        return tokens.scatter(np.asarray(logits_BTV)[:, : tokens.ids_BT.shape[1]]), after

    def run_explicit(
        self, function: str, state: State | None, tokens: Tokens, *, positions: Any, visible: Any
    ) -> tuple[np.ndarray, ExplicitState]:
        """Return logits [B, T, V] of a step with given positions or visibility, and the next state.

        Args:
            function: The caller, for messages.
            state: Any; None for whole texts without a cache.
            tokens: The new ones.
            positions: See `plan_step`.
            visible: See `plan_step`.
        """
        if state is None:
            rows, width = tokens.ids_BT.shape
            state = explicit_state.empty(self.model, batch=rows, capacity=_bucket(width))
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
        self.forwarded += int(tokens.real_BT.sum())
        return explicit_state.advance(
            state, plan, self.model, forward=lambda *args: self._forward(self._params, *args)
        )

    def capture(self, tokens: Tokens) -> dict[str, np.ndarray]:
        """Return the intermediate results of an uncached forward, by name."""
        seen, width = self._capture(self._params, *_padded(tokens)), tokens.ids_BT.shape[1]
        return {name: np.asarray(x)[:, :width] for name, x in seen.items()}

    def _forwarded(
        self, params: Any, ids_BT: Any, cache: Cache | None, count_B: Any, **promises: Any
    ) -> tuple[Any, Cache | None]:
        return forward(params, ids_BT, cache, count_B, config=self.model.config, **promises)

    def _captured(self, params: Any, ids_BT: Any, count_B: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        forward(params, ids_BT, None, count_B, config=self.model.config, tap=seen.__setitem__)
        return seen


def _bucket(width: int) -> int:
    return next((size for size in BUCKETS if size >= width), width)


def _padded(tokens: Tokens) -> tuple[Any, Any]:
    rows, width = tokens.ids_BT.shape
    ids_BT = np.zeros((rows, _bucket(width)), np.int32)
    ids_BT[:, :width] = tokens.front_BT
    return jnp.asarray(ids_BT), jnp.asarray(tokens.count_B)


def _promises(state: Cache, tokens: Tokens, width: int) -> dict[str, bool]:
    length_B = np.asarray(state.length_B)
    are_alike = len({*length_B.tolist()}) == 1 and bool(tokens.count_B.all())
    return {
        "fresh": width > 1 and not length_B.any(),
        "rectangular": width == 1 and are_alike,
    }
