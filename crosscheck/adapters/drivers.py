"""A few lines that drive a bare model with numpy and its framework alone, for reproducers.

They answer as a subject does, without its checks: the calls that come are known to be in order.
"""

from collections.abc import Mapping
from typing import Any

TRANSFORMERS = """
import copy, numpy as np, torch
class Drive:
    def __init__(self, model):
        self.model = model.eval()
    def call(self, ids, real=None, positions=None, **cache):
        ids, given = np.array(ids, np.int64), {{}}
        if real is not None:
            given["attention_mask"] = np.array(real, np.int64)
            {counted}
        if positions is not None:
            given["position_ids"] = np.array(positions, np.int64) + {offset}
        given = {{k: torch.as_tensor(v) for k, v in given.items()}}
        with torch.no_grad():
            return self.model(input_ids=torch.as_tensor(ids), **given, **cache)
    def full(self, ids, mask=None, positions=None):
        return self.call(ids, mask, positions, use_cache=False).logits.numpy()
    def init(self, batch, capacity):
        return [{make}, np.ones((batch, 0), bool)]
    def step(self, state, ids, mask=None, positions=None):
        new = np.ones(np.shape(ids), bool) if mask is None else mask
        cache, real = state[0], np.concatenate([state[1], new], 1)
        told = None if real.all() else real
        out = self.call(ids, told, positions, use_cache=True, {keyword}=cache)
        return out.logits.numpy(), [out.{keyword}, real]
    def rollback(self, state, length):
        n = int(np.max(length))
        state[0].crop(n - state[1].shape[1])
        return [state[0], state[1][:, :n]]
    def gather(self, state, rows):
        state[0].{verb}(torch.as_tensor(rows))
        return [state[0], state[1][rows]]
    def cast(self, dtype):
        return Drive(copy.deepcopy(self.model).to(getattr(torch, dtype)))
"""
COUNTED = "positions = np.maximum(np.cumsum(real, 1) - 1, 0)[:, -ids.shape[1]:]"
OWN = "ids = np.where(real[:, -ids.shape[1]:], ids, {pad})"
TORCH = """
import copy, numpy as np, torch
class Drive:
    def __init__(self, model):
        self.model = model.eval()
    def full(self, ids):
        ids = torch.as_tensor(np.array(ids, np.int64))
        with torch.no_grad():
            out = self.model{full}
        return (out[0] if isinstance(out, tuple) else getattr(out, "logits", out)).numpy()
    def init(self, batch, capacity):
        return [{make}, 0]
    def step(self, state, ids):
        (cache, start), ids = state, torch.as_tensor(np.array(ids, np.int64))
        with torch.no_grad():
            out = self.model{step}
        logits, cache = out if isinstance(out, tuple) else (out, cache)
        return logits.numpy(), [cache, start + ids.shape[1]]
    def cast(self, dtype):
        return Drive(copy.deepcopy(self.model).to(getattr(torch, dtype)))
"""


def of_transformers(
    *, make: str, keyword: str, verb: str, offset: int, own_pad: int | None
) -> tuple[str, ...]:
    """Return the lines for a causal LM of transformers.

    Args:
        make: An expression for an empty cache, of `self.model`, `batch` and `capacity`.
        keyword: Under which name the model takes and gives its cache.
        verb: The cache's verb that reorders rows.
        offset: Added to explicit positions.
        own_pad: The padding id, where the model counts positions itself.
    """
    counted = COUNTED if own_pad is None else OWN.format(pad=own_pad)
    text = TRANSFORMERS.format(
        make=make, keyword=keyword, verb=verb, offset=offset, counted=counted
    )
    return tuple(text.strip("\n").splitlines())


def of_torch(*, full: str, step: str, make: str) -> tuple[str, ...]:
    """Return the lines for an nn.Module; the arguments are written out."""
    return tuple(TORCH.format(full=full, step=step, make=make).strip("\n").splitlines())


def written(positional: tuple[str, ...], named: Mapping[str, str], fixed: Mapping[str, Any]) -> str:
    """Return the arguments of a call as source text, in brackets."""
    parts = [*positional, *(f"{k}={v}" for k, v in named.items())]
    return f"({', '.join([*parts, *(f'{k}={v!r}' for k, v in fixed.items())])})"
