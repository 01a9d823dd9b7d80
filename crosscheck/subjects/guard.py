"""A subject between gloves: whatever it does wrong becomes a typed error with one sentence.

Letters: B rows, T tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import (
    ComparisonError,
    CrosscheckError,
    InputChanged,
    NotRepeatable,
    SubjectRaised,
    WrongResult,
)
from crosscheck.judge import dtype_kind
from crosscheck.subjects.protocol import KV, SubjectInfo, describe
from crosscheck.subjects.worker import Worker

STATES = ("init", "step", "length", "rollback", "gather", "fork", "grow", "permute_pages")
READS = ("full", "kv", "with_kv", "capture", "capture_step", "quant_bound")
CALLS = frozenset((*STATES, *READS, "speculate", "prefix_store"))
SUBJECTS = frozenset({"cast", "variant", "nudged"})
TIMEOUT_SECONDS = 120.0
Seconds = float | Callable[[], float]


class Guarded:
    """A subject whose calls are timed, whose inputs and results are checked."""

    def __init__(
        self, subject: Any, *, timeout_seconds: Seconds, left: Seconds, worker: Worker
    ) -> None:
        self.subject = subject
        self.timeout_seconds, self.left = timeout_seconds, left
        self._worker = worker
        self.info: SubjectInfo = describe(subject)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["subject"], name)
        if name in CALLS:
            return lambda *given, **options: self._checked(name, value, given, options)
        if name in SUBJECTS:
            return lambda *given, **options: self._derived(name, value, given, options)
        return value

    def _derived(self, name: str, call: Callable[..., Any], given: Any, options: Any) -> Any:
        other = self._timed(f"{self.info.name}.{name}{_said(given)}", call, given, options)
        if other is self.subject:
            return self
        return Guarded(
            other, timeout_seconds=self.timeout_seconds, left=self.left, worker=self._worker
        )

    def _checked(self, name: str, call: Callable[..., Any], given: Any, options: Any) -> Any:
        what = f"{self.info.name}.{name}{_said(given)}"
        before = [(a, a.copy()) for a in _arrays(given, options)]
        result = self._timed(what, call, given, options)
        for array, copy in before:
            if not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"):
                raise InputChanged(f"{what}: wrote into its argument {list(array.shape)}.")
        check = CHECKS.get(name)
        if check is not None:
            check(what, result, given, self.info)
        return result

    def _timed(self, what: str, call: Callable[..., Any], given: Any, options: Any) -> Any:
        own, left = (x() if callable(x) else x for x in (self.timeout_seconds, self.left))
        try:
            return self._worker.run(
                lambda: call(*given, **options), min(own, left), what, of_budget=left < own
            )
        except CrosscheckError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            text = " ".join(str(error).split())[:200].rstrip(". ")
            said = f"{type(error).__name__}: {text}" if text else type(error).__name__
            raise SubjectRaised(f"{what}: raised {said}.") from error


def guarded(
    subject: Any, *, timeout_seconds: Seconds = TIMEOUT_SECONDS, left: Seconds = math.inf
) -> Guarded:
    """Return the subject behind checks; everything else of it passes through.

    Each call may raise, beside the subject's own `CrosscheckError`s: `SubjectRaised`,
    `WrongResult` (shape, dtype, kind of result), `InputChanged`, `TimedOut`, `BudgetEnded`. After
    a call that did not answer no further one is made.

    Args:
        subject: Whose calls, casts and variants are guarded.
        timeout_seconds: After which a call hangs; a number, or a function asked before each call.
        left: What is left of a budget, likewise: a call that it cuts off did not hang.
    """
    if isinstance(subject, Guarded):
        return subject
    return Guarded(subject, timeout_seconds=timeout_seconds, left=left, worker=Worker())


def assert_repeatable(subject: Any, ids: NDArray) -> None:
    """Raise unless two uncached forwards of the same texts give the same bits.

    Raises:
        NotRepeatable: They differ; the sentence says where first.
    """
    first, second = (np.asarray(subject.full(ids.copy())) for _ in range(2))
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if not same.all():
        row, position, _ = (int(i) for i in np.argwhere(~same)[0])
        worst = float(np.abs(first - second).max())
        raise NotRepeatable(
            f"{describe(subject).name}.full: the same texts twice differ by {worst:.1e}, first at "
            f"row {row}, position {position}. Is it in evaluation mode?"
        )


def _check_logits(what: str, logits: Any, given: Any, info: SubjectInfo) -> None:
    ids = np.asarray(given[-1])
    if not isinstance(logits, np.ndarray):
        raise WrongResult(f"{what}: returned a {type(logits).__name__}, expected numpy logits.")
    wanted = (*ids.shape, info.vocab_size)
    if logits.shape != wanted:
        raise WrongResult(
            f"{what}: returned shape {list(logits.shape)}, expected {list(wanted)} [B, T, V]."
        )
    try:
        kind = dtype_kind(logits.dtype)
    except ComparisonError:
        kind = str(logits.dtype)
    if kind != "float":
        raise WrongResult(f"{what}: returned dtype {logits.dtype}, expected a float dtype.")


def _check_step(what: str, result: Any, given: Any, info: SubjectInfo) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise WrongResult(
            f"{what}: returned a {type(result).__name__}, expected a pair (logits, state)."
        )
    _check_logits(what, result[0], given, info)


def _check_length(what: str, length: Any, _given: Any, _info: SubjectInfo) -> None:
    array = np.asarray(length)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise WrongResult(
            f"{what}: returned {array.dtype} {list(array.shape)}, expected one integer a row."
        )


def _check_kv(what: str, kv: Any, _given: Any, _info: SubjectInfo) -> None:
    parts = [getattr(kv, f, None) for f in KV.__dataclass_fields__]
    arrays = [p for p in parts if p is not None]
    if len(arrays) < len(parts):
        raise WrongResult(f"{what}: returned a {type(kv).__name__}, expected a KV.")
    heads = {tuple(np.shape(p)[:2]) for p in arrays}
    if len(heads) != 1:
        raise WrongResult(f"{what}: keys, values, positions and valid are {sorted(heads)} [B, S].")


CHECKS: Mapping[str, Callable[[str, Any, Any, SubjectInfo], None]] = {
    "full": _check_logits,
    "step": _check_step,
    "length": _check_length,
    "kv": _check_kv,
}


def _arrays(given: Any, options: Mapping[str, Any]) -> list[NDArray]:
    return [v for v in (*given, *options.values()) if isinstance(v, np.ndarray)]


def _said(given: Any) -> str:
    """Return the arguments in a few characters: shapes of arrays, plain values, no states."""
    parts = []
    for value in given:
        if isinstance(value, np.ndarray):
            parts.append("x".join(map(str, value.shape)))
        elif isinstance(value, (int, float, str)):
            parts.append(repr(value))
    return f"({', '.join(parts)})"
