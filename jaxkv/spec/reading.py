"""Weights read ahead: one thread reads and dequantizes while another packs what it has."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import numpy as np

from jaxkv.spec.checkpoint import Weights

# Tensors read before they are asked for, at most: what they take is memory beside the model's.
AHEAD = 8
# Below so many numbers in all a thread costs more than it saves.
_LEAST_NUMBERS = 1 << 22


@contextmanager
def reading(
    arrays: Mapping[str, np.ndarray], *, least_numbers: int = _LEAST_NUMBERS
) -> Iterator[Callable[[str], np.ndarray]]:
    """Yield a function that gives an array by its name, lazy ones read ahead in their order.

    Asked for in any order, each name gives what the mapping gives, and raises what it raises.

    Args:
        arrays: Read ahead if it is a checkpoint's `Weights`, asked in the caller's thread if it is
            another mapping, of which nobody knows whether it may be read by two.
        least_numbers: Of all arrays together, from which on a thread is started.

    Cost: `AHEAD` arrays held beside the one asked for.
    """
    is_small = isinstance(arrays, Weights) and least_numbers > sum(
        math.prod(shape) for shape in arrays.shapes.values()
    )
    if is_small or not isinstance(arrays, Weights):
        yield lambda name: np.asarray(arrays[name])
        return
    with ThreadPoolExecutor(1) as thread:
        taken: set[str] = set()
        following = (name for name in arrays if name not in taken)
        held: dict[str, Future[np.ndarray]] = {}

        def fill() -> None:
            for name in islice(following, AHEAD - len(held)):
                held[name] = thread.submit(arrays.__getitem__, name)

        def read(name: str) -> np.ndarray:
            fill()
            found = held.pop(name, None)
            taken.add(name)
            fill()
            return np.asarray(arrays[name] if found is None else found.result())

        yield read
