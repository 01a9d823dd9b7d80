"""What of a speculative request is checked on the host before anything is compiled or run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxkv.spec.errors import CapacityError, RequestError, Unsupported
from torchkv.caches import Cache
from torchkv.caches.layouts import module_of
from torchkv.drafts import PromptLookup
from torchkv.model import Decoder
from torchkv.planning import Plan


def check_k(k: int, capacity: int) -> None:
    """Refuse a number of drafts that is none, or that the cache has no room for.

    Raises:
        RequestError: k is below 1, or no whole number.
        CapacityError: A step of k + 1 tokens is longer than the cache.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise RequestError(f"speculate: k is {k!r}, expected a whole number of at least 1.")
    if k + 1 > capacity:
        raise CapacityError(
            f"speculate: k is {k}, so that a step takes {k + 1} tokens, capacity {capacity}. Lower "
            f"k by {k + 1 - capacity} or raise capacity."
        )


def check_alone(model: Any) -> None:
    """Refuse a model with an encoder.

    Raises:
        Unsupported: It has one.
    """
    if isinstance(model, Decoder) and model.config.encoder is not None:
        raise Unsupported(
            "speculate: the model has an encoder, beside which drafts are not verified. Use "
            "`generate`."
        )


def check_model(model: Decoder, found: Plan) -> None:
    """Refuse a text for which a step of several tokens is not that many steps of one.

    Raises:
        Unsupported: The model's rotary speeds follow a text's length from which on this one goes.
    """
    config = model.config
    ropes = [layer.attention.rope for layer in config.layers]
    steady = min(
        (
            getattr(rope.scaling, "original_max_positions", 0)
            for rope in ropes
            if rope is not None and rope.follows_length
        ),
        default=None,
    )
    longest = int((found.held_B + found.count_B + found.budget_B).max())
    if steady is not None and longest > steady:
        raise Unsupported(
            f"speculate: the text may have {longest} tokens, and from {steady} on the model's "
            "rotary speeds follow its length, so that a step of drafts is another function. Lower "
            f"max_new_tokens by {longest - steady}, or use `generate`."
        )


def check_draft(
    model: Decoder, draft: Decoder | PromptLookup | str, found: Plan, *, has_cache: bool
) -> None:
    """Refuse a draft model that cannot draft this request.

    Raises:
        RequestError: It is no model of this twin, has another vocabulary, an encoder or training
            on, or lacks what a given cache holds; or "mtp" of a model without such a module.
        CapacityError: The texts are longer than its positions.
    """
    if isinstance(draft, PromptLookup):
        return
    if isinstance(draft, str):
        _check_mtp(model, draft, has_cache=has_cache)
        return
    if not isinstance(draft, Decoder):
        raise RequestError(
            f"speculate: draft is a {type(draft).__module__}.{type(draft).__qualname__}, expected "
            f"{Decoder.__module__}.Decoder or PromptLookup. Was it made by the other twin?"
        )
    own, others = model.config.vocab_size, draft.config.vocab_size
    if others != own:
        raise RequestError(
            f"speculate: the draft's vocabulary has {others} tokens, the model's {own}. Take a "
            "draft with the model's own tokenizer."
        )
    if draft.training or draft.config.encoder is not None:
        what = "training=True" if draft.training else "an encoder"
        raise RequestError(f"speculate: the draft has {what}, expected a decoder that does not.")
    if has_cache:
        raise RequestError(
            "speculate: cache is given, expected None beside a draft model: its own cache lacks "
            "what this one holds. Pass the whole texts, or draft=PromptLookup()."
        )
    need = int((found.count_B + np.maximum(found.budget_B, 1) - 1).max())
    room = draft.config.max_positions
    if need > room:
        raise CapacityError(
            f"speculate: the text takes {need} slots, the draft model has {room} positions. "
            f"Shorten prompt and max_new_tokens by {need - room} in all, or take another draft."
        )


def _check_mtp(model: Decoder, draft: str, *, has_cache: bool) -> None:
    if draft != "mtp":
        raise RequestError(
            f"speculate: draft is {draft!r}, expected a Decoder, PromptLookup or 'mtp'."
        )
    if not model.config.has_mtp:
        raise RequestError(
            "speculate: draft is 'mtp', but the model holds no module that predicts further "
            "tokens. Open its checkpoint with open_source(..., mtp=True), or take another draft."
        )
    if has_cache:
        raise RequestError(
            "speculate: cache is given, expected None beside draft='mtp': the module lacks what "
            "this one holds. Pass the whole texts, or draft=PromptLookup()."
        )


def check_layout(layout: str, options: Mapping[str, Any]) -> None:
    """Refuse a layout that cannot take back rejected drafts exactly.

    Raises:
        Unsupported: It drops tokens, or reads a step's own tokens in another way than earlier ones.
    """
    if layout.startswith("sinks") or layout == "uncached":
        raise Unsupported(
            f"speculate: the {layout} layout cannot take back rejected drafts. Use contiguous, "
            "paged, window or quantized."
        )
    if options.get("order") == "kivi":
        raise Unsupported(
            "speculate: quantized in the order 'kivi' gives another result for tokens verified "
            "in one step. Use the order 'chunk_invariant'."
        )


def check_cache(cache: Cache, k: int) -> None:
    """Refuse a cache whose layers cannot take back k rejected drafts.

    Raises:
        RequestError: A ring has less slack than k + 1.
        Unsupported: See `check_layout`.
    """
    for site in cache.sites:
        kind = module_of(site).__name__.rpartition(".")[2]
        check_layout(kind, {"order": getattr(getattr(site, "form", None), "order", None)})
    for site in cache.sites:
        slack = getattr(site, "slack", None)
        if slack is not None and slack < k + 1:
            raise RequestError(
                f"speculate: the cache has slack {slack}, expected at least k + 1 = {k + 1} to "
                f"take back rejected drafts. Make it with slack={k + 1}, or lower k by "
                f"{k + 1 - slack}."
            )
