"""The model behind a subject: numpy in, numpy out, with a cache, without one, or explicitly.

Letters: B rows, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from jaxkv.spec.errors import Unsupported
from torchkv.caches import Cache, Source
from torchkv.encoder import encode
from torchkv.model import Decoder, forward, params_of
from torchkv.testing import explicit_state
from torchkv.testing.explicit_codes import Form
from torchkv.testing.explicit_state import ExplicitState, to_numpy
from torchkv.testing.inputs import Tokens
from torchkv.testing.plan import plan_step
from torchkv.testing.states import State


class Driver:
    """One model's forward, op by op.

    Args:
        model: Whose forward.
        compiled: Not offered.
        like: Not needed, where nothing is compiled.
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
        if compiled:
            raise Unsupported(
                "Subject: compiled is True, but PyTorch runs this twin op by op. Leave it out."
            )
        self.model, self.absorbed = model, absorbed
        self._params = params_of(model)

    def encode(self, texts: Tokens) -> Source:
        """Return what the encoder leaves of each row's text."""
        ids_BE, count_B = self._ints(texts.front_BT), self._ints(texts.count_B)
        with torch.no_grad():
            return encode(self._params, ids_BE, count_B, config=self.model.config)

    def run(
        self, state: Cache | None, tokens: Tokens, source: Source | None = None
    ) -> tuple[np.ndarray, Cache | None]:
        """Return logits [B, T, V] of a step on a layout's cache, or without one, and the next."""
        fresh = state is not None and tokens.ids_BT.shape[1] > 1 and not bool(state.length_B.any())
        ids_BT, count_B = self._ints(tokens.front_BT), self._ints(tokens.count_B)
        logits_BTV, after = self._forward(ids_BT, state, count_B, fresh=fresh, source=source)
        return tokens.scatter(to_numpy(logits_BTV)), after

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
        return explicit_state.advance(state, plan, self.model, forward=self._forward)

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
        seen: dict[str, Array] = {}
        stands = {name: tokens.collect(np.asarray(x)) for name, x in (given or {}).items()}

        def tap(name: str, x: Array) -> Array:
            seen[name] = x
            return x.new_tensor(stands[name]) if name in stands else x

        ids_BT, count_B = self._ints(tokens.front_BT), self._ints(tokens.count_B)
        _, after = self._forward(ids_BT, state, count_B, tap=tap)
        return {name: tokens.scatter(to_numpy(x)) for name, x in seen.items()}, after

    def _forward(
        self, ids_BT: Array, state: Cache | None, count_B: Array, **options: Any
    ) -> tuple[Array, Any]:
        how = {"config": self.model.config, "absorbed": self.absorbed, **options}
        with torch.no_grad():
            return forward(self._params, ids_BT, state, count_B, **how)

    def _ints(self, array: np.ndarray) -> Array:
        return torch.tensor(
            np.ascontiguousarray(array), dtype=torch.int32, device=self.model.embed.device
        )
