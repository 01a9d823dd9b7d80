"""How far an uncached forward is from itself where only rounding may differ.

Three questions to the same function, none of which uses a cache: shorter texts (is it
causal?), other batches (do rows mix?), and weights nudged by s and by 2s. A function of float64
answers the last with twice the difference; a float32 cast inside rounds both and shows.
Letters: B rows, T positions, V vocabulary.
"""

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.judge import distance, largest
from crosscheck.subjects.protocol import describe

# The response to a nudge of this size is linear to 1e-16 x gain^2, and flips float32 roundings.
NUDGE = 1e-8
# In float64 the linear response leaves about 1e-14; a float32 inside leaves about 1e-8 and more.
LINEAR = 1e-11
# Above this no rounding is at work: the smallest true fault seen in the wild is 1e-3.
ROUNDING = 1e-4

Full = Callable[[NDArray], NDArray]


@dataclass(frozen=True)
class Noise:
    """How an uncached forward differs from itself, relative to its largest |logit|.

    Attributes:
        future: The largest change of a logit by the absence of later tokens.
        future_at: The first position that such a change reached; None without one.
        rows: The largest change of a row's logits by its neighbours.
        repeat: Whether a second call gave the same bits.
        finite: Whether every logit is finite.
        scale: The largest |logit|.
    """

    future: float
    future_at: int | None
    rows: float
    repeat: bool
    finite: bool
    scale: float


def self_noise(full: Full, ids_BT: NDArray) -> Noise:
    """Return how `full` differs from itself on one batch of texts."""
    base_BTV = np.asarray(full(ids_BT))
    repeat = _same_bits(base_BTV, np.asarray(full(ids_BT)))
    scale = largest(base_BTV)
    future, future_at = 0.0, None
    tokens = ids_BT.shape[1]
    for shown in sorted({tokens // 2, tokens - 1} - {0, tokens}):
        other_BTV = np.asarray(full(ids_BT[:, :shown]))
        error_BT = _relative(other_BTV, base_BTV[:, :shown], scale).max(axis=-1)
        worst = float(error_BT.max())
        if worst > ROUNDING and (future_at is None or worst > future):
            future_at = int(np.argmax((error_BT > ROUNDING).any(axis=0)))
        future = max(future, worst)
    rows = max(
        (float(_relative(a, b, scale).max()) for a, b in _batches(full, ids_BT, base_BTV)),
        default=0.0,
    )
    finite = bool(np.isfinite(base_BTV).all())
    return Noise(future, future_at, rows, repeat, finite, scale)


def _batches(full: Full, ids_BT: NDArray, base_BTV: NDArray) -> Iterator[tuple[NDArray, NDArray]]:
    # The same number of rows throughout: a compiled subject compiles no second program for this.
    if len(ids_BT) > 1:
        yield np.asarray(full(ids_BT[::-1].copy())), base_BTV[::-1]
        alone_BT = np.repeat(ids_BT[1:2], len(ids_BT), axis=0)
        yield np.asarray(full(alone_BT))[:1], base_BTV[1:2]


@dataclass(frozen=True)
class Linearity:
    """What nudged weights showed.

    Attributes:
        floor: What is left of a linear response, relative to the largest |logit|.
        point: The first point of the forward where it is too much for float64; "" for none, or
            where nothing can be captured.
        jumps: Whether the response jumps, as a choice among tied scores does.
    """

    floor: float
    point: str
    jumps: bool


def linearity(
    subject: Any, full: Callable[[Any], Full], ids_BT: NDArray, *, seed: int, captures: bool
) -> Linearity | None:
    """Return how linear a subject's response to nudged weights is; None where it can't tell.

    Args:
        subject: With `nudged`, if it can tell.
        full: subject -> its uncached forward.
        ids_BT: The texts.
        seed: Of the nudge.
        captures: Whether the subject's points may be asked for.
    """
    nudged = getattr(subject, "nudged", None)
    if nudged is None:
        return None

    def answers(ask: Callable[[Any], Any]) -> list[Any]:
        found = [ask(subject)]
        for scale in (NUDGE, 2 * NUDGE):
            found.append(ask(nudged(scale, seed)))
            # One copy of the weights at a time: hooks refer to their model, which then stays.
            if describe(subject).weights_hash is None:
                gc.collect()
        return found

    left_BT = _curvature(*answers(lambda each: np.asarray(full(each)(ids_BT))))
    # A router or an indexer with tied scores turns a nudge into a jump at single positions.
    jumps = bool((left_BT > ROUNDING).any())
    calm = left_BT[left_BT <= ROUNDING]
    floor = float(calm.max()) if calm.size else math.inf
    point = ""
    if captures and floor > LINEAR:
        taps = answers(lambda each: each.capture(ids_BT))
        for name in taps[0]:
            if _curvature(*(np.asarray(tap[name]) for tap in taps)).max() > LINEAR:
                point = name
                break
    return Linearity(floor, point, jumps)


def narrow_points(subject: Any, ids_BT: NDArray) -> list[str]:
    """Return the captured points that are narrower than float64."""
    return [
        name
        for name, array in subject.capture(ids_BT).items()
        if np.asarray(array).dtype.name in ("float32", "float16", "bfloat16")
    ]


def _curvature(base: NDArray, once: NDArray, twice: NDArray) -> NDArray[np.float64]:
    base, once, twice = (x.astype(np.float64) for x in (base, once, twice))
    with np.errstate(all="ignore"):
        left = np.abs((twice - base) - 2 * (once - base)) / max(largest(base), 1e-300)
    left = np.where(np.isfinite(left), left, np.inf)
    return left.reshape(*left.shape[:2], -1).max(axis=-1)


def _relative(a: NDArray, b: NDArray, scale: float) -> NDArray[np.float64]:
    if a.shape != b.shape:
        return np.full(b.shape, np.inf)
    error = distance(a, b) / max(scale, 1e-300)
    return np.where(np.isnan(error), np.inf, error)


def _same_bits(a: NDArray, b: NDArray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
