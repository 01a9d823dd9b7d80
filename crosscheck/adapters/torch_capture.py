"""Intermediate results of a torch decoder by canonical name, through forward hooks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_tools import to_numpy

ATTENTION = ("attention", "attn")
FEED_FORWARD = ("mlp", "feedforward", "feed_forward", "moe", "ffn", "intermediate")
NORMS = ("norm", "ln_f", "ln", "layer_norm")


def blocks(model: Any) -> tuple[str, Any] | None:
    """Return the list of decoder blocks with its name: the longest one that holds attentions."""
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ == "ModuleList" and any(_part(b, ATTENTION) for b in module)
    ]
    return max(lists, key=lambda pair: len(pair[1]), default=None)


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
def tapped(model: Any, wanted: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Collect the outputs of the wanted points while the model runs."""
    taps: dict[str, Any] = {}
    handles = [
        module.register_forward_hook(_keeper(taps, name))
        for name, module in points(model).items()
        if wanted is None or name in wanted
    ]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


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


def _keeper(taps: dict[str, Any], name: str) -> Any:
    def keep(_module: Any, _arguments: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if hasattr(out, "detach"):
            taps[name] = np.asarray(to_numpy(out))

    return keep


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
