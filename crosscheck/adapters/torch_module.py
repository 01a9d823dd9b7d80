"""Any torch nn.Module that turns token ids into logits, as a subject.

Letters: B rows, T tokens, S tokens fed so far, V vocabulary.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import calling, drivers, structure, torch_capture, torch_padding
from crosscheck.adapters import torch_tools as tools
from crosscheck.adapters.torch_heard import heard
from crosscheck.adapters.torch_verbs import Fed, own_verbs
from crosscheck.errors import CrosscheckError, SubjectError
from crosscheck.subjects.amplify import seed_of
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV

ROOM = 64


def adapt_module(
    module: Any,
    *,
    call: str | Callable[..., Any] | None = None,
    full: Callable[..., Any] | None = None,
    init: Callable[..., Any] | None = None,
    step: Callable[..., Any] | None = None,
    capacity: bool | None = None,
    amplify: int | None = None,
    **caps: Any,
) -> FunctionSubject:
    """Return a subject for a torch module.

    Args:
        module: Called with int64 ids [B, T]; it gives logits, (logits, cache), or an object with
            `.logits` and the cache under one of its usual names.
        call: How it is called, written out: "forward(ids, kv=cache, start_pos=start)". None:
            read off the signature of `forward`. An argument named `attention_mask`, or written
            `NAME=mask`, gets the padding: bool or int64 [B, S], which of the tokens fed so far
            are real. The module is asked whether it takes it so (`torch_padding.probe`).
        full: full(module, ids) -> logits, where the uncached call differs.
        init: init(module, batch, capacity) -> cache; None: the module's own `init_cache` (or
            another usual name), else None, as a first call without a cache is.
        step: step(module, cache, ids) -> (logits, cache), where `call` can't say it.
        capacity: Whether the cache has a fixed room.
        amplify: Seed of amplified weights, written into the module; None keeps its weights.
        caps: As in `from_functions`; callables take the module first.
    """
    seed = seed_of(amplify)
    if seed is not None:
        caps["notes"] = (*caps.get("notes", ()), tools.amplify(module, seed))
    return _Adapter(module.eval(), call, full, init, step, capacity, caps).subject()


class _Adapter:
    """Builds the callables of one module; a cast builds them anew for the copy."""

    def __init__(
        self,
        module: Any,
        call: Any,
        full: Any,
        init: Any,
        step: Any,
        capacity: bool | None,
        caps: Mapping[str, Any],
    ) -> None:
        self.module, self.hints = module, (call, full, init, step, capacity)
        self.caps = caps
        self.padding: torch_padding.Padding | None = None
        self.asked: tuple[torch_padding.Padding | None, str] | None = None
        self.call = calling.written(call) if isinstance(call, str) else call
        self.call = calling.read(module.forward) if call is None else self.call
        self.user_full, self.user_init, self.user_step = full, init, step
        name = None if init is not None else calling.maker(module)
        self.make = getattr(module, name) if name else None
        self.has_room = capacity
        if capacity is None:
            self.has_room = self.make is not None and calling.has_room(self.make)

    def subject(self) -> FunctionSubject:
        """Return the subject."""
        calls: dict[str, Any] = {"full": self.full, "cast": self.cast, "nudged": self.nudged}
        calls |= {"weights": self.weights, "with_weights": self.with_weights}
        flags: dict[str, Any] = {"f64": True, "f32": True}
        if self.has_cache:
            calls |= {"init": self.init, "step": self.step, "fork": self.fork}
            flags |= {"capacity": bool(self.has_room)}
            calls |= self._of_cache()
        if torch_capture.blocks(self.module):
            calls["capture"] = self.capture
            calls |= {"capture_step": self.capture_step} if "step" in calls else {}
        flags["positions"] = self._takes("positions")
        flags |= self._of_padding()
        bound = {
            k: (lambda *a, f=v, **o: f(self.module, *a, **o)) if callable(v) else v
            for k, v in self.caps.items()
        }
        facts = {
            "name": type(self.module).__name__,
            "framework": "torch",
            "dtype": tools.dtype_of(self.module),
            "weights_hash": tools.weights_hash(self.module),
        }
        subject = from_functions(**(facts | flags | calls | bound))
        subject.driver = self.driver()
        subject.heard = partial(heard, self.module)
        return subject

    @property
    def has_cache(self) -> bool:
        """Whether it can be called with a cache."""
        return self.user_step is not None or self._takes("cache")

    def driver(self) -> tuple[str, ...]:
        """Return lines that drive the bare module; () where a user's callables do it."""
        call = self.call
        if self.padding is not None:
            # The lines know no padding; the adapter does.
            return ()
        if not isinstance(call, calling.Call) or self.user_full or self.user_step or self.user_init:
            return ()
        if self.make is not None or call.method or call.takes("positions"):
            return ()
        names = {k: v for k, v in call.named.items() if v in ("cache", "start")}
        cached = {k: True for k, v in call.named.items() if v == "use_cache"}
        return drivers.of_torch(
            full=drivers.written(("ids",), {}, {k: False for k in cached} | dict(call.fixed)),
            step=drivers.written(call.positional, names, cached | dict(call.fixed)),
            make="None",
        )

    def full(self, ids: NDArray, *, mask: Any = None, positions: Any = None) -> NDArray:
        """Return logits without any cache."""
        with tools.quiet():
            if self.user_full is not None:
                return tools.to_numpy(self.user_full(self.module, _ids(ids)))
            real = torch_padding.with_call(Fed(None, 0), ids.shape[1], len(ids), mask)
            return self._forward(ids, Fed(None, 0), positions, real, cached=False)[0]

    def init(self, batch: int, capacity: int | None) -> Fed:
        """Return an empty cache."""
        room = capacity or ROOM
        kept = room if self.has_room else None
        with tools.quiet():
            if self.user_init is not None:
                return Fed(self.user_init(self.module, batch, room), 0, kept)
            made = None if self.make is None else calling.made(self.make, batch, room)
        return Fed(made, 0, kept)

    def step(
        self, state: Fed, ids: NDArray, *, mask: Any = None, positions: Any = None
    ) -> tuple[NDArray, Fed]:
        """Return logits of the next tokens and the next cache."""
        real = torch_padding.with_call(state, ids.shape[1], len(ids), mask)
        with tools.quiet():
            if self.user_step is not None:
                logits, cache = self.user_step(self.module, state.cache, _ids(ids))
                logits = tools.to_numpy(logits)
            else:
                logits, cache = self._forward(ids, state, positions, real, cached=True)
        return logits, Fed(cache, state.fed + ids.shape[1], state.capacity, real)

    def fork(self, state: Fed) -> Fed:
        """Return a deep copy."""
        return replace(state, cache=copy.deepcopy(state.cache))

    def capture(self, ids: NDArray, points: Any = None) -> dict[str, NDArray]:
        """Return intermediate results of the uncached forward."""
        with torch_capture.tapped(self.module, points) as taps:
            taps["logits"] = self.full(ids)
        return torch_capture.ordered(taps, points, ids.shape)

    def capture_step(
        self, state: Fed, ids: NDArray, points: Any = None, *, given: Any = None, **options: Any
    ) -> tuple[dict[str, NDArray], Fed]:
        """Return intermediate results of one step, and the next cache."""
        with torch_capture.tapped(self.module, points, given) as taps:
            taps["logits"], after = self.step(state, ids, **options)
        return torch_capture.ordered(taps, points, ids.shape), after

    def cast(self, dtype: str) -> FunctionSubject:
        """Return a copy in another dtype."""
        return self._again(tools.cast_copy(self.module, dtype))

    def nudged(self, scale: float, seed: int) -> FunctionSubject:
        """Return a copy with every weight times 1 + scale * noise."""
        return self._again(tools.nudged_copy(self.module, scale, seed))

    def weights(self) -> dict[str, NDArray]:
        """Return the weights by name."""
        return tools.named_arrays(self.module)

    def with_weights(self, arrays: dict[str, NDArray]) -> FunctionSubject:
        """Return a copy with these weights."""
        return self._again(tools.with_arrays(self.module, arrays))

    def _again(self, module: Any) -> FunctionSubject:
        again = _Adapter(module, *self.hints, self.caps)
        again.asked = self.asked
        return again.subject()

    def _takes(self, what: str) -> bool:
        return isinstance(self.call, calling.Call) and self.call.takes(what)

    def _forward(
        self, ids: NDArray, state: Fed, positions: Any, real_BS: Any, *, cached: bool
    ) -> tuple[NDArray, Any]:
        values = {"ids": _ids(ids)}
        if real_BS is not None and self.padding is not None:
            values["mask"] = tools.to_torch(self.padding.mask(real_BS, ids.shape[1]))
        if cached:
            values |= {"cache": state.cache, "start": state.fed, "use_cache": True}
        elif self._takes("use_cache"):
            values["use_cache"] = False
        if positions is not None:
            values["positions"] = tools.to_torch(np.asarray(positions, np.int64))
        elif (cached or real_BS is not None) and self._takes("positions"):
            at = np.arange(state.fed, state.fed + ids.shape[1])
            if real_BS is not None:
                at = np.maximum(np.cumsum(real_BS, axis=1) - 1, 0)[:, state.fed :]
            values["positions"] = tools.to_torch(np.broadcast_to(at, ids.shape))
        logits, cache = calling.split(self.call(self.module, values), state.cache)
        return tools.to_numpy(logits), cache

    def _of_padding(self) -> dict[str, Any]:
        """Return whether padding on the left is taken, and why it is not."""
        if self.asked is None:
            self.asked = self._ask_padding()
        self.padding, reason = self.asked
        absent = {} if self.padding is not None else {"left_pad": reason}
        # On the right a module that counts its padding may be right or not: nothing asks it here.
        absent |= {"right_pad": "of a Module only padding on the left is asked for"}
        absent |= dict(self.caps.get("absent", {}))
        return {"left_pad": self.padding is not None, "right_pad": False, "absent": absent}

    def _ask_padding(self) -> tuple[torch_padding.Padding | None, str]:
        call = self.call
        if not isinstance(call, calling.Call) or self.user_full or self.user_step:
            return None, "full= and step= pass no mask on; give both to from_functions with mask="
        if not call.takes("mask"):
            return None, f"its forward is given no mask; {torch_padding.HOW}"
        name = call.argument("mask")
        promised = "attention_mask" in name or torch_padding.PROMISES in name or self.hints[0]
        dtype = tools.dtype_of(self.module)
        return torch_padding.probe(self, name, dtype, promised=bool(promised))

    def _of_cache(self) -> dict[str, Any]:
        """Return rollback, gather and kv: the cache's own verbs, or plain indexing."""

        def sample(rows: int, tokens: int) -> Any:
            ids = np.zeros((rows, tokens), np.int64)
            return self.step(self.init(rows, 8), ids)[1].cache

        try:
            held = sample(2, 3)
        except Exception as error:
            raise SubjectError(
                f"adapt: {type(self.module).__name__} raised in a cached call: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:160]}. Give call=."
            ) from error
        verbs = own_verbs(held)
        axes = structure.find_axes(sample) if structure.leaves(held) else None
        return verbs if axes is None else self._plain(axes, held) | verbs

    def _plain(self, axes: structure.Axes, held: Any) -> dict[str, Any]:
        def gather(state: Fed, rows: NDArray) -> Fed:
            index = tools.to_torch(rows.astype(np.int64))
            return state.reordered(structure.gather(state.cache, axes, index), rows)

        def rollback(state: Fed, length_B: NDArray) -> Fed:
            column = state.column(length_B)
            cache = structure.shorten(state.cache, axes, column) if axes.grows else state.cache
            return state.cut(cache, column)

        def kv(state: Fed, layer: int) -> KV:
            held = structure.read_kv(state.cache, axes, layer, state.fed, tools.to_numpy)
            return held if state.real_BS is None else _without_pads(held, state.real_BS)

        def with_kv(state: Fed, layer: int, new: KV) -> Fed:
            like = _like
            cache = structure.write_kv(state.cache, axes, layer, new, like)
            return replace(state, cache=cache)

        verbs: dict[str, Any] = {"gather": gather}
        if axes.grows or self._takes("start"):
            verbs["rollback"] = rollback
        pairs = structure.layers(held)
        if pairs:
            verbs |= {"kv": kv, "with_kv": with_kv, "num_layers": len(pairs)}
        return verbs


def _like(array: NDArray, old: Any) -> Any:
    return tools.to_torch(array, like=old)


def _without_pads(held: KV, real_BS: NDArray) -> KV:
    """Return a layer with padding marked as empty, the real tokens counted from 0."""
    unused = ((0, 0), (0, held.valid_BS.shape[1] - real_BS.shape[1]))
    valid_BS = held.valid_BS & np.pad(real_BS, unused)
    position_BS = np.where(valid_BS, np.cumsum(valid_BS, axis=1) - 1, -1)
    return replace(held, position_BS=position_BS, valid_BS=valid_BS)


def _ids(ids: NDArray) -> Any:
    if ids.ndim != 2:
        raise CrosscheckError(f"ids has shape {list(ids.shape)}, expected [B, T].")
    return tools.to_torch(ids.astype(np.int64))
