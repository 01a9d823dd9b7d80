"""What every torch adapter needs: arrays in and out, dtypes, copies, hashes, nudged weights."""

import copy
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.subjects.amplify import NOTE, amplified

DTYPES = ("float64", "float32", "float16", "bfloat16")
HASH_LIMIT_BYTES = 64 * 2**20
# Numbers drawn for one weight; a larger one repeats them, which is as good a direction.
_DRAWS = 2**20


def torch_module() -> Any:
    """Return torch, which whoever brings a torch model has imported."""
    import torch

    return torch


def to_numpy(tensor: Any) -> NDArray:
    """Return a copy as numpy; bfloat16, which numpy lacks, becomes float32 exactly."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return tensor.numpy().copy()


def to_torch(array: Any, *, like: Any = None, dtype: Any = None) -> Any:
    """Return a tensor that shares no memory with the array."""
    torch = torch_module()
    device = None if like is None else like.device
    dtype = dtype if dtype is not None or like is None else like.dtype
    return torch.as_tensor(np.array(array), dtype=dtype, device=device)


def dtype_of(module: Any) -> str:
    """Return the dtype of the first floating-point weight, as numpy names it."""
    for weight in module.parameters():
        if weight.is_floating_point():
            return str(weight.dtype).removeprefix("torch.")
    return "float32"


def cast_copy(module: Any, dtype: str) -> Any:
    """Return a copy of a module whose weights and buffers are in another dtype."""
    if dtype not in DTYPES:
        raise CrosscheckError(f"cast: dtype is {dtype!r}, expected one of {', '.join(DTYPES)}.")
    torch = torch_module()
    # Weights are converted one by one: a whole copy in the old dtype would stand beside them.
    done: dict[int, Any] = {}
    for weight in module.parameters():
        if weight.is_floating_point():
            cast = weight.detach().to(getattr(torch, dtype), copy=True)
            done[id(weight)] = torch.nn.Parameter(cast, requires_grad=weight.requires_grad)
    return copy.deepcopy(module, done).to(getattr(torch, dtype)).eval()


def nudged_copy(module: Any, scale: float, seed: int) -> Any:
    """Return a copy of a module whose float weights are each times 1 + scale * normal noise."""
    torch = torch_module()
    rng = np.random.default_rng(seed)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for weight in twin.parameters():
            if weight.is_floating_point():
                drawn = rng.standard_normal(min(weight.numel(), _DRAWS))
                noise = to_torch(np.resize(drawn, tuple(weight.shape)), like=weight)
                weight.addcmul_(weight, noise, value=scale)
    return twin


def weights_hash(module: Any) -> str | None:
    """Return a short hash of names and weights; None where that would take long."""
    weights = dict(module.named_parameters())
    if sum(w.numel() * w.element_size() for w in weights.values()) > HASH_LIMIT_BYTES:
        return None
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(to_numpy(weight).tobytes())
    return digest.hexdigest()[:16]


def named_arrays(module: Any) -> dict[str, NDArray]:
    """Return the weights by name; tied weights appear once, under their first name."""
    return {name: to_numpy(weight) for name, weight in module.named_parameters()}


def with_arrays(module: Any, arrays: dict[str, NDArray]) -> Any:
    """Return a copy of a module with arrays in the weights of these names."""
    twin = copy.deepcopy(module)
    put_arrays(twin, arrays)
    return twin


def put_arrays(module: Any, arrays: dict[str, NDArray]) -> None:
    """Write arrays into the weights of these names, in place."""
    with torch_module().no_grad():
        for name, weight in module.named_parameters():
            if name in arrays:
                weight.copy_(to_torch(arrays[name], like=weight))


def amplify(module: Any, seed: int) -> str:
    """Write amplified weights into a module, and return the note that says so."""
    put_arrays(module, amplified(named_arrays(module), seed=seed))
    return NOTE.format(seed=seed)


@contextmanager
def quiet() -> Iterator[None]:
    """No gradients, and no threads whose order of summation could differ from run to run."""
    torch = torch_module()
    with torch.no_grad():
        yield


def is_torch_module(obj: Any) -> bool:
    """Return whether this is an nn.Module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)
