"""Run one program on a right subject and on a planted one; say what differs first.

Letters: B rows, T tokens, S slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IDS_BT = np.random.default_rng(3).integers(1, 23, (3, 24)).astype(np.int32)
PADS = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], dtype=bool)
Op = tuple[Any, ...]

CHUNKS: tuple[Op, ...] = (("feed", 4), ("feed", 1), ("feed", 4), ("feed", 3), ("feed", 1))
PADDED: tuple[Op, ...] = (("padded", 5), ("feed", 1), ("feed", 3))
BACK: tuple[Op, ...] = (("feed", 9), ("back", 6), ("feed", 1), ("feed", 2), ("feed", 1))
LATE: tuple[Op, ...] = (("feed", 9), ("feed", 3), ("back", 10), ("feed", 1), ("feed", 2))
ORDER: tuple[Op, ...] = (("feed", 6), ("rows", (1, 2, 0)), ("feed", 1), ("feed", 2))
FORKED: tuple[Op, ...] = (("feed", 4), ("fork", 2), ("feed", 1), ("feed", 2))
OVERFULL: tuple[Op, ...] = (("feed", 5), ("feed", 3), ("feed", 4), ("feed", 1))
RAGGED: tuple[Op, ...] = (("ragged", (4, 2, 3)), ("feed", 1), ("feed", 2))


@dataclass(frozen=True)
class First:
    """What differs first, and after which operation.

    Attributes:
        op: Its number.
        length: Whether the length does.
        k_layer: First layer whose keys differ; None where all agree.
        v_layer: First layer whose values differ.
        before: Whether a slot differs that was filled before this operation.
        new: Whether a slot differs that this operation filled.
        logits: Whether the answers of this operation differ.
    """

    op: int
    length: bool
    k_layer: int | None
    v_layer: int | None
    before: bool
    new: bool
    logits: bool


def first_difference(
    right: Any, planted: Any, ops: tuple[Op, ...], room: int | None = None
) -> First | None:
    """Return the first difference between a right subject and a planted one on a program."""
    a, b = right.init(3, None), planted.init(3, room)
    at = 0
    for number, op in enumerate(ops):
        start_B = planted.kv(b, 0).valid_BS.sum(axis=1)
        (logits_a, a, end), (logits_b, b, _) = do(right, a, op, at), do(planted, b, op, at)
        found = compare(right, a, planted, b, number, start_B, logits_a, logits_b)
        if found is not None:
            return found
        at = end
    return None


def do(subject: Any, state: Any, op: Op, at: int) -> tuple[NDArray, Any, int]:
    """Return logits, state and next token of one operation."""
    none = np.zeros((3, 0, 1))
    match op:
        case ("feed", n):
            return (*subject.step(state, IDS_BT[:, at : at + n]), at + n)
        case ("padded", n):
            logits, state = subject.step(state, IDS_BT[:, at : at + n], mask=PADS)
            return np.where(PADS[..., None], logits, 0), state, at + n
        case ("ragged", counts):
            n, real = max(counts), np.arange(max(counts)) < np.array(counts)[:, None]
            logits, state = subject.step(state, IDS_BT[:, at : at + n], count=np.array(counts))
            return np.where(real[..., None], logits, 0), state, at + n
        case ("back", n):
            return none, subject.rollback(state, np.full(3, n)), at
        case ("rows", rows):
            return none, subject.gather(state, rows), at
        case ("fork", n):
            subject.step(subject.fork(state), IDS_BT[:, -n:])
            return none, state, at
    raise AssertionError(op)


def compare(
    right: Any,
    a: Any,
    planted: Any,
    b: Any,
    number: int,
    start_B: NDArray,
    logits_a: NDArray,
    logits_b: NDArray,
) -> First | None:
    """Return how two states and answers differ after one operation; None where they agree."""
    layers: dict[str, int | None] = {"keys_BSKH": None, "values_BSKH": None}
    before = new = False
    for layer in reversed(range(right.info.num_layers)):
        kv_a, kv_b = right.kv(a, layer), planted.kv(b, layer)
        for side in layers:
            for row in range(3):
                x, y = held(kv_a, side, row), held(kv_b, side, row)
                n = min(len(x), len(y))
                slots = np.flatnonzero(~(np.abs(x[:n] - y[:n]) <= 1e-9).all(axis=(1, 2)))
                if slots.size:
                    layers[side] = layer
                    before |= bool(slots[0] < start_B[row])
                    new |= bool(slots[-1] >= start_B[row])
    length = bool((right.length(a) != planted.length(b)).any())
    logits = not np.allclose(logits_a, logits_b, rtol=0, atol=1e-9)
    if not (length or logits or before or new):
        return None
    k, v = layers.values()
    return First(number, length, k, v, before, new, logits)


def held(kv: Any, side: str, row: int) -> NDArray:
    """Return a row's entries in the order of their positions."""
    slots = np.flatnonzero(kv.valid_BS[row])
    slots = slots[np.argsort(kv.position_BS[row, slots], kind="stable")]
    return getattr(kv, side)[row, slots]
