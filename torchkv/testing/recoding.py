"""Other keys and values in a cache of codes: what was changed is quantized anew, nothing else.

For testers alone; no product quantizes twice. Letters: B rows, S slots, K key/value heads, H head
width, U and Z groups.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from torchkv.caches import codes, quantized, ring
from torchkv.caches.coded import QuantizedSite
from torchkv.caches.per_token import PerTokenSite


def recoded(site: Any, cache: Any, k_BSKH: np.ndarray, v_BSKH: np.ndarray) -> Any:
    """Return the site with these keys and values, slot by slot as `read` has them.

    Args:
        site: A `QuantizedSite` or a `PerTokenSite`.
        cache: Whose site it is.
        k_BSKH: Keys.
        v_BSKH: Values.
    """
    scale = site.v_scale_BKC if isinstance(site, PerTokenSite) else site.v_scale_BKCZ
    k_BKSH, v_BKSH = (
        torch.tensor(x, dtype=scale.dtype, device=scale.device).transpose(1, 2)
        for x in (k_BSKH, v_BSKH)
    )
    if isinstance(site, PerTokenSite):
        quantize = codes.quantize_int8 if site.form.kind == "int8" else codes.quantize_fp8
        (k_code, k_scale), (v_code, v_scale) = quantize(k_BKSH), quantize(v_BKSH)
        kind = site.k_code_BKCH.dtype
        return PerTokenSite(k_code.view(kind), k_scale, v_code.view(kind), v_scale, site.form)
    return _grouped(site, cache, k_BKSH, v_BKSH)


def _grouped(site: QuantizedSite, cache: Any, k_BKSH: Array, v_BKSH: Array) -> QuantizedSite:
    old_k, old_v, *_ = quantized.read(site, None, cache.length_B, cache.peak_B)
    moved_k, moved_v = k_BKSH != old_k.transpose(1, 2), v_BKSH != old_v.transpose(1, 2)
    k_code, k_scale, k_zero = _coded(
        site, k_BKSH.mT, moved_k.mT, (site.k_code_BKHE, site.k_scale_BKHU, site.k_zero_BKHU)
    )
    v_code, v_scale, v_zero = _coded(
        site, v_BKSH, moved_v, (site.v_code_BKCY, site.v_scale_BKCZ, site.v_zero_BKCZ)
    )
    k_ring, v_ring = _rings(site, cache, k_BKSH, v_BKSH)
    return dataclasses.replace(
        site,
        k_code_BKHE=k_code,
        k_scale_BKHU=k_scale,
        k_zero_BKHU=k_zero,
        v_code_BKCY=v_code,
        v_scale_BKCZ=v_scale,
        v_zero_BKCZ=v_zero,
        k_ring_BKHA=k_ring,
        v_ring_BKAH=v_ring,
    )


def _coded(
    site: QuantizedSite, x: Array, moved: Array, held: tuple[Array, Array, Array]
) -> list[Array]:
    """Return code, scale and zero point along the last axis, new in the groups that were moved."""
    size, bits = site.form.group_size, site.form.bits
    moved_U = moved.unflatten(-1, (-1, size)).any(-1)
    code, scale, zero = codes.quantize(x.unflatten(-1, (-1, size)), bits=bits)
    packed = codes.pack(code.flatten(-2), bits=bits)
    moved_E = moved_U.repeat_interleave(size // site.form.codes_a_byte, -1)
    parts = zip((moved_E, moved_U, moved_U), (packed, scale, zero), held, strict=True)
    return [torch.where(mask, new, old) for mask, new, old in parts]


def _rings(site: QuantizedSite, cache: Any, k_BKSH: Array, v_BKSH: Array) -> tuple[Array, Array]:
    """Return the ring with what is read from it replaced: the tokens from the edges on."""
    block, length_B1 = site.form.residual_length, cache.length_B.unsqueeze(1)
    place_BA, held_BA = ring.places(cache.length_B, site.ring)
    at_B1A1 = place_BA.clamp(min=0).long()[:, None, :, None]
    plain_k, plain_v = (
        (held_BA & (place_BA >= edge))[:, None, :, None]
        for edge in (length_B1 // block * block, length_B1 - block)
    )
    new_k, new_v = (
        x.gather(2, at_B1A1.expand(-1, x.shape[1], -1, x.shape[3])) for x in (k_BKSH, v_BKSH)
    )
    return (
        torch.where(plain_k.mT, new_k.mT, site.k_ring_BKHA),
        torch.where(plain_v, new_v, site.v_ring_BKAH),
    )
