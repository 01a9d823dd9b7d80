"""A subject whose uncached answers are kept: planting asks for the same ones again and again."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOM_BYTES = 64 * 2**20


class Remembered:
    """Passes every call on, and answers `full` from memory where it was asked before.

    For subjects that answer alike each time; the oracle has seen to that.
    """

    def __init__(self, subject: Any) -> None:
        self.inner = subject
        self._answers: dict[tuple[Any, ...], NDArray] = {}
        self._bytes = 0

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return the subject's logits of whole texts, in an array of the caller's own."""
        key = (_key(ids), *((name, _key(value)) for name, value in sorted(options.items())))
        if key not in self._answers:
            self._keep(key, np.array(self.inner.full(ids, **options)))
        return self._answers[key].copy()

    def _keep(self, key: tuple[Any, ...], logits: NDArray) -> None:
        self._bytes += logits.nbytes
        while self._answers and self._bytes > ROOM_BYTES:
            self._bytes -= self._answers.pop(next(iter(self._answers))).nbytes
        self._answers[key] = logits

    def __getattr__(self, name: str) -> Any:
        # Copying asks for attributes before there is an inner subject.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def _key(value: Any) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    return array.shape, array.dtype.str, array.tobytes()
