"""The verbs of a step: `init`, `begin`, `attend`, `commit`, and the host's `check`.

What they owe is the same for all layouts; how a layout does it stands in its own file.
Letters: B rows, T new tokens, S slots, N query heads, K key/value heads, H head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import ops
from jaxkv.caches import contiguous, paged, uncached, window
from jaxkv.caches.layouts import LAYOUTS, keeper_for, keeper_of, layout_for, module_of
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError


def init(
    config: ModelConfig,
    *,
    batch: int,
    capacity: int,
    dtype: Any,
    slack: int = 0,
    layout: str = "contiguous",
    page_size: int = 16,
    pool_pages: int | None = None,
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
        page_size: Tokens of a page; only the paged layout has pages.
        pool_pages: Pages that all rows together can hold; None takes as many as `batch` rows of
            `capacity` tokens need. One more is kept as the trash page.

    Raises:
        RequestError: batch, capacity or page_size below 1, slack below 0, an unknown layout, a pool
            for a layout without one, or float64 while JAX has it off.
        CapacityError: capacity exceeds the model's positions, or a row the pool.

    Cost: allocates the buffers; see each layout's `init_site`.
    """
    _check_init(config, batch=batch, capacity=capacity, slack=slack, layout=layout)
    dtype = check_dtype("init", dtype)
    sizes: dict[str, int] = {"batch": batch, "capacity": capacity}
    shared = keeper_for(layout).init_shared(**sizes, page_size=page_size, pool_pages=pool_pages)
    sites = tuple(
        layout_for(layer.attention, layout).init_site(
            layer.attention, **sizes, dtype=dtype, slack=slack, shared=shared
        )
        for layer in config.layers
    )
    # Three arrays, not one thrice: a cache that is donated must not hold a buffer twice.
    length_B, peak_B, overflow_B = (jnp.zeros((batch,), jnp.int32) for _ in range(3))
    return Cache(length_B, peak_B, overflow_B, shared, sites, capacity)


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
        ShapeError: count_B is not one number a row.
    """
    if count_B.shape != cache.length_B.shape:
        rows = cache.length_B.shape[0]
        raise ShapeError(
            f"begin: count_B has shape {count_B.shape}, expected ({rows},), one count a row."
        )
    count_B = count_B.astype(jnp.int32)
    length_B = cache.length_B
    beyond_B = jnp.maximum(length_B + count_B - cache.capacity, jnp.maximum(count_B - T, -count_B))
    if fresh:
        beyond_B = jnp.where(length_B > 0, jnp.maximum(count_B, 1), beyond_B)
    excess_B = jnp.maximum(beyond_B, 0)
    is_open_B = (excess_B == 0) & (cache.overflow_B == 0)
    taken_B = jnp.where(is_open_B, count_B, 0)
    keeper = keeper_of(cache.shared)
    shared, short_B = keeper.plan_step(cache.shared, length_B, taken_B, T=T)
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
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], Any]:
    """Return the attention output of T new tokens and the site with their keys and values written.

    The layout's own `attend` does it; this one checks that the site was made for these arrays.
    Outputs of tokens beyond a row's count are zeros.

    Raises:
        ShapeError: Batch, K, H, dtype or window differ from the site.
    """
    _check_site(site, q_BTNH, k_BTKH, v_BTKH, rule)
    layout = module_of(site)
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
    wanted = jnp.dtype(dtype)
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


def _check_init(config: ModelConfig, *, batch: int, capacity: int, slack: int, layout: str) -> None:
    if layout not in LAYOUTS:
        raise RequestError(f"init: layout is {layout!r}, expected one of {', '.join(LAYOUTS)}.")
    for name, value, least in (("batch", batch, 1), ("capacity", capacity, 1), ("slack", slack, 0)):
        if value < least:
            raise RequestError(f"init: {name} is {value}, expected at least {least}.")
    if capacity > config.max_positions:
        over = capacity - config.max_positions
        raise CapacityError(
            f"init: capacity {capacity} exceeds the model's {config.max_positions} "
            f"positions. Lower it by {over}."
        )


def _check_site(site: Any, q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, rule: ops.Rule) -> None:
    if k_BTKH.shape != v_BTKH.shape:
        raise ShapeError(
            f"attend: k_BTKH is {k_BTKH.shape}, v_BTKH is {v_BTKH.shape}; they must be alike."
        )
    rows, _, kv_heads, width = k_BTKH.shape
    if isinstance(site, uncached.UncachedSite):
        have = (site.num_kv_heads, site.head_dim)
        if have != (kv_heads, width):
            raise ShapeError(
                f"attend: k_BTKH has (K, H) {(kv_heads, width)}, the site {have}. Was it "
                "made for this model?"
            )
        return
    keys = _keys_of(site)
    if keys.shape[1] != width:
        raise ShapeError(
            f"attend: k_BTKH has H={width}, the cache has H={keys.shape[1]}. Was the cache "
            "made for another model?"
        )
    if isinstance(site, paged.PagedSite):
        _check_heads(kv_heads, site.num_kv_heads)
    elif keys.shape[0] != rows * kv_heads:
        raise ShapeError(
            f"attend: k_BTKH has B*K={rows * kv_heads} lines, the cache has {keys.shape[0]}. "
            "Was the cache made for another batch or model?"
        )
    if keys.dtype != k_BTKH.dtype:
        raise ShapeError(
            f"attend: k_BTKH is {k_BTKH.dtype}, the cache {keys.dtype}. Make the cache "
            f"with dtype={k_BTKH.dtype}."
        )
    if isinstance(site, window.WindowSite) and site.window != rule.window:
        raise ShapeError(
            f"attend: rule.window is {rule.window}, the ring was made for {site.window}. "
            "Make a new cache."
        )


def _keys_of(site: Any) -> Array:
    if isinstance(site, paged.PagedSite):
        return site.k_YHP
    return site.k_XHS if isinstance(site, contiguous.ContiguousSite) else site.k_XHC


def _check_heads(given: int, have: int) -> None:
    if given != have:
        raise ShapeError(
            f"attend: k_BTKH has K={given}, the cache has K={have}. Was the cache made for another "
            "model?"
        )
