"""Codes of 8 bits: int8 or fp8, with one scale a token and head, and nothing in full precision.

A token is quantized as it comes, by itself, and every query reads what is stored, its own token
too: no partition of a text changes a result, and every length can be rolled back to. The scales are
applied to scores and weights, so that codes enter the products as they are.

Letters: B rows, X = B*K lines, T new tokens, N query heads, K key/value heads, M grouped queries, H
head width, C slots = capacity, S slots of a tile.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxkv import ops
from jaxkv.caches import carried, coded, codes, slots
from jaxkv.caches.carried import Carried
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.caches.view import View
from jaxkv.pytree import pytree, static
from jaxkv.spec.compression import PerToken

# Tokens that are read at once.
TILE = 512
# The bytes of float8_e4m3fn, which numpy and its files do not know, are kept as whole numbers.
_DTYPES = {"int8": jnp.int8, "fp8": jnp.uint8}


@pytree
class PerTokenSite:
    """One attention's codes and scales; those at and beyond a row's length are never read."""

    k_code_XHC: Shaped[Array, "X H C"]
    k_scale_XC: Float[Array, "X C"]
    v_code_XCH: Shaped[Array, "X C H"]
    v_scale_XC: Float[Array, "X C"]
    form: PerToken = static()


def empty(
    form: PerToken, *, batch: int, kv_heads: int, width: int, capacity: int, dtype: jnp.dtype
) -> PerTokenSite:
    """Return a site without tokens.

    Cost: allocates 2 * batch * K * capacity * H bytes, and two scales a token and head.
    """
    kind, lines = _DTYPES[form.kind], batch * kv_heads
    return PerTokenSite(
        jnp.zeros((lines, width, capacity), kind),
        jnp.ones((lines, capacity), dtype),
        jnp.zeros((lines, capacity, width), kind),
        jnp.ones((lines, capacity), dtype),
        form,
    )


def check(
    site: PerTokenSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or the attention has a window or sees the future.
        ShapeError: Batch, K, H or dtype differ.
    """
    lines, width, _ = site.k_code_XHC.shape
    slots.check_new(jnp.zeros((lines, width, 0), site.k_scale_XC.dtype), k_BTKH, v_BTKH)
    slots.check_sees_all(rule)


def attend(
    site: PerTokenSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], PerTokenSite]:
    """Return the attention output of T new tokens, and the site with their codes.

    Args:
        site: One attention's codes.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. In the dtype of the scales.
        v_BTKH: Values.
        rule: Without a window.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention; not offered here.

    Raises:
        Unsupported: The rule has a window.
        ShapeError: Batch, K, H or dtype differ from the site (at trace time under jit); see
            `caches.attend`.

    Cost: reads the codes of the used tiles, as bytes.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    site = _write(site, step, slots.heads_first(k_BTKH), slots.heads_first(v_BTKH))
    tokens = q_BTNH.shape[1]
    spans = [
        slice(at, min(at + ops.QUERY_BLOCK, tokens)) for at in range(0, tokens, ops.QUERY_BLOCK)
    ]
    parts = [_attend(site, step, q_BTNH[:, span], span, rule, bias) for span in spans]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1), site


def fault(site: PerTokenSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    lines, width, room = site.k_code_XHC.shape
    if room < cache.capacity:
        return f"has {room} slots, the cache has capacity {cache.capacity}"
    if site.v_code_XCH.shape != (lines, room, width):
        return f"has values {site.v_code_XCH.shape} beside keys {site.k_code_XHC.shape}"
    return None


def read(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return dequantized keys and values, the position of each slot, and which hold a token.

    A probe for tests and crosscheck, which dequantizes the cache whole.
    """
    rows, room = length_B.shape[0], site.k_scale_XC.shape[1]
    dtype = site.k_scale_XC.dtype
    k_XHS = _numbers(site.k_code_XHC, site.form).astype(dtype) * site.k_scale_XC[:, None, :]
    v_XSH = _numbers(site.v_code_XCH, site.form).astype(dtype) * site.v_scale_XC[:, :, None]
    k_BSKH, v_BSKH = slots.by_row(k_XHS, v_XSH, rows=rows)
    key_BS = jnp.broadcast_to(jnp.arange(room, dtype=jnp.int32), (rows, room))
    return k_BSKH, v_BSKH, key_BS, key_BS < length_B[:, None]


def floor(site: PerTokenSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to: always 0."""
    return jnp.zeros_like(cache.length_B)


def gather_site(site: PerTokenSite, rows_B: Int[Array, " C"], *, batch: int) -> PerTokenSite:
    """Return the site of the named rows, in their order: codes and scales."""
    return jax.tree.map(lambda x: slots.gather_rows(x, rows_B, batch=batch), site)


def narrow_site(site: PerTokenSite, *, slots: int) -> PerTokenSite:
    """Return the site: a step reads its used tiles, however many there are."""
    return site


def widen_site(site: PerTokenSite, old: PerTokenSite) -> PerTokenSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PerTokenSite:
    """Return the site with scale 0 in every slot that holds no token."""
    return _blotted(site, length_B, 0.0)


def poison_site(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PerTokenSite:
    """Return the site with scale NaN in every slot that holds no token."""
    return _blotted(site, length_B, jnp.nan)


def _write(site: PerTokenSite, step: Step, new_k_XTH: Array, new_v_XTH: Array) -> PerTokenSite:
    quantize = codes.quantize_int8 if site.form.kind == "int8" else codes.quantize_fp8
    (k_code, k_scale), (v_code, v_scale) = quantize(new_k_XTH), quantize(new_v_XTH)
    k_code, v_code = (
        jax.lax.bitcast_convert_type(x, _DTYPES[site.form.kind]) for x in (k_code, v_code)
    )
    slot_BT = jnp.where(step.valid_BT, step.position_BT, site.k_scale_XC.shape[1])
    return dataclasses.replace(
        site,
        k_code_XHC=coded.put_keys(site.k_code_XHC, k_code.swapaxes(1, 2), slot_BT),
        k_scale_XC=coded.put_values(site.k_scale_XC, k_scale, slot_BT),
        v_code_XCH=coded.put_values(site.v_code_XCH, v_code, slot_BT),
        v_scale_XC=coded.put_values(site.v_scale_XC, v_scale, slot_BT),
    )


def _attend(
    site: PerTokenSite, step: Step, q_BTNH: Array, span: slice, rule: ops.Rule, bias: Bias | None
) -> Array:
    rows, tokens, heads, _ = q_BTNH.shape
    lines, room = site.k_scale_XC.shape
    up = ops.wide(q_BTNH.dtype)
    q_XMH = ops.group_queries(q_BTNH, lines // rows).astype(up)
    view = View(step, q_XMH, span, heads, rule, bias)
    size = min(TILE, room)
    end_B1 = (step.length_B + step.count_B)[:, None]

    def add(tile: Any, state: Carried) -> Carried:
        # The last tile begins earlier than its turn would be, and leaves out what was read before.
        start = jnp.minimum(tile * size, room - size)
        k_XHS, k_scale_XS, v_XSH, v_scale_XS = (
            jax.lax.dynamic_slice_in_dim(x, start, size, axis=axis)
            for x, axis in (
                (site.k_code_XHC, 2),
                (site.k_scale_XC, 1),
                (site.v_code_XCH, 1),
                (site.v_scale_XC, 1),
            )
        )
        key_BS = jnp.broadcast_to(start + jnp.arange(size, dtype=jnp.int32), (rows, size))
        valid_BS = (key_BS >= tile * size) & (key_BS < end_B1)
        k_XHS, v_XSH = (_numbers(x, site.form).astype(up) for x in (k_XHS, v_XSH))
        k_scale_XS, v_scale_XS = k_scale_XS.astype(up), v_scale_XS.astype(up)
        product_XMS = jnp.einsum("XMH,XHS->XMS", q_XMH, k_XHS)
        score_XMS = view.scored(product_XMS * k_scale_XS[:, None, :], key_BS)
        visible_XMS = view.spread(ops.is_visible(view.query_BT, key_BS, valid_BS, rule=rule))
        held_XS = jnp.repeat(key_BS < end_B1, lines // rows, axis=0)
        v_scale_XS = jnp.where(held_XS, v_scale_XS, 0)
        return carried.add(
            state,
            score_XMS,
            visible_XMS,
            lambda w: jnp.einsum("XMS,XSH->XMH", w * v_scale_XS[:, None, :], v_XSH),
        )

    state = carried.start(q_XMH)
    last = jnp.max(jnp.where(step.count_B > 0, jnp.minimum(step.count_B, span.stop), 0))
    end = jnp.max(jnp.where(step.count_B > 0, step.length_B, 0)) + last
    state = jax.lax.fori_loop(jnp.int32(0), (end + (size - 1)) // size, add, state)
    out_XMH = carried.finish(state).astype(site.v_scale_XC.dtype)
    return ops.ungroup(out_XMH, rows=rows, tokens=tokens)


def _numbers(code: Array, form: PerToken) -> Array:
    if form.kind == "int8":
        return code
    return jax.lax.bitcast_convert_type(code, jnp.float8_e4m3fn)


def _blotted(site: PerTokenSite, length_B: Array, blot: float) -> PerTokenSite:
    lines, room = site.k_scale_XC.shape
    length_X1 = jnp.repeat(length_B, lines // length_B.shape[0])[:, None]
    held_XC = jnp.arange(room, dtype=jnp.int32) < length_X1
    k_scale, v_scale = (
        jnp.where(held_XC, x, jnp.asarray(blot, x.dtype))
        for x in (site.k_scale_XC, site.v_scale_XC)
    )
    return dataclasses.replace(site, k_scale_XC=k_scale, v_scale_XC=v_scale)
