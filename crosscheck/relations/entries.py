"""What a cache holds, brought into the order of the text: the same for rings, pages and buffers.

Letters: B rows, T positions, S slots, K key/value heads, H head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.relations.registry import Sides
from crosscheck.subjects.protocol import SubjectInfo, describe, window_of
from crosscheck.tolerance import bounded


@dataclass(frozen=True)
class Entries:
    """Copies of keys and values by position.

    Attributes:
        points: `k.i` and `v.i`, [B, T, K, H]; zeros where nothing is held.
        held: layer -> bool [B, T].
    """

    points: Mapping[str, NDArray]
    held: Mapping[int, NDArray]

    def take(self, rows: Sequence[int]) -> "Entries":
        """Return the entries of these rows."""
        points = {name: x[list(rows)] for name, x in self.points.items()}
        return Entries(points, {layer: x[list(rows)] for layer, x in self.held.items()})


def entries(subject: Any, state: Any, tokens: int) -> Entries:
    """Return what the layers hold at the first positions; nothing where the subject can't tell."""
    info = describe(subject)
    points: dict[str, NDArray] = {}
    held: dict[int, NDArray] = {}
    if "kv" in info.capabilities:
        for layer in range(info.num_layers):
            points |= _layer(subject.kv(state, layer), layer, tokens, held)
    return Entries(points, held)


def _layer(kv: Any, layer: int, tokens: int, held: dict[int, NDArray]) -> dict[str, NDArray]:
    valid_BS = np.asarray(kv.valid_BS) & (np.asarray(kv.position_BS) < tokens)
    rows, slots = np.nonzero(valid_BS)
    at = np.asarray(kv.position_BS)[rows, slots]
    held[layer] = np.zeros((len(valid_BS), tokens), bool)
    held[layer][rows, at] = True
    points = {}
    for name, stored in (("k", kv.keys_BSKH), ("v", kv.values_BSKH)):
        stored = np.asarray(stored)
        placed = np.zeros((len(stored), tokens, *stored.shape[2:]), stored.dtype)
        placed[rows, at] = stored[rows, slots]
        points[f"{name}.{layer}"] = placed
    return points


def pair(
    left: Entries, right: Entries, info: SubjectInfo, length: int
) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Return both sides' points, with what a window may have evicted on one side left out.

    Args:
        left: Entries of the candidate.
        right: Entries of the reference; what it does not hold is not compared.
        info: The candidate's, for its windows.
        length: Tokens of a row on the left side; position p may be gone once p <= length - window.
    """
    lefts, rights = {}, {}
    for name, right_BT in right.points.items():
        if name not in left.points:
            continue
        layer = int(name.partition(".")[2])
        gone_BT = ~right.held[layer] | (~left.held[layer] & _may_be_gone(info, layer, left, length))
        left_BT = left.points[name].copy()
        if left_BT.shape == right_BT.shape:
            left_BT[gone_BT] = right_BT[gone_BT]
        lefts[name], rights[name] = left_BT, right_BT
    return lefts, rights


def _may_be_gone(info: SubjectInfo, layer: int, left: Entries, length: int) -> NDArray:
    position_T = np.arange(left.held[layer].shape[1])
    if not info.windows:
        return np.broadcast_to(True, left.held[layer].shape)
    window = window_of(info, layer)
    gone_T = position_T <= (length - window if window else -1)
    return np.broadcast_to(gone_T, left.held[layer].shape)


def loose(candidate: Any, reference: Any, sides: Sides, *, exact_right: bool = False) -> Sides:
    """Return the sides; where a quantized candidate may differ, they are held to its bound.

    In float64 a quantized cache that gives one function for every cut of a text owes that function
    exactly, to itself and to others that compute it too. Below, rounding moves numbers across the
    edges of codes. Keys and values stay where their bound is known, in units that make it that of
    the logits.

    Args:
        candidate: The subject of the left side.
        reference: That of the right side.
        sides: What is to be compared.
        exact_right: Whether the right side comes from `full`, which for others than such caches is
            exact; else both err.
    """
    if "quant" not in describe(candidate).capabilities:
        return sides
    is_one_function = is_invariant(candidate) and is_invariant(reference)
    if is_one_function and sides.left["logits"].dtype == np.float64:
        return sides
    bounds = bound_of(candidate)
    eps = bounds["logits"]
    units = {
        name: eps / bounds[name] if name in bounds else 1.0
        for name in sides.left
        if name in bounds or not name.startswith(("k.", "v."))
    }
    left, right = (
        {k: side[k] * unit for k, unit in units.items()} for side in (sides.left, sides.right)
    )
    err = 1 if exact_right and not is_invariant(reference) else 2
    return replace(sides, left=left, right=right, level=bounded(eps * err))


def is_invariant(subject: Any) -> bool:
    """Return whether a subject's codes give one function for every cut of a text."""
    return "quant_invariant" in describe(subject).capabilities


def bound_of(subject: Any) -> dict[str, float]:
    """Return a quantized subject's bounds by point."""
    bound = subject.quant_bound()
    return dict(bound) if isinstance(bound, Mapping) else {"logits": float(bound)}
