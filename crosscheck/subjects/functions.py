"""Plain callables as a subject: no base class, no registration, ten lines of a user's code.

Letters: B rows, T tokens, V vocabulary.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.subjects.protocol import CAPABILITIES, SubjectInfo

METHODS = {
    "rollback": "rollback",
    "gather": "gather",
    "fork": "fork",
    "grow": "grow",
    "kv": "kv",
    "with_kv": "kv_write",
    "capture": "capture",
    "permute_pages": "paged",
    "prefix_store": "prefix",
    "speculate": "speculate",
    "quant_bound": "quant",
}
OPTIONS = {
    "count": ("count",),
    "mask": ("left_pad", "right_pad"),
    "positions": ("positions",),
    "visible": ("visible",),
    "encoder": ("cross",),
}


@dataclass(frozen=True)
class Held:
    """A user's state, and how many tokens each row of it holds."""

    state: Any
    length_B: NDArray


class FunctionSubject:
    """A subject made of callables; `from_functions` makes it.

    Attributes:
        driver: Lines that drive the bare model, for reproducers, where an adapter knows them.
        named: Whether a name was given; else whoever knows a better one may `rename` it.
        heard: A context that collects what each part of the model is given; see `subjects.heard`.
    """

    driver: tuple[str, ...] = ()
    named: bool = True
    heard: Callable[[], Any] | None = None

    def __init__(self, info: SubjectInfo, calls: dict[str, Callable[..., Any]]) -> None:
        self.info = info
        self._calls = calls

    def rename(self, name: str) -> "FunctionSubject":
        """Give the subject, and what is cast from it, another name; return it."""
        self.info, self.named = replace(self.info, name=name), True
        return self

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits [B, T, V] without any cache."""
        return np.asarray(self._call("full")(ids, **options))

    def init(self, batch: int, capacity: int | None, **options: Any) -> Held:
        """Return an empty state."""
        make = self._call("init")
        state = make(*(batch, capacity)[: _positional(make)], **options)
        return Held(state, np.zeros(batch, np.int64))

    def step(self, state: Held, ids: NDArray, **options: Any) -> tuple[NDArray, Held]:
        """Return logits [B, T, V] of the next tokens, and the next state."""
        logits, after = self._call("step")(state.state, ids, **options)
        return np.asarray(logits), Held(after, state.length_B + _real(ids, options))

    def length(self, state: Held) -> NDArray:
        """Return int [B]: how many tokens each row holds; the user's own count where given."""
        if "length" in self._calls:
            return np.asarray(self._calls["length"](state.state))
        return state.length_B

    def rollback(self, state: Held, length: NDArray) -> Held:
        """Return the state with only the first length[b] tokens of each row."""
        call = self._call("rollback")
        length_B = np.broadcast_to(np.asarray(length), state.length_B.shape)
        return Held(call(state.state, length_B), length_B)

    def gather(self, state: Held, rows: Sequence[int] | NDArray) -> Held:
        """Return the state whose row i is the old row rows[i]."""
        rows = np.asarray(rows)
        return Held(self._call("gather")(state.state, rows), state.length_B[rows])

    def fork(self, state: Held) -> Held:
        """Return a second state that lives on by itself."""
        return Held(self._call("fork")(state.state), state.length_B)

    def grow(self, state: Held, capacity: int) -> Held:
        """Return the state with more room."""
        return Held(self._call("grow")(state.state, capacity), state.length_B)

    def with_kv(self, state: Held, layer: int, kv: Any) -> Held:
        """Return the state with one layer's keys and values replaced."""
        return Held(self._call("with_kv")(state.state, layer, kv), state.length_B)

    def permute_pages(self, state: Held, seed: int) -> Held:
        """Return the state with its pages in another order."""
        return Held(self._call("permute_pages")(state.state, seed), state.length_B)

    def kv(self, state: Held, layer: int) -> Any:
        """Return what one layer holds."""
        return self._call("kv")(state.state, layer)

    def cast(self, dtype: str) -> Any:
        """Return the same function in another dtype."""
        if dtype == self.info.dtype:
            return self
        cast = self._call("cast")(dtype)
        is_nameless = isinstance(cast, FunctionSubject) and not cast.named
        return cast.rename(self.info.name) if is_nameless else cast

    def variant(self, name: str) -> Any:
        """Return the same function in another form."""
        return self._call("variant")(name)

    def __getattr__(self, name: str) -> Any:
        calls = self.__dict__.get("_calls", {})
        if name in calls:
            return self._capture_step if name == "capture_step" else calls[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _capture_step(
        self, state: Held, ids: NDArray, points: Sequence[str] | None = None, **options: Any
    ) -> tuple[dict[str, NDArray], Held]:
        """Return intermediate results of one step, and the next state."""
        seen, after = self._calls["capture_step"](state.state, ids, points, **options)
        return seen, Held(after, state.length_B + _real(ids, options))

    def _call(self, name: str) -> Callable[..., Any]:
        if name not in self._calls:
            raise CrosscheckError(f"{self.info.name}: no {name}= was given to from_functions.")
        return self._calls[name]


def from_functions(
    full: Callable[..., Any],
    init: Callable[..., Any] | None = None,
    step: Callable[..., Any] | None = None,
    **caps: Any,
) -> FunctionSubject:
    """Return a subject made of plain callables, numpy in and numpy out.

    full(ids) -> logits [B, T, V]; init(batch, capacity) -> state; step(state, ids) ->
    (logits, state). Options that the signatures name (mask, count, positions, visible, encoder)
    become capabilities; so does each further callable given by its protocol name
    (`rollback=`, `gather=`, `fork=`, `kv=`, ...). A capability given as a truth value is declared
    or taken back (`chunk=False`). Everything else is a field of `SubjectInfo`.

    Raises:
        CrosscheckError: Only one of init and step, or a name that means nothing here.
    """
    if (init is None) != (step is None):
        given, lacking = ("step", "init") if init is None else ("init", "step")
        raise CrosscheckError(f"from_functions: {given} is given without {lacking}. Give both.")
    calls = {"full": full, "init": init, "step": step}
    calls |= {k: v for k, v in caps.items() if callable(v)}
    given = {k: f for k, f in calls.items() if f is not None}
    facts, flags = _split({k: v for k, v in caps.items() if not callable(v)})
    declared = (_inferred(given) | {k for k, on in flags.items() if on}) - {
        k for k, on in flags.items() if not on
    }
    if not {"dtype", "vocab_size"} <= facts.keys():
        sample = np.asarray(full(np.zeros((1, 2), np.int32)))
        facts = {"dtype": str(sample.dtype), "vocab_size": sample.shape[-1]} | facts
    named = {"name": getattr(full, "__qualname__", "functions"), "framework": "numpy"} | facts
    made = FunctionSubject(SubjectInfo(**named, capabilities=frozenset(declared)), given)
    made.named = "name" in facts
    return made


def _split(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Return the fields of the info, and the capabilities that are declared or taken back."""
    known = {f.name for f in fields(SubjectInfo)} - {"capabilities"}
    for name, value in values.items():
        if name not in known and not (name in CAPABILITIES and isinstance(value, bool)):
            raise CrosscheckError(
                f"from_functions: {name} is {value!r}, expected a callable, a capability with True "
                f"or False, or one of {', '.join(sorted(known))}."
            )
    facts = {k: v for k, v in values.items() if k in known}
    return facts, {k: v for k, v in values.items() if k not in known}


def _inferred(calls: dict[str, Callable[..., Any]]) -> set[str]:
    declared = {need for name, need in METHODS.items() if name in calls}
    heard = _names(calls["full"])
    if "step" in calls:
        declared |= {"cache", "chunk"}
        heard = heard & _names(calls["step"]) | (heard & _names(calls["init"]))
    for option, needs in OPTIONS.items():
        if option in heard:
            declared.update(needs)
    if "cast" in calls:
        declared |= {"f64", "f32"}
    return declared


def _names(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _positional(function: Callable[..., Any]) -> int:
    """Return how many of (batch, capacity) a user's init takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return min(2, sum(p.kind in kinds for p in parameters))


def _real(ids: NDArray, options: dict[str, Any]) -> NDArray | int:
    """Return how many of the tokens fed are real, in each row."""
    if options.get("mask") is not None:
        return np.asarray(options["mask"]).astype(bool).sum(1)
    return options["count"] if options.get("count") is not None else ids.shape[1]
