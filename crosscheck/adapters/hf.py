"""A causal language model of transformers as a subject, with any of its caches.

Letters: B rows, T tokens of this call, S tokens fed so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import (
    drivers,
    hf_cache,
    hf_decoder,
    hf_variants,
    torch_capture,
    torch_islands,
)
from crosscheck.adapters.hf_call import Caller
from crosscheck.adapters.hf_probe import Facts, probe
from crosscheck.adapters.hf_state import Held, Setup, by_slot, kept, real, usable
from crosscheck.adapters.torch_heard import heard
from crosscheck.adapters.torch_tools import (
    cast_copy,
    dtype_of,
    named_arrays,
    nudged_copy,
    weights_hash,
    with_arrays,
)
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.subjects.protocol import KV, SubjectInfo

DEFAULT_CAPACITY = 64


class CausalLM:
    """The subject; `adapt` makes it."""

    source: str | None = None

    def __init__(self, model: Any, setup: Setup, *, facts: Facts | None = None) -> None:
        self.model = model.eval()
        self.setup = setup
        self._make = hf_cache.cache_class(setup.cache)
        self._call = Caller(model)
        self.facts = facts or probe(self)
        self._call.offset, self._call.own_positions = self.facts.offset, self.facts.own_positions
        self._call.pad, self._call.placed_masks = self.facts.pad, self.facts.placed_masks
        self.info = self._info()

    @property
    def forwarded_positions(self) -> int:
        """Rows times tokens that entered the model so far."""
        return self._call.forwarded_positions

    @property
    def driver(self) -> tuple[str, ...]:
        """Lines that drive the bare model, for reproducers; () where its cache has no name."""
        make, call = hf_cache.expression(self.setup.cache, self._make), self._call
        if make is None or self.setup.cache_options:
            return ()
        return drivers.of_transformers(
            make=make,
            keyword=call.cache_keyword,
            verb=self.setup.gather or self.facts.gather,
            offset=call.offset,
            own_pad=call.pad if call.own_positions else None,
        )

    @property
    def rollback_room(self) -> int | None:
        """How many tokens may be taken back once a window has filled; None for any number."""
        return 0 if any(self.info.windows) else None

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits [B, T, V] of whole texts, without any cache."""
        empty = self._empty(len(ids), None, options.pop("encoder", None))
        return self._forward(empty, np.asarray(ids), use_cache=False, **options)[0]

    def init(self, batch: int, capacity: int | None, *, encoder: Any = None) -> Held:
        """Return an empty state; without a fixed room, capacity is ignored."""
        room = capacity or min(self.info.max_positions or DEFAULT_CAPACITY, DEFAULT_CAPACITY)
        cache = None
        if self._make is not None:
            made = self._make
            cache = hf_cache.make_cache(made, self.model, batch, room, self.setup.cache_options)
        fixed = room if hf_cache.has_capacity(self._make) else None
        return replace(self._empty(batch, cache, encoder), capacity=fixed)

    def step(self, state: Held, ids: NDArray, **options: Any) -> tuple[NDArray, Held]:
        """Return logits [B, T, V] of the next tokens, and the next state."""
        usable(state)
        try:
            return self._forward(state, np.asarray(ids), use_cache=True, **options)
        except Exception as error:
            # After an exception some layers may have taken the tokens and others not.
            state.spent = "a step on it raised"
            fed = state.real_BS.shape[1] + np.shape(ids)[1]
            if state.capacity is None or fed <= state.capacity:
                raise
            raise Refused(
                f"step: {fed} tokens, capacity {state.capacity}: {type(error).__name__}: {error}"
            ) from None

    def length(self, state: Held) -> NDArray:
        """Return int [B]: real tokens held, corrected by what the cache itself says."""
        told = None if state.cache is None else hf_cache.reported_length(state.cache)
        surplus = 0 if told is None else told - state.real_BS.shape[1]
        return state.real_BS.sum(1) + surplus

    def rollback(self, state: Held, length: Any) -> Held:
        """Return the state with only the first length[b] real tokens of each row.

        Raises:
            Refused: The package refuses, or rows of unlike lengths would need gaps it can't hold.
        """
        usable(state)
        keep_BS, cut = kept(state.real_BS, np.broadcast_to(length, len(state.real_BS)))
        ragged = bool((state.real_BS[:, :cut] != keep_BS[:, :cut]).any())
        if ragged and "count" not in self.info.capabilities:
            raise Refused(
                "rollback: rows keep unlike lengths, the cache is cut for all rows alike."
            )
        drop = state.real_BS.shape[1] - cut
        state.spent = "it was rolled back"
        if drop and state.cache is not None:
            hf_cache.crop(state.cache, drop)
        position_BS = state.position_BS[:, :cut]
        padded = state.padded or ragged
        return replace(
            state, real_BS=keep_BS[:, :cut], position_BS=position_BS, padded=padded, spent=""
        )

    def gather(self, state: Held, rows: Sequence[int] | NDArray) -> Held:
        """Return the state whose row i is the old row rows[i]."""
        usable(state)
        rows = np.asarray(rows)
        state.spent = "its rows were gathered"
        if state.cache is not None and state.real_BS.shape[1]:
            verb = self.setup.gather or hf_cache.gather_verb(state.cache)
            hf_cache.select_rows(state.cache, rows, verb)
        encoder = None if state.encoder is None else np.asarray(state.encoder)[rows]
        real_BS, position_BS = state.real_BS[rows], state.position_BS[rows]
        return replace(state, real_BS=real_BS, position_BS=position_BS, encoder=encoder, spent="")

    def fork(self, state: Held) -> Held:
        """Return a second state that lives on by itself."""
        return replace(usable(state), cache=hf_cache.copied(state.cache))

    def kv(self, state: Held, layer: int) -> KV:
        """Return what one layer holds, in the order of its slots."""
        if state.cache is None or not state.real_BS.shape[1]:
            none = np.zeros((len(state.real_BS), 0))
            return KV(none[..., None, None], none[..., None, None], none.astype(int), none > 0)
        return hf_cache.read_kv(usable(state).cache, layer, state.real_BS, state.position_BS)

    def with_kv(self, state: Held, layer: int, kv: KV) -> Held:
        """Return the state with one layer's keys and values replaced."""
        hf_cache.write_kv(usable(state).cache, layer, kv)
        return state

    def capture(self, ids: NDArray, points: Sequence[str] | None = None) -> dict[str, NDArray]:
        """Return intermediate results of `full` by canonical name, in the forward's order."""
        with torch_capture.tapped(self.model, points) as taps:
            taps["logits"] = self.full(ids)
        return torch_capture.ordered(taps, points, np.shape(ids))

    def capture_step(
        self,
        state: Held,
        ids: NDArray,
        points: Sequence[str] | None = None,
        *,
        given: Mapping[str, NDArray] | None = None,
        **options: Any,
    ) -> tuple[dict[str, NDArray], Held]:
        """Return intermediate results of one step by canonical name, and the next state."""
        with torch_capture.tapped(self.model, points, given) as taps:
            taps["logits"], after = self.step(state, ids, **options)
        return torch_capture.ordered(taps, points, np.shape(ids)), after

    def heard(self) -> Any:
        """Return a context that collects what each part of the model is given and gives."""
        return heard(self.model)

    def cast(self, dtype: str) -> "CausalLM":
        """Return the same weights in another dtype; upward exactly."""
        if dtype == self.info.dtype:
            return self
        return self._like(cast_copy(self.model, dtype))

    def nudged(self, scale: float, seed: int) -> "CausalLM":
        """Return the same model with every weight times 1 + scale * normal noise."""
        return self._like(nudged_copy(self.model, scale, seed))

    def narrow_casts(self, ids: NDArray) -> tuple[str, ...]:
        """Return the names of the modules in which float64 becomes float32, in order."""
        with torch_islands.watched(self.model) as found:
            self.full(ids)
        return tuple(dict.fromkeys(found))

    def lifted(self) -> "CausalLM":
        """Return the same model, with each cast to float32 inside it made a cast to float64."""
        twin = self._like(self.model)
        twin._call.within = torch_islands.lifted
        return twin

    def decoder_inputs(self) -> tuple[dict[str, Any], dict[str, NDArray]] | None:
        """Return config and float64 weights for the independent decoder; None if it can't."""
        return hf_decoder.inputs(self.model)

    def weights(self) -> dict[str, NDArray]:
        """Return the weights by name."""
        return named_arrays(self.model)

    def with_weights(self, arrays: dict[str, NDArray]) -> "CausalLM":
        """Return a copy with these weights."""
        return self._like(with_arrays(self.model, arrays))

    def variant(self, name: str) -> "CausalLM":
        """Return the same weights in another form: `window=N`, `gqa_as_mha`, `eager`, `sdpa`."""
        model = hf_variants.variant(self.model, name)
        return self._like(model, facts=hf_variants.facts_of(model, self.facts))

    def _like(self, model: Any, facts: Facts | None = None) -> "CausalLM":
        twin = CausalLM(model, self.setup, facts=facts or self.facts)
        twin.source = self.source
        return twin

    def _empty(self, batch: int, cache: Any, encoder: Any) -> Held:
        none = np.zeros((batch, 0), np.int64)
        return Held(cache, none.astype(bool), none, encoder=encoder)

    def _forward(
        self, state: Held, ids_BT: NDArray, *, use_cache: bool, **options: Any
    ) -> tuple[NDArray, Held]:
        real_BT, told = real(ids_BT, options)
        if set(options) - {"mask", "count", "positions", "visible"}:
            raise CrosscheckError(f"{self.info.name}: options are {', '.join(options)}.")
        padded = state.padded or told
        real_BS = np.concatenate([state.real_BS, real_BT], 1)
        given = options.get("positions")
        counted_BT = state.real_BS.sum(1)[:, None] + np.maximum(real_BT.cumsum(1) - 1, 0)
        position_BT = counted_BT if given is None else np.asarray(given)
        visible_BTS = options.get("visible")
        if visible_BTS is not None:
            visible_BTS = by_slot(np.asarray(visible_BTS, bool), state.real_BS, real_BT)
        if padded and self._call.own_positions and self._call.pad is not None:
            ids_BT = np.where(real_BT, ids_BT, self._call.pad)
        placed = visible_BTS is not None and self._call.placed_masks
        explicit = given is not None or placed or (padded and not self._call.own_positions)
        # Given positions without a mask would be read as several texts packed into one row.
        told_BS = real_BS if padded or (given is not None and visible_BTS is None) else None
        logits, cache = self._call(
            ids_BT,
            cache=state.cache,
            use_cache=use_cache,
            real_BS=told_BS,
            position_BT=position_BT if explicit else None,
            visible_BTS=visible_BTS,
            encoder=state.encoder,
            slot=state.real_BS.shape[1] if use_cache and state.capacity is not None else None,
        )
        if not use_cache:
            return logits, state
        state.spent = "a later step went on from it"
        position_BS = np.concatenate([state.position_BS, position_BT], 1)
        after = replace(state, cache=cache, real_BS=real_BS, position_BS=position_BS, spent="")
        return logits, replace(after, padded=padded)

    def _info(self) -> SubjectInfo:
        facts, setup = self.facts, self.setup
        return SubjectInfo(
            name=setup.name or type(self.model).__name__,
            framework="torch",
            dtype=dtype_of(self.model),
            vocab_size=facts.vocab_size,
            num_layers=facts.num_layers,
            capabilities=facts.capabilities,
            kv_heads=facts.kv_heads,
            windows=facts.windows,
            max_positions=facts.max_positions,
            first_id=facts.first_id,
            weights_hash=weights_hash(self.model),
            notes=setup.notes + facts.notes,
            absent=facts.absent,
            documented=setup.documented,
            variants=facts.variants,
        )
