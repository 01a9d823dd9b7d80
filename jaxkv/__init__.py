"""A functional JAX decoder whose KV cache is an immutable value.

Importing this package imports neither jax nor flax.
"""

import importlib
from typing import Any

_HOME = {
    "Cache": "jaxkv.caches",
    "Decoder": "jaxkv.model",
    "Generated": "jaxkv.generation",
    "ModelConfig": "jaxkv.spec.config",
    "PrefixStore": "jaxkv.caches.prefix",
    "PromptLookup": "jaxkv.drafts",
    "Sampled": "jaxkv.samples",
    "Searched": "jaxkv.searching",
    "Subject": "jaxkv.subject",
    "beam_search": "jaxkv.searching",
    "encode": "jaxkv.encoder",
    "forward": "jaxkv.model",
    "from_arrays": "jaxkv.weights",
    "generate": "jaxkv.generation",
    "identity_of": "jaxkv.identity",
    "open_source": "jaxkv.spec.source",
    "params_of": "jaxkv.model",
    "plan": "jaxkv.planning",
    "plan_sampling": "jaxkv.settings",
    "preset": "jaxkv.spec.families",
    "random_arrays": "jaxkv.spec.random_weights",
    "sample_many": "jaxkv.samples",
    "score": "jaxkv.scoring",
    "speculate": "jaxkv.speculative",
    "stream": "jaxkv.streaming",
    "to_arrays": "jaxkv.weights",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll] names are resolved by __getattr__


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it, imported on first use."""
    if name not in _HOME:
        raise AttributeError(
            f"module 'jaxkv' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
