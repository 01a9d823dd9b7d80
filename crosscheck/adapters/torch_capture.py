"""Intermediate results of a torch decoder by canonical name, through forward hooks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_tools import to_numpy, to_torch

ATTENTION = ("attention", "attn")
FEED_FORWARD = ("mlp", "feedforward", "feed_forward", "moe", "ffn", "intermediate")
# Behind a point's name: what goes into that module, not what comes out of it.
IN = ".in"
NORMS = ("norm", "ln_f", "ln", "layer_norm")


def blocks(model: Any) -> tuple[str, Any] | None:
    """Return the list of decoder blocks with its name: the longest one that holds attentions."""
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ == "ModuleList" and any(_part(b, ATTENTION) for b in module)
    ]
    return max(lists, key=lambda pair: len(pair[1]), default=None)


def attention(block: Any) -> Any:
    """Return the attention of a block; None where no child is named so."""
    return _part(block, ATTENTION)


def embedding(model: Any) -> Any:
    """Return the table of token embeddings: what the model says, or the first one it has."""
    if hasattr(model, "get_input_embeddings"):
        return model.get_input_embeddings()
    return next((m for m in model.modules() if type(m).__name__ == "Embedding"), None)


def points(model: Any) -> dict[str, Any]:
    """Return canonical name -> the module whose output it is, in the forward's order."""
    found = {} if embedding(model) is None else {"embed": embedding(model)}
    home = blocks(model)
    if home is None:
        return found
    for i, block in enumerate(home[1]):
        parts = {"attn": _part(block, ATTENTION), "mlp": _part(block, FEED_FORWARD)}
        found |= {f"layers.{i}.{k}": m for k, m in parts.items() if m is not None}
        found[f"layers.{i}.resid"] = block
    parent = model.get_submodule(home[0].rpartition(".")[0]) if "." in home[0] else model
    norms = [m for name, m in parent.named_children() if _is_norm(name)]
    if norms:
        found["norm"] = norms[-1]
    return found


@contextmanager
def tapped(
    model: Any, wanted: Sequence[str] | None, given: Mapping[str, NDArray] | None = None
) -> Iterator[dict[str, Any]]:
    """Collect points while the model runs: outputs, and inputs (`layers.0.attn.in`).

    Args:
        model: Whose modules.
        wanted: Names; None for all outputs.
        given: Name -> [B, T, ...], what takes the place of the model's own value there.
    """
    given = given or {}
    taps: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    handles = []
    for name, module in points(model).items():
        for point in (name, name + IN):
            if point in given or (point == name if wanted is None else point in wanted):
                keep = _Hooks(taps, seen, point, given.get(point))
                handles.append(
                    module.register_forward_hook(keep.output)
                    if point == name
                    else module.register_forward_pre_hook(keep.input, with_kwargs=True)
                )
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()
        # A module that runs twice in one forward has no one result.
        for point, times in seen.items():
            if times > 1:
                taps.pop(point, None)


def ordered(
    taps: dict[str, Any], wanted: Sequence[str] | None, shape: Sequence[int]
) -> dict[str, NDArray]:
    """Return the taps that are [B, T, ...], in the order in which they were computed."""
    rows, new = shape
    named: dict[str, NDArray] = {}
    for name, value in taps.items():
        if value.shape[:2] != (rows, new) and value.shape[:1] == (rows * new,):
            value = value.reshape(rows, new, *value.shape[1:])
        if value.shape[:2] == (rows, new) and (wanted is None or name in wanted):
            named[name] = value
    return named


@dataclass(frozen=True)
class _Hooks:
    """The hooks of one point."""

    taps: dict[str, Any]
    seen: Counter[str]
    point: str
    given: NDArray | None

    def output(self, _module: Any, _arguments: Any, out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        new = self._kept(first)
        if new is first:
            return None
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def input(self, _module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # The stream is the first array of real numbers, by place or by name.
        for i, value in enumerate(arguments):
            if _is_real(value):
                return (*arguments[:i], self._kept(value), *arguments[i + 1 :]), named
        for key, value in named.items():
            if _is_real(value):
                return arguments, named | {key: self._kept(value)}
        return None

    def _kept(self, value: Any) -> Any:
        if not hasattr(value, "detach"):
            return value
        self.seen[self.point] += 1
        self.taps[self.point] = np.asarray(to_numpy(value))
        if self.given is None:
            return value
        return to_torch(np.asarray(self.given), like=value).reshape(value.shape)


def _is_real(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point() and value.ndim >= 2


def _part(block: Any, words: Sequence[str]) -> Any:
    """Return the block's child whose class or name says that it is this part."""
    for name, child in block.named_children():
        names = (name.lower(), type(child).__name__.lower())
        if _is_norm(names[0]) or "norm" in names[1] or "dropout" in names[1]:
            continue
        if any(word in text for word in words for text in names):
            return child
    return None


def _is_norm(name: str) -> bool:
    name = name.lower()
    return "norm" in name or name in NORMS or name.startswith("ln_")
