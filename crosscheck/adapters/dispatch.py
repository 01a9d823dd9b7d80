"""Which adapter an object needs, told by its own class, without importing a framework."""

import importlib
from collections.abc import Mapping
from typing import Any

from crosscheck.errors import CrosscheckError
from crosscheck.subjects.functions import from_functions

# Base class -> kind; a package's own class stands before the framework's that it is made of.
KINDS: Mapping[str, str] = {
    "transformers.modeling_utils.PreTrainedModel": "transformers",
    "litgpt.model.GPT": "litgpt",
    "x_transformers.x_transformers.TransformerWrapper": "x_transformers",
    "keras_hub.src.models.causal_lm.CausalLM": "keras_hub",
    "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession": "onnx",
    "torchtune.modules.transformer.TransformerDecoder": "torchtune",
    "mlx.nn.layers.base.Module": "mlx",
    "torch.nn.modules.module.Module": "torch",
    "flax.nnx.module.Module": "nnx",
    "flax.nnx.pytreelib.Pytree": "nnx",
    "flax.linen.module.Module": "linen",
}
ADAPTERS: Mapping[str, tuple[str, str]] = {
    "transformers": ("hf_load", "adapt_model"),
    "litgpt": ("litgpt", "adapt_litgpt"),
    "x_transformers": ("x_transformers", "adapt_x_transformers"),
    "keras_hub": ("keras_hub", "adapt_keras_hub"),
    "onnx": ("onnx", "adapt_onnx"),
    "torchtune": ("torchtune", "adapt_torchtune"),
    "mlx": ("mlx_lm", "adapt_mlx"),
    "torch": ("torch_module", "adapt_module"),
    "nnx": ("flax_nnx", "adapt_nnx"),
    "linen": ("flax_linen", "adapt_linen"),
}


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
    if kind is not None:
        module, function = ADAPTERS[kind]
        found = importlib.import_module(f"crosscheck.adapters.{module}")
        return getattr(found, function)(obj, **hints)
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
    return next((kind for name, kind in KINDS.items() if name in names), None)
