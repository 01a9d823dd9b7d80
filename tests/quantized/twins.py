"""Both twins' quantizers behind numpy, jitted where the twin compiles."""

import importlib
from functools import cache, partial

import numpy as np

BITS, DTYPES = (2, 4), ("float32", "float64")


@cache
def codes_of(twin):
    """Return the twin's quantizers; they take numpy arrays and a dtype."""
    return Codes(twin)


class Codes:
    """Quantizers of one twin."""

    def __init__(self, twin):
        self.twin = twin
        self._module = importlib.import_module(f"{twin}.caches.codes")

    def array(self, x, dtype=None):
        if self.twin == "torchkv":
            import torch

            x = torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
            return x if dtype is None else x.to(getattr(torch, dtype))
        import jax.numpy as jnp

        return jnp.asarray(x, dtype)

    def __getattr__(self, name):
        return partial(self._call, name)

    def _call(self, name, *arrays, dtype=None, **static):
        function = getattr(self._module, name)
        if self.twin == "jaxkv":
            import jax

            function = jax.jit(function, static_argnames=tuple(static))
        return function(*(self.array(x, dtype) for x in arrays), **static)


def to_numpy(x):
    """Return an array of either twin as numpy has it; narrow floats as float32."""
    if hasattr(x, "detach"):
        import torch

        narrow = x.dtype in (torch.bfloat16, torch.float8_e4m3fn)
        return (x.float() if narrow else x).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.name in ("bfloat16", "float8_e4m3fn") else x
