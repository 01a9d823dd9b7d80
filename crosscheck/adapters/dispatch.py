"""Which adapter an object needs, told by its own class, without importing a framework."""

from typing import Any

from crosscheck.errors import CrosscheckError
from crosscheck.subjects.functions import from_functions


def adapt(obj: Any, **hints: Any) -> Any:
    """Return a subject for a model of any adapted kind; a subject is returned as it is.

    Kinds: a causal language model of transformers (hints: cache, cache_options, gather), any
    torch `nn.Module`, a flax NNX module, a flax Linen module with `variables=`, a callable, or a
    mapping of callables for `from_functions`. Hints for all: name, notes, documented.

    Raises:
        CrosscheckError: No adapter takes it.
    """
    if hasattr(obj, "info") and hasattr(obj, "full"):
        return obj
    kind = kind_of(obj)
    if kind == "transformers":
        from crosscheck.adapters.hf_load import adapt_model

        return adapt_model(obj, **hints)
    if kind == "torch":
        from crosscheck.adapters.torch_module import adapt_module

        return adapt_module(obj, **hints)
    if kind == "nnx":
        from crosscheck.adapters.flax_nnx import adapt_nnx

        return adapt_nnx(obj, **hints)
    if kind == "linen":
        from crosscheck.adapters.flax_linen import adapt_linen

        return adapt_linen(obj, **hints)
    if isinstance(obj, dict) and callable(obj.get("full")):
        return from_functions(**obj, **hints)
    if callable(obj):
        return from_functions(obj, **hints)
    raise CrosscheckError(
        f"adapt: obj is a {type(obj).__module__}.{type(obj).__qualname__}, expected a subject, a "
        "transformers causal LM, a torch nn.Module, a flax NNX or Linen module, a callable, or a "
        "dict of callables. Use from_functions for anything else."
    )


def kind_of(obj: Any) -> str | None:
    """Return the framework whose base class this object has, by the names of its classes."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(obj).__mro__}
    if "transformers.modeling_utils.PreTrainedModel" in names:
        return "transformers"
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if "flax.nnx.module.Module" in names or "flax.nnx.pytreelib.Pytree" in names:
        return "nnx"
    if "flax.linen.module.Module" in names:
        return "linen"
    return None
