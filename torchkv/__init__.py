"""The PyTorch twin of jaxkv: the same names and results on buffers written in place.

Importing this package does not import torch.
"""

import importlib
from typing import Any

_HOME = {
    "Cache": "torchkv.caches",
    "Decoder": "torchkv.model",
    "Generated": "torchkv.generation",
    "ModelConfig": "jaxkv.spec.config",
    "PrefixStore": "torchkv.caches.prefix",
    "PromptLookup": "torchkv.drafts",
    "Sampled": "torchkv.samples",
    "Searched": "torchkv.searching",
    "Subject": "torchkv.subject",
    "beam_search": "torchkv.searching",
    "encode": "torchkv.encoder",
    "forward": "torchkv.model",
    "from_arrays": "torchkv.weights",
    "generate": "torchkv.generation",
    "identity_of": "torchkv.identity",
    "open_source": "jaxkv.spec.source",
    "params_of": "torchkv.model",
    "plan": "torchkv.planning",
    "plan_sampling": "torchkv.settings",
    "preset": "jaxkv.spec.families",
    "random_arrays": "jaxkv.spec.random_weights",
    "sample_many": "torchkv.samples",
    "score": "torchkv.scoring",
    "speculate": "torchkv.speculative",
    "stream": "torchkv.streaming",
    "to_arrays": "torchkv.weights",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll] resolved by __getattr__


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it, imported on first use."""
    if name not in _HOME:
        raise AttributeError(
            f"module 'torchkv' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
