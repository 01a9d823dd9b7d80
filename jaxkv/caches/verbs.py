"""The verbs of a step: `init`, `begin`, `attend`, `commit`, and the host's `check`.

What they owe is the same for all layouts; how a layout does it stands in its own file.
Letters: B rows, T new tokens, S slots, N query heads, K key/value heads, H head width.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import ops
from jaxkv.caches import cross
from jaxkv.caches.layouts import (
    LAYOUTS,
    keeper_for,
    keeper_of,
    layout_for,
    module_of,
    site_options,
)
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.spec.config import Attention, Encoder, ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError
from jaxkv.spec.whole import check_whole


def init(
    config: ModelConfig | Encoder,
    *,
    batch: int,
    capacity: int,
    dtype: Any,
    slack: int = 0,
    layout: str = "contiguous",
    source_capacity: int | None = None,
    beams: int = 1,
    **options: Any,
) -> Cache:
    """Return an empty cache for a model's layers.

    Args:
        config: The model's sizes; layers may differ.
        batch: Rows.
        capacity: Tokens that a row can hold, at most config.max_positions.
        dtype: Of keys and values; the model's own.
        slack: By how many tokens a ring can be rolled back once it has wrapped.
        layout: "contiguous" or "paged" for all layers; "window" for a ring in each layer that has
            a window, contiguous in the others.
        source_capacity: Tokens of the text that each row's encoder reads, for the cross attentions
            of a model that has one; `capacity` unless given.
        beams: How many rows, one after the other, share one source. `gather` moves rows among
            those only, and leaves the source where it is.
        **options: What a layout alone understands. Paged: `page_size`, tokens of a page, 16 unless
            given; `pool_pages`, pages that all rows together can hold, as many as `batch` rows of
            `capacity` tokens need unless given. One more is kept as the trash page.

    Raises:
        RequestError: An option that the layout does not know; batch, capacity or page_size below
            1, slack below 0, an unknown layout, or float64 while JAX has it off.
        CapacityError: capacity exceeds the model's positions, or a row's pages the pool.

    Cost: allocates the buffers; see each layout's `init_site`.
    """
    _check_init(config, batch=batch, capacity=capacity, slack=slack, layout=layout)
    check_options("init", layout, options)
    wide = _source_slots(config, batch, capacity, source_capacity, beams)
    dtype = check_dtype("init", dtype)
    sizes: dict[str, int] = {"batch": batch, "capacity": capacity}
    of_sites = {name: options[name] for name in site_options(layout) if name in options}
    of_keeper = {name: value for name, value in options.items() if name not in of_sites}
    shared = keeper_for(layout).init_shared(**sizes, **of_keeper)

    def site(attention: Attention) -> Any:
        kind = layout_for(attention, layout)
        own = of_sites if kind is LAYOUTS[layout] else {}
        return kind.init_site(attention, **sizes, dtype=dtype, slack=slack, shared=shared, **own)

    sites: list[Any] = []
    for layer in config.layers:
        sites.append(site(layer.attention))
        if layer.cross is not None:
            sites.append(
                cross.init_site(layer.cross, sources=batch // beams, capacity=wide, dtype=dtype)
            )
    # Three arrays, not one thrice: a cache that is donated must not hold a buffer twice.
    length_B, peak_B, overflow_B = (jnp.zeros((batch,), jnp.int32) for _ in range(3))
    return Cache(length_B, peak_B, overflow_B, shared, tuple(sites), capacity)


def begin(
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    T: int,
    fresh: bool = False,
    rectangular: bool = False,
    clean: bool = False,
) -> tuple[Cache, Step]:
    """Return the cache and the plan of one step: T tokens a row, count_B[b] of them real.

    A row without room for its tokens, in its capacity or in what all rows share, is refused whole:
    it writes nothing, its outputs are zeros, and the cache that `commit` returns counts the tokens
    too many in overflow_B. From then on the row takes no tokens until it is rolled back or reset.

    Args:
        cache: As the last step left it.
        count_B: int32, 0 to T for each row.
        T: Tokens in the step's arrays.
        fresh: Promise that every row is empty. A row that is not is refused.
        rectangular: Promise that all rows with tokens have one length and one count, and no other
            row is longer.
        clean: Promise that slots without a token hold finite numbers, as in a cache that `init` or
            `scrub` returned and every one that followed; spares a pass over the values.

    Raises:
        ShapeError: count_B is not one number a row, or a site does not fit the cache.
    """
    if count_B.shape != cache.length_B.shape:
        rows = cache.length_B.shape[0]
        raise ShapeError(
            f"begin: count_B has shape {count_B.shape}, expected ({rows},), one count a row."
        )
    for i, site in enumerate(cache.sites):
        if (fault := module_of(site).fault(site, cache)) is not None:
            raise ShapeError(f"begin: sites[{i}] {fault}. Make the cache with `init`.")
    count_B = count_B.astype(jnp.int32)
    length_B = cache.length_B
    # The room first: length + count could exceed what int32 holds.
    past_capacity_B = count_B - (cache.capacity - length_B)
    beyond_B = jnp.maximum(past_capacity_B, jnp.maximum(count_B - T, -count_B))
    if fresh:
        beyond_B = jnp.where(length_B > 0, jnp.maximum(count_B, 1), beyond_B)
    excess_B = jnp.maximum(beyond_B, 0)
    is_open_B = (excess_B == 0) & (cache.overflow_B == 0)
    taken_B = jnp.where(is_open_B, count_B, 0)
    keeper = keeper_of(cache.shared)
    shared, short_B = keeper.begin_shared(cache.shared, length_B, taken_B, T=T)
    taken_B, excess_B = jnp.where(short_B > 0, 0, taken_B), excess_B + short_B
    place_T = jnp.arange(T, dtype=jnp.int32)
    step = Step(
        length_B=length_B,
        count_B=taken_B,
        excess_B=excess_B,
        position_BT=length_B[:, None] + place_T,
        valid_BT=place_T < taken_B[:, None],
        shared=shared,
        fresh=fresh,
        rectangular=rectangular,
        clean=clean,
    )
    return cache, step


def attend(
    site: Any,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N _"], Any]:
    """Return the attention output of T new tokens and the site with their keys and values written.

    The layout's own `attend` does it; this one checks that the site was made for these arrays.
    Outputs of tokens beyond a row's count are zeros.

    Widths are the layout's affair: keys and values may differ in theirs, and a layout that stored
    what it reads before (cross-attention) is given None for both.

    Raises:
        ShapeError: Batch, K, H, dtype or window differ from the site.
        Unsupported: No keys or values for a layout that stores the step's own.
    """
    layout = module_of(site)
    layout.check(site, k_BTKH, v_BTKH, rule=rule)
    out, site = layout.attend(
        site, step, q_BTNH, k_BTKH, v_BTKH, rule=rule, rotate=rotate, bias=bias, expand=expand
    )
    return jnp.where(step.valid_BT[:, :, None, None], out, 0), site


def commit(cache: Cache, step: Step, sites: tuple[Any, ...]) -> Cache:
    """Return the cache after a step: the only place where length_B grows, by the step's count_B.

    Raises:
        ShapeError: The number of sites is not the cache's.
    """
    if len(sites) != len(cache.sites):
        raise ShapeError(
            f"commit: {len(sites)} sites, the cache has {len(cache.sites)}, one per attention."
        )
    length_B = step.length_B + step.count_B
    return Cache(
        length_B=length_B,
        peak_B=jnp.maximum(cache.peak_B, length_B),
        overflow_B=cache.overflow_B + step.excess_B,
        shared=keeper_of(step.shared).settle(step.shared),
        sites=sites,
        capacity=cache.capacity,
    )


def check(cache: Cache) -> None:
    """Raise if a row was refused: the host's look at what a compiled program could only mark.

    Raises:
        CapacityError: A row's overflow_B is above 0.
    """
    for row, tokens in enumerate(cache.overflow_B.tolist()):
        if tokens > 0:
            held = int(cache.length_B[row])
            reason = keeper_of(cache.shared).explain(cache.shared, row)
            if reason is not None:
                raise CapacityError(
                    f"check: row {row} was refused {tokens} tokens with {held} held: {reason}"
                )
            raise CapacityError(
                f"check: row {row} was refused, {tokens} tokens too many for capacity "
                f"{cache.capacity} with {held} held. "
                f"Make the cache with capacity {cache.capacity + tokens}, or feed {tokens} fewer."
            )


def check_dtype(function: str, dtype: Any) -> jnp.dtype:
    """Return the dtype that JAX will really use for the one asked for.

    Raises:
        RequestError: It is no floating dtype, or float64 while JAX computes in float32.
    """
    try:
        wanted = jnp.dtype(dtype)
    except TypeError:
        raise RequestError(
            f"{function}: dtype is {dtype}, expected a floating one such as float32."
        ) from None
    if not jnp.issubdtype(wanted, jnp.floating):
        raise RequestError(
            f"{function}: dtype is {wanted.name}, expected a floating one such as float32."
        )
    if wanted == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise RequestError(
            f"{function}: dtype is float64, but JAX computes in float32 now. Set "
            "JAX_ENABLE_X64=1 before starting Python."
        )
    return wanted


def check_options(function: str, layout: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that the layout does not know.

    Args:
        function: For messages: whose argument it is.
        layout: One of `LAYOUTS`.
        options: By name.

    Raises:
        RequestError: There is one.
    """
    known = (*keeper_for(layout).OPTIONS, *site_options(layout))
    for name in sorted(options):
        if name not in known:
            raise RequestError(
                f"{function}: layout {layout!r} has no option {name!r}. Leave it out."
            )


def _check_init(
    config: ModelConfig | Encoder, *, batch: int, capacity: int, slack: int, layout: str
) -> None:
    if layout not in LAYOUTS:
        raise RequestError(f"init: layout is {layout!r}, expected one of {', '.join(LAYOUTS)}.")
    for name, value, least in (("batch", batch, 1), ("capacity", capacity, 1), ("slack", slack, 0)):
        check_whole("init", name, value, least=least)
    if capacity > config.max_positions:
        over = capacity - config.max_positions
        raise CapacityError(
            f"init: capacity {capacity} exceeds the model's {config.max_positions} "
            f"positions. Lower it by {over}."
        )


def _source_slots(
    config: ModelConfig | Encoder, batch: int, capacity: int, source: int | None, beams: int
) -> int:
    encoder = config.encoder if isinstance(config, ModelConfig) else None
    if encoder is None:
        if source is not None or beams != 1:
            raise RequestError(
                f"init: source_capacity is {source} and beams {beams}, expected neither: the model "
                "has no encoder. Leave them out."
            )
        return 0
    slots = min(capacity, encoder.max_positions) if source is None else source
    if not 1 <= slots <= encoder.max_positions:
        raise CapacityError(
            f"init: source_capacity is {slots}, expected 1 to {encoder.max_positions}, the "
            "encoder's positions."
        )
    if beams < 1 or batch % beams:
        raise RequestError(
            f"init: beams is {beams}, expected a divisor of batch {batch}. Give each source as "
            "many rows."
        )
    return slots
