"""A call of `generate` or `stream`, checked on the host and brought to the device.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkv import caches
from jaxkv.caches import Cache
from jaxkv.devices import memory_bytes
from jaxkv.loop import Terms
from jaxkv.model import Decoder
from jaxkv.planning import Plan, plan
from jaxkv.processor_settings import ProcessorSettings, plan_processors
from jaxkv.processors import place
from jaxkv.sampling import Sampler
from jaxkv.settings import Settings, plan_sampling
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, ShapeError
from jaxkv.spec.room import check_room


@dataclass(frozen=True)
class Request:
    """What is asked for, all of it on the host.

    Attributes:
        plan: Prompts, budgets and sizes.
        settings: How tokens are drawn.
        end_ids: Tokens that end a row.
        processing: What texts do to their own logits; None for nothing.
        known: Of each row, prompt tokens that a prefix store knew and the plan lacks; None without
            a store.
    """

    plan: Plan
    settings: Settings
    end_ids: tuple[int, ...]
    processing: ProcessorSettings | None = None
    known: tuple[tuple[int, ...], ...] | None = None


def check(
    function: str,
    model: Decoder,
    prompts: Any,
    *,
    end_ids: int | Sequence[int] | None,
    cache: Cache | None,
    capacity: int | None,
    sampling: dict[str, Any],
    processing: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Request:
    """Return the request, if the model can serve it.

    Args:
        function: For messages: whose arguments these are.
        model: In evaluation mode.
        prompts: See `plan`, as for `asked`.
        end_ids: One, several, or none.
        cache: Earlier tokens; its capacity is the one that counts.
        capacity: Of a cache to be made.
        sampling: See `plan_sampling`.
        processing: See `plan_processors`; None for none.
        **asked: `max_new_tokens`, `mask_BT`, `encoder` and `encoder_mask_BE`.

    Raises:
        RequestError: The model is in training mode, or an argument is out of range.
        CapacityError: The request does not fit.
        ShapeError: The prompts or the cache do not fit the model.
    """
    _check_kinds(function, model, cache)
    if model.training:
        raise RequestError(
            f"{function}: the model has training=True, whose dropout no cache survives. Set "
            "training=False."
        )
    if cache is not None and cache.length_B.shape[0] < 1:
        raise ShapeError(f"{function}: the cache has no rows.")
    vocab_size = model.config.vocab_size
    ends = (end_ids,) if isinstance(end_ids, int | np.integer) else tuple(end_ids or ())
    for token in ends:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"{function}: end_ids holds {token}, expected 0 to {vocab_size - 1}."
            )
    found = plan(
        model.config,
        prompts,
        capacity=capacity if cache is None else cache.capacity,
        held_B=None if cache is None else np.asarray(cache.length_B),
        **asked,
    )
    settings = plan_sampling(vocab_size, found.batch, **sampling)
    processors = plan_processors(vocab_size, found.batch, ends, **(processing or {}))
    return Request(found, settings, ends, processors)


def _check_kinds(function: str, model: Any, cache: Any) -> None:
    for name, value, kind in (("model", model, Decoder), ("cache", cache, Cache)):
        if not isinstance(value, kind) and (name == "model" or value is not None):
            found = f"{type(value).__module__}.{type(value).__qualname__}"
            raise RequestError(
                f"{function}: {name} is a {found}, expected {kind.__module__}.{kind.__name__}. "
                "Was it made by the other twin?"
            )


def check_layout(
    function: str,
    *,
    layout: str,
    page_size: int | None,
    options: Mapping[str, Any] | None,
    positions: int,
) -> None:
    """Refuse a layout that is none, a wrong page size, or options of another layout.

    Args:
        function: For messages.
        layout: By name.
        page_size: None for the default.
        options: What the layout alone understands.
        positions: The model's: no page need be larger.

    Raises:
        RequestError: One of the three.
    """
    if layout not in caches.LAYOUTS:
        raise RequestError(
            f"{function}: layout is {layout!r}, expected one of {', '.join(caches.LAYOUTS)}."
        )
    if page_size is not None and layout != "paged":
        raise RequestError(
            f"{function}: page_size is {page_size}, but layout is {layout!r}. Leave it out, or set "
            "layout='paged'."
        )
    if page_size is not None and page_size > positions:
        raise RequestError(
            f"{function}: page_size is {page_size}, expected at most {positions}, the model's "
            "positions. Lower it."
        )
    caches.check_options(function, layout, options or {})


def new_cache(
    model: Decoder,
    request: Request,
    *,
    slots: int,
    layout: str,
    slack: int,
    page_size: int | None,
    options: Mapping[str, Any] | None,
) -> Cache:
    """Return an empty cache for the request.

    Args:
        model: The decoder.
        request: Its number of rows counts.
        slots: The capacity.
        layout: See `caches.init`, as for `slack`.
        slack: See `caches.init`.
        page_size: Of the layout "paged"; None for its default.
        options: What the layout alone understands; None for its defaults.

    Raises:
        RequestError: See `check_layout` and `caches.init`.
        CapacityError: The cache exceeds the memory.
    """
    asked = {"layout": layout, "page_size": page_size, "options": options}
    check_layout("new_cache", **asked, positions=model.config.max_positions)
    pages = {} if page_size is None else {"page_size": page_size}
    check_room(
        "new_cache",
        f"capacity is {slots}",
        model.config,
        rows=request.plan.batch,
        tokens=slots,
        dtype=str(model.dtype),
        options={"layout": layout, "slack": slack, **pages, **(options or {})},
        room_bytes=memory_bytes(),
        advice="Lower capacity, max_new_tokens or the layout's own sizes, or give fewer prompts",
    )
    sources = request.plan.sources
    wide = {} if sources is None else {"source_capacity": sources.ids_BE.shape[1]}
    form = {
        "batch": request.plan.batch,
        "capacity": slots,
        "dtype": model.dtype,
        "slack": slack,
        "layout": layout,
        **pages,
        **wide,
        **(options or {}),
    }
    static = tuple(form.items())
    try:
        hash(static)
    except TypeError:  # No layout takes such an option: it is refused by its name.
        return caches.init(model.config, **form)
    return _init(model.config, static)


@partial(jax.jit, static_argnums=(0, 1))
def _init(config: ModelConfig, form: tuple[tuple[str, Any], ...]) -> Cache:
    # One program for all layers' buffers, where `caches.init` alone runs one for each.
    return caches.init(config, **dict(form))


def device_arrays(
    request: Request,
) -> tuple[Int[Array, "B T"], Int[Array, " B"], Terms]:
    """Return the prompts, their counts and what each row wants."""
    ends = request.end_ids
    # Padded to a multiple of 4, so that another number of end tokens rarely means another program.
    padded = [*ends, *[-1] * (-len(ends) % 4 or (0 if ends else 4))]
    drawn = request.settings
    sampler = None
    if not drawn.is_greedy:
        sampler = Sampler(
            jnp.asarray(drawn.temperature_B),
            jnp.asarray(drawn.top_k_B),
            jnp.asarray(drawn.tail_B),
            jnp.asarray(drawn.min_p_B),
            jnp.asarray(drawn.seed_B),
        )
    terms = Terms(
        jnp.asarray(request.plan.budget_B),
        jnp.asarray(request.plan.held_B),
        jnp.asarray(padded, jnp.int32),
        sampler,
        request.processing and place(request.processing, request.known),
    )
    return jnp.asarray(request.plan.ids_BT), jnp.asarray(request.plan.count_B), terms


def device_sources(request: Request) -> tuple[Int[Array, "B E"], Int[Array, " B"]] | None:
    """Return the texts for the encoder and their counts; None where there are none."""
    sources = request.plan.sources
    return sources and (jnp.asarray(sources.ids_BE), jnp.asarray(sources.count_B))
