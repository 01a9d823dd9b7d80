"""A transformers causal LM as a subject: from an object, a directory, or a family's name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosscheck.adapters.hf import CausalLM
from crosscheck.adapters.hf_state import Setup
from crosscheck.adapters.torch_tools import amplify as torch_amplify
from crosscheck.adapters.torch_tools import torch_module
from crosscheck.errors import CrosscheckError
from crosscheck.subjects.amplify import seed_of
from crosscheck.subjects.protocol import Documented

QUANTIZED = "a quantized cache rounds keys and values, so that cached and uncached logits differ"
SHARED = "a quantized cache rounds by scales that may span the batch, so that rows are not alone"
GATHERS = ("reorder_cache", "batch_select_indices")
INEXACT = (
    "cache.full",
    "cache.partition",
    "cache.prefix",
    "cache.program",
    "ragged.continue",
    "pad.left",
    "pad.right",
)


def adapt_model(
    model: Any,
    *,
    cache: Any = None,
    cache_options: Mapping[str, Any] | None = None,
    gather: str | None = None,
    amplify: int | None = None,
    name: str = "",
    notes: Sequence[str] = (),
    documented: Mapping[str, Any] | None = None,
) -> CausalLM:
    """Return a subject for a model of transformers.

    Args:
        model: A causal language model; it is used as it is, in eval mode.
        cache: "dynamic", "static", "sliding", "quantized", the name of a cache class, a class, or
            a callable; it is given what its signature names of config, max_cache_len, batch_size,
            dtype, device and model. None: the model makes its own.
        cache_options: Further arguments of the cache.
        gather: "reorder_cache" or "batch_select_indices"; None for what the cache's layers offer.
        amplify: Seed of amplified weights, written into the model; None keeps its weights.
        name: For reports.
        notes: Sentences for the report.
        documented: relation -> (sentence, source) of a difference that the package states.
    """
    if gather not in (None, *GATHERS):
        raise CrosscheckError(f"adapt: gather is {gather!r}, expected one of {', '.join(GATHERS)}.")
    told = {k: documentation(v) for k, v in (documented or {}).items()}
    if cache == "quantized":
        source = "transformers QuantizedCache, class docstring"
        rounded = {k: Documented(QUANTIZED, source) for k in INEXACT}
        told = rounded | {"batch.rows": Documented(SHARED, source)} | told
    seed = seed_of(amplify)
    made = () if seed is None else (torch_amplify(model, seed),)
    notes = (*notes, *made, *_chosen(model))
    setup = Setup(cache, cache_options or {}, gather, name or _name(model), notes, told)
    return CausalLM(model, setup)


def load_directory(path: str, *, dtype: str = "", attn: str = "", **hints: Any) -> CausalLM:
    """Return a subject for a checkpoint in a directory; nothing is downloaded."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": floating(f"hf:{path}", dtype) if dtype else "auto"}
    if attn:
        options["attn_implementation"] = attn
    try:
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        if not Path(path).exists():
            said = (
                "no such folder, nor a model that was downloaded before. Give the folder of a "
                "checkpoint, with its config.json."
            )
        raise CrosscheckError(f"load_subject: hf:{path}: {said}") from None
    hints = {"name": f"hf:{path}"} | hints
    return adapt_model(model, **hints)


def floating(what: str, dtype: str) -> Any:
    """Return torch's dtype of a name.

    Raises:
        CrosscheckError: torch has none of that name that models compute in.
    """
    found = getattr(torch_module(), dtype, None)
    if not getattr(found, "is_floating_point", False):
        raise CrosscheckError(
            f"load_subject: {what}: dtype is {dtype!r}, expected float64, float32, bfloat16 or "
            "float16."
        )
    return found


def documentation(value: Any) -> Documented:
    """Return a documented difference, given as one or as (sentence, source)."""
    return value if isinstance(value, Documented) else Documented(*value)


def _chosen(model: Any) -> tuple[str, ...]:
    """Return what was chosen in the model's config, for the report."""
    attn = getattr(model.config, "_attn_implementation", None)
    notes = [f"attention: {attn}"] if attn else []
    experts = getattr(model.config, "_experts_implementation", None)
    if experts not in (None, "eager") and hasattr(model, "set_experts_implementation"):
        # Grouped expert kernels have no float64; the eager loop computes the same function.
        try:
            model.set_experts_implementation("eager")
            notes.append("experts: eager")
        except (ValueError, KeyError, AttributeError):
            notes.append(f"experts: {experts}")
    return tuple(notes)


def _name(model: Any) -> str:
    return f"{type(model).__name__} ({getattr(model.config, 'model_type', 'transformers')})"
