"""Record what a relation asks of a subject, so that the same calls can be written out as a program.

A taped subject answers as the one inside; each state remembers the call that made it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

STATE_RESULTS = frozenset({"init", "rollback", "gather", "fork", "grow", "permute_pages"})


@dataclass(frozen=True)
class Call:
    """One call, with its arrays.

    Attributes:
        number: Its place on the tape.
        model: Which subject was asked: 0 the candidate, 1 the reference.
        form: Variants and casts on the way from that subject, as (method, argument).
        method: `full`, `init`, `step`, `rollback`, ...
        state: The number of the call that made the state given; None without one.
        arguments: The rest, in order.
        options: Keyword arguments.
        result: Logits or another array; None where there is only a state.
        raised: The error, where the call ended in one.
    """

    number: int
    model: int
    form: tuple[tuple[str, str], ...]
    method: str
    state: int | None
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any = None
    raised: Exception | None = None


@dataclass(frozen=True)
class Held:
    """A state, and the call that made it."""

    number: int
    inner: Any


@dataclass
class Tape:
    """All calls of one run, in order."""

    calls: list[Call] = field(default_factory=list)

    def subject(self, inner: Any, model: int) -> "TapedSubject":
        """Return a subject that answers as the inner one and leaves its calls here."""
        return TapedSubject(inner, self, model, ())

    def find(
        self, vector: NDArray, *, row: int, position: int
    ) -> tuple[Call, tuple[int, int]] | None:
        """Return the call whose logits hold this vector, and its row and place; None if none does.

        Of several, the one that fed as many tokens as the position says, in that row, with the
        fewest calls before it: equal tokens may give equal logits in other places too.
        """
        found = [
            (
                (
                    self.fed(call, at) != position + 1,
                    at[0] != row,
                    len(self.needed([call.number])),
                    call.result.size,
                ),
                call,
                at,
            )
            for call in self.calls
            for at in _places(call.result, vector)
        ]
        if not found:
            return None
        _, call, at = min(found, key=lambda item: item[0])
        return call, at

    def fed(self, call: Call, at: tuple[int, int]) -> int:
        """Return how many tokens a row had been fed when the logits at a place came."""
        return at[1] + 1 + (0 if call.state is None else self._held(call.state))

    def _held(self, number: int) -> int:
        call = self.calls[number]
        if call.method == "rollback":
            return int(np.max(call.arguments[0]))
        before = 0 if call.state is None else self._held(call.state)
        return before + (np.shape(call.arguments[0])[1] if call.method == "step" else 0)

    def needed(self, numbers: Iterable[int]) -> list[Call]:
        """Return the calls that the named ones stand on, in order."""
        seen: set[int] = set()
        for start in numbers:
            number: int | None = start
            while number is not None and number not in seen:
                seen.add(number)
                number = self.calls[number].state
        return [self.calls[number] for number in sorted(seen)]


class TapedSubject:
    """A subject whose every call is recorded."""

    def __init__(self, inner: Any, tape: Tape, model: int, form: tuple[tuple[str, str], ...]):
        self._inner, self._tape, self._model, self._form = inner, tape, model, form

    @property
    def info(self) -> Any:
        """Return the info of the subject inside."""
        return self._inner.info

    def cast(self, dtype: str) -> "TapedSubject":
        """Return the inner subject's cast, taped."""
        return self._derived("cast", dtype)

    def variant(self, name: str) -> "TapedSubject":
        """Return the inner subject's variant, taped."""
        return self._derived("variant", name)

    def _derived(self, method: str, name: str) -> "TapedSubject":
        inner = getattr(self._inner, method)(name)
        return TapedSubject(inner, self._tape, self._model, (*self._form, (method, name)))

    def __getattr__(self, method: str) -> Any:
        attribute = getattr(self._inner, method)
        if not callable(attribute):
            return attribute
        return lambda *arguments, **options: self._call(method, attribute, arguments, options)

    def _call(self, method: str, function: Any, arguments: tuple, options: dict) -> Any:
        held = [each for each in arguments if isinstance(each, Held)]
        plain = tuple(each for each in arguments if not isinstance(each, Held))
        given = [each.inner if isinstance(each, Held) else each for each in arguments]
        call = Call(
            number=len(self._tape.calls),
            model=self._model,
            form=self._form,
            method=method,
            state=held[0].number if held else None,
            arguments=tuple(_copied(each) for each in plain),
            options={name: _copied(value) for name, value in options.items()},
        )
        self._tape.calls.append(call)
        try:
            answer = function(*given, **options)
        except Exception as error:
            self._tape.calls[call.number] = replace(call, raised=error)
            raise
        if method in STATE_RESULTS:
            return Held(call.number, answer)
        result, state = answer if method == "step" else (answer, None)
        self._tape.calls[call.number] = replace(call, result=_copied(result))
        return (result, Held(call.number, state)) if method == "step" else result


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _places(result: Any, vector: NDArray) -> Iterator[tuple[int, int]]:
    if not isinstance(result, np.ndarray) or result.ndim != vector.ndim + 2:
        return
    if result.shape[2:] != vector.shape:
        return
    same = (result == vector) | ((result != result) & (vector != vector))
    for row, place in np.argwhere(same.reshape(*result.shape[:2], -1).all(axis=-1)):
        yield int(row), int(place)
