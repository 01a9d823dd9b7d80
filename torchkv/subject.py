"""This twin behind the protocol that a differential tester drives.

Numpy at the boundary, opaque state.

Letters: B rows, T tokens, S slots, K key/value heads, H head width, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jaxkv.spec.errors import RequestError
from jaxkv.spec.identity import weights_hash
from torchkv import caches
from torchkv.caches import Cache, Source
from torchkv.model import Decoder
from torchkv.testing import states, variants
from torchkv.testing.bounds import bound_of, residual_of
from torchkv.testing.driver import Driver
from torchkv.testing.explicit_codes import Form, form_of
from torchkv.testing.explicit_state import ExplicitState
from torchkv.testing.info import KV, SubjectInfo, describe
from torchkv.testing.inputs import check_points, check_room, encoder_inputs, read_tokens
from torchkv.testing.opening import factory
from torchkv.testing.states import State
from torchkv.testing.texts import Texts
from torchkv.weights import to_arrays

_BYTES = (8, "fp8")

__all__ = ["KV", "Subject", "SubjectInfo", "factory"]


class Subject(Texts):
    """A decoder with a cache layout, driven by numpy arrays.

    A state that was stepped on is consumed; `fork` keeps a copy. One whose step was given positions
    or visibility goes on as an `ExplicitState`, whatever the layout.

    Attributes:
        forwarded_positions: Real tokens that went through the model so far.
        rollback_room: Tokens that can be taken back once a ring has wrapped; None for any number.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        layout: str = "contiguous",
        slack: int = 0,
        page_size: int | None = None,
        layout_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        notes: tuple[str, ...] = (),
        compiled: bool = False,
        absorbed: bool | None = None,
    ):
        self.model, self.layout = model, layout
        self.slack, self.page_size = slack, page_size
        self.layout_options = dict(layout_options or {})
        if layout not in caches.LAYOUTS:
            wanted = ", ".join(caches.LAYOUTS)
            raise RequestError(f"Subject: layout is {layout!r}, expected one of {wanted}.")
        caches.check_options("Subject", layout, self.layout_options)
        self.name, self.notes, self.compiled = name or f"torchkv/{layout}", notes, compiled
        is_whole = layout in ("contiguous", "paged") or self.layout_options.get("bits") in _BYTES
        self.rollback_room = None if is_whole else slack
        self.forwarded_positions = 0
        self.absorbed = absorbed
        self._driver = Driver(model, compiled=compiled, absorbed=absorbed)
        self._variants: dict[str, Subject] = {}

    @cached_property
    def info(self) -> SubjectInfo:
        """What a tester may know about this subject."""
        hashed = weights_hash(to_arrays(self.model))
        return describe(
            self.model,
            layout=self.layout,
            name=self.name,
            weights_hash=hashed,
            notes=self.notes,
            options=self.layout_options,
        )

    def full(
        self,
        ids: np.ndarray,
        *,
        count: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        positions: np.ndarray | None = None,
        visible: np.ndarray | None = None,
        encoder: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return logits [B, T, V] of whole texts without a cache.

        For the options see `step`, for encoder `init`.

        With a layout that changes results and gives the same for every cut of a text (sinks, codes
        in the order "chunk_invariant"), what it gives in one step: it is no full attention.

        Raises:
            CapacityError: The texts are longer than the model's positions.
            RequestError: An id is outside the vocabulary, or the model in training mode.
        """
        tokens = read_tokens("full", ids, self.model, count=count, mask=mask)
        check_room("full", int(tokens.count_B.max()), self.model)
        is_plain = positions is None and visible is None
        if is_plain and self._is_own_function:
            state = self.init(len(np.asarray(ids)), encoder=encoder)
            return self.step(state, ids, count=count, mask=mask)[0]
        self.forwarded_positions += int(tokens.real_BT.sum())
        source = self._read("full", encoder)
        given: dict[str, Any] = {"positions": positions, "visible": visible, "form": self._form}
        if not is_plain:
            return self._driver.run_explicit("full", None, tokens, source, **given)[0]
        return self._driver.run(None, tokens, source)[0]

    def init(
        self, batch: int, capacity: int | None = None, *, encoder: np.ndarray | None = None
    ) -> Cache:
        """Return an empty state.

        Args:
            batch: Rows.
            capacity: None is the model's positions, 512 at most.
            encoder: Of a model with an encoder, what it reads: ids [B, E], -1 behind a row's last.

        Raises:
            RequestError: The texts are missing, or not asked for.
        """
        source = self._read("init", encoder)
        if source is None:
            return self._empty(batch, capacity, None)
        return caches.fill(self._empty(batch, capacity, states.width_of(source)), source)

    def encoder_inputs(self, batch: int, seed: int) -> np.ndarray:
        """Return texts for `encoder` of as many rows, of unlike lengths; -1 for no token."""
        return encoder_inputs(self.model, batch, seed)

    def _empty(self, batch: int, capacity: int | None, source_capacity: int | None) -> Cache:
        room = min(self.model.config.max_positions, 512) if capacity is None else capacity
        with self.model.embed.device:
            return caches.init(
                self.model.config,
                batch=batch,
                capacity=room,
                dtype=self.model.dtype,
                slack=self.slack,
                layout=self.layout,
                **({} if self.page_size is None else {"page_size": self.page_size}),
                **({} if source_capacity is None else {"source_capacity": source_capacity}),
                **self.layout_options,
            )

    def _read(self, function: str, encoder: np.ndarray | None) -> Source | None:
        """Return what the encoder leaves of the texts, None without an encoder."""
        has_encoder = self.model.config.encoder is not None
        if has_encoder != (encoder is not None):
            wanted = "[B, E] ids for each row" if has_encoder else "None, the model has no encoder"
            given = "None" if encoder is None else f"of shape {np.shape(encoder)}"
            raise RequestError(f"{function}: encoder is {given}, expected {wanted}.")
        if encoder is None:
            return None
        ids_BE = np.asarray(encoder)
        texts = read_tokens(function, np.maximum(ids_BE, 0), self.model, mask=ids_BE >= 0)
        return self._driver.encode(texts)

    def step(
        self,
        state: State,
        ids: np.ndarray,
        *,
        count: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        positions: np.ndarray | None = None,
        visible: np.ndarray | None = None,
        check: bool = True,
    ) -> tuple[np.ndarray, State]:
        """Return logits [B, T, V] of more tokens of each row, and the next state.

        Args:
            state: Earlier tokens; consumed.
            ids: Token ids [B, T].
            count: How many of the T, from the first, are real in each row; all by default.
            mask: bool [B, T], which of them are real, instead of a count.
            positions: int [B, T], where they stand, instead of being counted on from the length;
                changes embedding and rotation, not who sees whom.
            visible: bool [B, T, L + T], L the longest row's length: which of the row's real tokens
                so far, and then which of these T, each token may read, instead of all before it.
            check: Whether a row without room is an error, or only marked in the state.

        Raises:
            CapacityError: A row has no room.
            ShapeError: The state belongs to another model, dtype or batch; or an option has another
                shape.
            RequestError: An id is outside the vocabulary, or the model in training mode.
        """
        tokens = read_tokens("step", ids, self.model, count=count, mask=mask)
        self.forwarded_positions += int(tokens.real_BT.sum())
        given: dict[str, Any] = {"positions": positions, "visible": visible, "form": self._form}
        if isinstance(state, ExplicitState) or positions is not None or visible is not None:
            return self._driver.run_explicit("step", state, tokens, **given)
        logits_BTV, after = self._driver.run(state, tokens)
        assert after is not None  # forward returns a cache for a cache
        if check:
            caches.check(after)
        return logits_BTV, after

    def rollback(self, state: State, length: np.ndarray) -> State:
        """Return the state with only the first length[b] tokens of each row."""
        return states.rollback(state, length)

    def gather(self, state: State, rows: Sequence[int] | np.ndarray) -> State:
        """Return the state of the named rows, each of them with its full capacity."""
        after = states.gather(state, np.asarray(rows))
        # A pool is made for its rows; those that are more share their pages only at first.
        more = self.layout == "paged" and len(rows) > len(state.length_B)
        return self.grow(after, state.capacity) if more else after

    def fork(self, state: State) -> State:
        """Return a second state that lives on by itself."""
        return states.fork(state)

    def grow(self, state: State, capacity: int) -> State:
        """Return the state with room for `capacity` tokens a row."""
        wide = states.source_capacity(state)
        return states.grow(state, self._empty(len(state.length_B), capacity, wide))

    def length(self, state: State) -> np.ndarray:
        """Return how many tokens each row holds."""
        return states.lengths(state)

    def kv(self, state: State, layer: int) -> KV:
        """Return one layer's stored keys and values."""
        return states.read(state, layer)

    def with_kv(self, state: State, layer: int, kv: KV) -> State:
        """Return the state with one layer's keys and values replaced, slot by slot."""
        return states.write(state, layer, kv)

    def permute_pages(self, state: State, seed: int) -> State:
        """Return the state with its pages laid in another order; refused without pages."""
        return states.permute_pages(state, seed)

    def poison(self, state: State) -> State:
        """Return the state with NaN in every slot that holds no token.

        What it answers must not change.
        """
        return states.poison(state)

    def capture(
        self, ids: np.ndarray, points: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return intermediate results of an uncached forward by name.

        In the order of the computation.

        Raises:
            RequestError: There is no such point, or an id is outside the vocabulary.
            CapacityError: The texts are longer than the model's positions.
        """
        tokens = read_tokens("capture", ids, self.model)
        check_room("capture", tokens.ids_BT.shape[1], self.model)
        names = check_points("capture", points, self.model.config.num_layers)
        seen, _ = self._driver.capture(tokens)
        return {name: seen[name] for name in names}

    def capture_step(
        self,
        state: State,
        ids: np.ndarray,
        points: Sequence[str] | None = None,
        *,
        given: Mapping[str, np.ndarray] | None = None,
        count: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[dict[str, np.ndarray], Cache]:
        """Return intermediate results of a step by name, and the next state.

        Args:
            state: Earlier tokens, without positions or visibility of their own.
            ids: Token ids [B, T].
            points: As in `capture`.
            given: Point -> [B, T, ...], what goes on from there instead of the step's own result.
            count: As in `step`.
            mask: As in `step`.

        Raises:
            RequestError: No such point, an id outside the vocabulary, or such a state.
            CapacityError: A row has no room.
        """
        tokens = read_tokens("capture_step", ids, self.model, count=count, mask=mask)
        if isinstance(state, ExplicitState):
            raise RequestError(
                "capture_step: state holds given positions or visibility, expected one from `init`."
            )
        names = check_points("capture_step", points, self.model.config.num_layers)
        check_points("capture_step", list(given or {}), self.model.config.num_layers)
        self.forwarded_positions += int(tokens.real_BT.sum())
        seen, after = self._driver.capture(tokens, state, given=given)
        assert after is not None  # forward returns a cache for a cache
        caches.check(after)
        return {name: seen[name] for name in names}, after

    def cast(self, dtype: str) -> "Subject":
        """Return the same function in another dtype; to a wider one every weight stays exact."""
        return self._remade(variants.cast(self.model, dtype), suffix=dtype)

    def variant(self, name: str) -> "Subject":
        """Return the same model in another form; `info.variants` names them.

        Raises:
            RequestError: There is no such form.
        """
        if name not in self._variants:
            changes = variants.options_of(name, self.model, self.info.variants)
            self._variants[name] = self._remade(suffix=name, **changes)
        return self._variants[name]

    def quant_bound(self) -> dict[str, float]:
        """Return how far the codes may be from the exact variant, by point; see `bound_of`."""
        return dict(bound_of(self))

    def quant_residual(self) -> int:
        """Return how many of the first tokens of a text are all read as they are."""
        return residual_of(self)

    def nudged(self, scale: float, seed: int) -> "Subject":
        """Return the subject with every weight times 1 + scale * a standard normal number."""
        return self._remade(variants.nudge(self.model, scale, seed), suffix="nudged")

    def decoder_inputs(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Return the config as plain data, and float64 weights by canonical name, (out, in).

        None where the layout is another function than they describe: see `full`.
        """
        if self._is_own_function:
            return None
        arrays = to_arrays(self.model)
        wide = {name: array.astype(np.float64) for name, array in arrays.items()}
        return self.model.config.to_dict(), wide

    @property
    def _form(self) -> Form | None:
        """What is read from codes, whatever the steps."""
        return form_of(self.model.config, self.layout, self.layout_options)

    @property
    def _is_own_function(self) -> bool:
        return self.layout.startswith("sinks") or self._form is not None

    def _remade(self, model: Decoder | None = None, *, suffix: str, **changes: Any) -> "Subject":
        kept = {**self._on, "notes": self.notes, "compiled": self.compiled}
        kept["absorbed"] = self.absorbed
        if changes.get("layout", self.layout) != "paged":
            kept["page_size"] = None
        if changes.get("layout", self.layout) != self.layout:
            kept["layout_options"] = None
        made = Subject(model or self.model, name=f"{self.name} {suffix}", **{**kept, **changes})
        same_program = (self.compiled, self.absorbed) == (made.compiled, made.absorbed)
        if made.model.config == self.model.config and same_program:
            # Another layout, other numbers: what this subject has compiled serves there too.
            how = {"compiled": made.compiled, "absorbed": made.absorbed}
            made._driver = Driver(made.model, **how, like=self._driver)
        return made
