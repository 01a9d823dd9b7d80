"""Other keys and values in a cache of codes: what was changed is quantized anew, nothing else.

For testers alone; no product quantizes twice. Letters: B rows, S slots, K key/value heads, H head
width, X = B*K, U and Z groups, g numbers of one.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkv.caches import codes, quantized, ring
from jaxkv.caches.coded import QuantizedSite
from jaxkv.caches.per_token import PerTokenSite


def recoded(site: Any, cache: Any, k_BSKH: np.ndarray, v_BSKH: np.ndarray) -> Any:
    """Return the site with these keys and values, slot by slot as `read` has them.

    Args:
        site: A `QuantizedSite` or a `PerTokenSite`.
        cache: Whose site it is.
        k_BSKH: Keys.
        v_BSKH: Values.
    """
    lines = site.v_scale_XC.shape[0] if isinstance(site, PerTokenSite) else site.v_code_XCY.shape[0]
    k_XHS = jnp.asarray(k_BSKH.transpose(0, 2, 3, 1).reshape(lines, -1, k_BSKH.shape[1]))
    v_XSH = jnp.asarray(v_BSKH.transpose(0, 2, 1, 3).reshape(lines, v_BSKH.shape[1], -1))
    if isinstance(site, PerTokenSite):
        return _per_token(site, k_XHS, v_XSH)
    return _grouped(site, cache, k_XHS, v_XSH)


def _grouped(site: QuantizedSite, cache: Any, k_XHS: Any, v_XSH: Any) -> QuantizedSite:
    old_k, old_v, *_ = quantized.read(site, None, cache.length_B, cache.peak_B)
    shape = k_XHS.shape
    moved_k = k_XHS != old_k.transpose(0, 2, 3, 1).reshape(shape)
    moved_v = v_XSH != old_v.transpose(0, 2, 1, 3).reshape(v_XSH.shape)
    changed: dict[str, Any] = {}
    for side, x, moved in (("k", k_XHS, moved_k), ("v", v_XSH, moved_v)):
        names = [name for part in ("code", "scale", "zero") for name in _named(site, side, part)]
        for name, new in zip(names, _coded(x, moved, site, names), strict=True):
            changed[name] = new
    k_ring, v_ring = _rings(site, cache, k_XHS, v_XSH)
    return dataclasses.replace(site, **changed, k_ring_XHA=k_ring, v_ring_XAH=v_ring)


def _named(site: QuantizedSite, side: str, part: str) -> list[str]:
    return [name for name in vars(site) if name.startswith(f"{side}_{part}_")]


def _coded(x: Any, moved: Any, site: QuantizedSite, names: list[str]) -> list[Any]:
    """Return code, scale and zero point along the last axis, new in the groups that were moved."""
    size, bits = site.form.group_size, site.form.bits
    grouped = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    moved_U = moved.reshape(grouped.shape).any(-1)
    code, scale, zero = codes.quantize(grouped, bits=bits)
    packed = codes.pack(code.reshape(x.shape), bits=bits)
    moved_E = jnp.repeat(moved_U, size // site.form.codes_a_byte, axis=-1)
    return [
        jnp.where(mask, new, getattr(site, name))
        for mask, new, name in zip(
            (moved_E, moved_U, moved_U), (packed, scale, zero), names, strict=True
        )
    ]


def _rings(site: QuantizedSite, cache: Any, k_XHS: Any, v_XSH: Any) -> tuple[Any, Any]:
    """Return the ring with what is read from it replaced: the tokens from the edges on."""
    block, heads = site.form.residual_length, k_XHS.shape[0] // len(cache.length_B)
    place_BA, held_BA = ring.places(cache.length_B, site.ring)
    length_B1 = cache.length_B[:, None]
    at_XA = jnp.repeat(jnp.maximum(place_BA, 0), heads, axis=0)
    plain_k, plain_v = (
        jnp.repeat(held_BA & (place_BA >= edge), heads, axis=0)
        for edge in (length_B1 // block * block, length_B1 - block)
    )
    new_k = jnp.take_along_axis(k_XHS, at_XA[:, None, :], axis=2)
    new_v = jnp.take_along_axis(v_XSH, at_XA[:, :, None], axis=1)
    return (
        jnp.where(plain_k[:, None, :], new_k, site.k_ring_XHA),
        jnp.where(plain_v[:, :, None], new_v, site.v_ring_XAH),
    )


def _per_token(site: PerTokenSite, k_XHS: Any, v_XSH: Any) -> PerTokenSite:
    quantize = codes.quantize_int8 if site.form.kind == "int8" else codes.quantize_fp8
    (k_code, k_scale), (v_code, v_scale) = quantize(k_XHS.swapaxes(1, 2)), quantize(v_XSH)
    kind = site.k_code_XHC.dtype
    return PerTokenSite(
        k_code.view(kind).swapaxes(1, 2), k_scale, v_code.view(kind), v_scale, site.form
    )
