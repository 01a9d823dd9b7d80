"""Caches that are plain containers of arrays: rows and tokens found by comparing shapes.

Letters: B rows, S slots, K key/value heads, H head width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import KV


@dataclass(frozen=True)
class Axes:
    """Of each array of a cache, in order: which axis is rows, which one is tokens.

    Attributes:
        rows: Axis that follows the batch; None for an array without rows.
        tokens: Axis that follows the tokens fed; None where the size is fixed.
    """

    rows: tuple[int | None, ...]
    tokens: tuple[int | None, ...]

    @property
    def grows(self) -> bool:
        """Whether every array with rows grows with the tokens fed."""
        pairs = zip(self.rows, self.tokens, strict=True)
        return all(tokens is not None for rows, tokens in pairs if rows is not None)


def is_array(value: Any) -> bool:
    """Return whether this is an array of any framework."""
    return hasattr(value, "shape") and hasattr(value, "ndim") and hasattr(value, "dtype")


def leaves(tree: Any) -> list[Any] | None:
    """Return the arrays of nested containers in order; None where something else is among them."""
    found: list[Any] = []

    def visit(node: Any) -> bool:
        if is_array(node):
            found.append(node)
            return True
        if node is None or isinstance(node, (int, float, str, bool)):
            return True
        children = _children(node)
        return children is not None and all(map(visit, children))

    return found if visit(tree) else None


def rebuilt(tree: Any, change: Callable[[int, Any], Any]) -> Any:
    """Return the containers with array i replaced by change(i, array)."""
    counter = iter(range(10**6))

    def visit(node: Any) -> Any:
        if is_array(node):
            return change(next(counter), node)
        if isinstance(node, dict):
            return type(node)({k: visit(v) for k, v in node.items()})
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*map(visit, node))
        if isinstance(node, (tuple, list)):
            return type(node)(map(visit, node))
        if is_dataclass(node) and not isinstance(node, type):
            return replace(node, **{f.name: visit(getattr(node, f.name)) for f in fields(node)})
        return node

    return visit(tree)


def find_axes(make: Callable[[int, int], Any]) -> Axes | None:
    """Return the axes of a cache, from caches of other batches and lengths.

    Args:
        make: (rows, tokens fed) -> a cache.
    """
    trees = [leaves(make(*sizes)) for sizes in ((2, 3), (3, 3), (2, 5))]
    base, taller, longer = trees
    if not base or taller is None or longer is None:
        return None
    if not len(base) == len(taller) == len(longer):
        return None
    rows = tuple(_changed(a, b) for a, b in zip(base, taller, strict=True))
    tokens = tuple(_changed(a, b) for a, b in zip(base, longer, strict=True))
    return None if all(r is None for r in rows) else Axes(rows, tokens)


def gather(tree: Any, axes: Axes, rows: NDArray) -> Any:
    """Return the cache with other rows."""
    return rebuilt(tree, lambda i, array: _along(array, axes.rows[i], rows))


def shorten(tree: Any, axes: Axes, length: int) -> Any:
    """Return the cache with only the first tokens, where it grows."""
    return rebuilt(tree, lambda i, array: _along(array, axes.tokens[i], slice(0, length)))


def layers(tree: Any) -> list[tuple[int, int]] | None:
    """Return the places of keys and values of each layer: pairs of arrays of rank 4, in order."""
    arrays = leaves(tree)
    if not arrays:
        return None
    ranked = [i for i, array in enumerate(arrays) if array.ndim == 4]
    if not ranked or len(ranked) % 2:
        return None
    if isinstance(tree, dict) or (isinstance(tree, (tuple, list)) and len(tree) == 2):
        halves = _by_half(tree, arrays, ranked)
        if halves is not None:
            return halves
    return list(zip(ranked[::2], ranked[1::2], strict=True))


def read_kv(tree: Any, axes: Axes, layer: int, fed: int, numpy: Callable[[Any], NDArray]) -> KV:
    """Return one layer's cache as [B, S, K, H]; slots are in the order of the tokens."""
    pairs = layers(tree) or []
    arrays = leaves(tree) or []
    keys, values = (_to_bskh(numpy(arrays[i]), axes, i) for i in pairs[layer])
    position_BS = np.broadcast_to(np.arange(keys.shape[1]), keys.shape[:2])
    valid_BS = position_BS < fed
    return KV(keys, values, np.where(valid_BS, position_BS, -1), valid_BS)


def write_kv(tree: Any, axes: Axes, layer: int, kv: KV, like: Callable[[NDArray, Any], Any]) -> Any:
    """Return the cache with one layer's keys and values replaced."""
    new = dict(zip((layers(tree) or [])[layer], (kv.keys_BSKH, kv.values_BSKH), strict=True))

    def change(i: int, array: Any) -> Any:
        return like(_from_bskh(new[i], axes, i), array) if i in new else array

    return rebuilt(tree, change)


def _order(axes: Axes, i: int) -> list[int]:
    """Return the axes in the order rows, slots, the two others; slots are where tokens were."""
    rows = axes.rows[i] or 0
    slots = axes.tokens[i]
    slots = slots if slots is not None else (1 if rows != 1 else 2)
    return [rows, slots, *(a for a in range(4) if a not in (rows, slots))]


def _to_bskh(array: NDArray, axes: Axes, i: int) -> NDArray:
    return array.transpose(_order(axes, i))


def _from_bskh(array: NDArray, axes: Axes, i: int) -> NDArray:
    return array.transpose(np.argsort(_order(axes, i)))


def _by_half(tree: Any, arrays: list[Any], ranked: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return the pairs of a cache that keeps all keys first, then all values."""
    parts = list(tree.values()) if isinstance(tree, dict) else list(tree)
    if len(parts) != 2 or any(is_array(p) for p in parts):
        return None
    # Two layers of (keys, values) look alike; only names, or another length, tell them apart.
    if not isinstance(tree, dict) and len(_children(parts[0]) or ()) == 2:
        return None
    first = leaves(parts[0]) or []
    if len(first) != len(arrays) - len(first) or any(
        _children(c) for c in _children(parts[0]) or ()
    ):
        return None
    half = len(ranked) // 2
    return list(zip(ranked[:half], ranked[half:], strict=True))


def _children(node: Any) -> list[Any] | None:
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, (tuple, list)):
        return list(node)
    if is_dataclass(node) and not isinstance(node, type):
        return [getattr(node, f.name) for f in fields(node)]
    return None


def _changed(a: Any, b: Any) -> int | None:
    differ = [i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=False)) if m != n]
    return differ[0] if len(differ) == 1 and a.ndim == b.ndim else None


def _along(array: Any, axis: int | None, index: Any) -> Any:
    return array if axis is None else array[(slice(None),) * axis + (index,)]
