"""What the quantized layout stores: codes with scales and zero points, and a ring of last tokens.

Written from full precision only: a value's code when its token comes, a key's when its block of R
tokens is whole. Letters: B rows, K key/value heads, X = B*K lines, H head width, T new tokens, C
slots (whole blocks of R), S slots read, A slots of the ring, E bytes of keys' codes, U groups of
tokens, Y bytes of values' codes, Z groups of channels, P codes in a byte, R tokens of a block, g
numbers of a group.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt8

from jaxkv import ops
from jaxkv.caches import codes, ring
from jaxkv.caches.state import Step
from jaxkv.pytree import pytree, static
from jaxkv.spec.compression import Groups


@pytree
class QuantizedSite:
    """One attention's codes, scales and zero points, and the ring of its last tokens."""

    k_code_XHE: UInt8[Array, "X H E"]
    k_scale_XHU: Float[Array, "X H U"]
    k_zero_XHU: Float[Array, "X H U"]
    v_code_XCY: UInt8[Array, "X C Y"]
    v_scale_XCZ: Float[Array, "X C Z"]
    v_zero_XCZ: Float[Array, "X C Z"]
    k_ring_XHA: Float[Array, "X H A"]
    v_ring_XAH: Float[Array, "X A H"]
    form: Groups = static()
    slack: int = static()

    @property
    def slots(self) -> int:
        """Tokens that a row's codes have room for."""
        return self.v_code_XCY.shape[1]

    @property
    def ring(self) -> int:
        """Tokens that the ring holds."""
        return self.v_ring_XAH.shape[1]


def empty(
    form: Groups,
    *,
    batch: int,
    kv_heads: int,
    width: int,
    capacity: int,
    slack: int,
    dtype: jnp.dtype,
) -> QuantizedSite:
    """Return a site without tokens."""
    block, size, each = form.residual_length, form.group_size, form.codes_a_byte
    room = -(-capacity // block) * block

    def zeros(*shape: int, kind: Any = dtype) -> Array:
        return jnp.zeros((batch * kv_heads, *shape), kind)

    return QuantizedSite(
        k_code_XHE=zeros(width, room // each, kind=jnp.uint8),
        k_scale_XHU=zeros(width, room // size),
        k_zero_XHU=zeros(width, room // size),
        v_code_XCY=zeros(room, width // each, kind=jnp.uint8),
        v_scale_XCZ=zeros(room, width // size),
        v_zero_XCZ=zeros(room, width // size),
        k_ring_XHA=zeros(width, block + slack),
        v_ring_XAH=zeros(block + slack, width),
        form=form,
        slack=slack,
    )


def write(
    site: QuantizedSite,
    step: Step,
    new_k_XTH: Float[Array, "X T H"],
    new_v_XTH: Float[Array, "X T H"],
) -> QuantizedSite:
    """Return the site with a step's tokens in the ring, their values' codes, and whole key blocks.

    Cost: quantizes T values a line, and R keys for each block that the step completes.
    """
    site = _write_values(site, step, new_v_XTH)
    site = _write_keys(site, step, new_k_XTH)
    k_XHA, v_XAH = ring.write(site.k_ring_XHA, site.v_ring_XAH, new_k_XTH, new_v_XTH, step)
    return dataclasses.replace(site, k_ring_XHA=k_XHA, v_ring_XAH=v_XAH)


def beside(
    site: QuantizedSite, new_k_XTH: Float[Array, "X T H"], new_v_XTH: Float[Array, "X T H"]
) -> tuple[Float[Array, "X H S"], Float[Array, "X S H"]]:
    """Return the ring, as it was before a step, with the step's tokens behind it."""
    return (
        jnp.concatenate([site.k_ring_XHA, new_k_XTH.swapaxes(1, 2)], axis=2),
        jnp.concatenate([site.v_ring_XAH, new_v_XTH], axis=1),
    )


def places_beside(
    position_BS: Int[Array, "B S"], length_B: Int[Array, " B"], ring_slots: int, tokens: int
) -> Int[Array, "B S"]:
    """Return where `beside` holds the tokens of these positions, of those that it can hold."""
    old_BS = jnp.mod(position_BS, ring_slots)
    new_BS = ring_slots + jnp.minimum(position_BS - length_B[:, None], tokens - 1)
    return jnp.where(position_BS < length_B[:, None], old_BS, new_BS)


def take_keys(x_XHC: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return each row's keys at its own places, in their order."""
    place_X1S = jnp.repeat(place_BS, x_XHC.shape[0] // place_BS.shape[0], axis=0)[:, None, :]
    return jnp.take_along_axis(x_XHC, place_X1S, axis=2, mode="clip")


def take_values(x_XCH: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return each row's values at its own places, in their order."""
    place_XS1 = jnp.repeat(place_BS, x_XCH.shape[0] // place_BS.shape[0], axis=0)[:, :, None]
    return jnp.take_along_axis(x_XCH, place_XS1, axis=1, mode="clip")


def put_keys(x_XHC: Array, new_XHS: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return x with each row's new keys at its own places; C or more means: do not write."""
    line_X1, place_XS = _lines(x_XHC, place_BS)
    return x_XHC.at[line_X1, :, place_XS].set(new_XHS.swapaxes(1, 2), mode="drop")


def put_values(x_XC: Array, new_XS: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return x with each row's new values at its own places; C or more means: do not write."""
    line_X1, place_XS = _lines(x_XC, place_BS)
    return x_XC.at[line_X1, place_XS].set(new_XS, mode="drop")


def keys_from(site: QuantizedSite, first_B: Int[Array, " B"], count: int) -> Float[Array, "X H S"]:
    """Return so many dequantized keys of each row from its own first token, a multiple of R."""
    form = site.form
    byte_BE = _from(first_B // form.codes_a_byte, count // form.codes_a_byte)
    group_BU = _from(first_B // form.group_size, count // form.group_size)
    code_XHS = codes.unpack(take_keys(site.k_code_XHE, byte_BE), bits=form.bits)
    scale_XHU, zero_XHU = (take_keys(x, group_BU) for x in (site.k_scale_XHU, site.k_zero_XHU))
    return _grouped(code_XHS, scale_XHU, zero_XHU)


def values_from(
    site: QuantizedSite, first_B: Int[Array, " B"], count: int
) -> Float[Array, "X S H"]:
    """Return so many dequantized values of each row from its own first token."""
    place_BS = _from(first_B, count)
    code_XSY, scale_XSZ, zero_XSZ = (
        take_values(x, place_BS) for x in (site.v_code_XCY, site.v_scale_XCZ, site.v_zero_XCZ)
    )
    return _grouped(codes.unpack(code_XSY, bits=site.form.bits), scale_XSZ, zero_XSZ)


def score_tile(
    site: QuantizedSite, q_XMH: Float[Array, "X M H"], start: Int[Array, ""], size: int
) -> Float[Array, "X M S"]:
    """Return the products of queries with `size` dequantized keys from slot `start` on.

    The codes of a byte are taken apart into planes; the products, not the keys, are put in order.
    A plane is a product of its own: made in one array, XLA finds every number's plane and group
    by divisions of its index, which takes longer than the product.
    """
    form = site.form
    code_XHE, scale_XHU, zero_XHU = (
        jax.lax.dynamic_slice_in_dim(x, start // per, size // per, axis=2)
        for x, per in (
            (site.k_code_XHE, form.codes_a_byte),
            (site.k_scale_XHU, form.group_size),
            (site.k_zero_XHU, form.group_size),
        )
    )
    up = ops.wide(site.k_scale_XHU.dtype)
    scale_XHE, zero_XHE = (
        _by_byte(part.astype(up), code_XHE.shape[2]) for part in (scale_XHU, zero_XHU)
    )
    products = [
        jnp.einsum("XMH,XHE->XME", q_XMH, plane_XHE.astype(up) * scale_XHE + zero_XHE)
        for plane_XHE in codes.planes(code_XHE, bits=form.bits)
    ]
    return jnp.stack(products, axis=-1).reshape(*q_XMH.shape[:2], size)


def weigh_tile(
    site: QuantizedSite, weight_XMS: Float[Array, "X M S"], start: Int[Array, ""], size: int
) -> Float[Array, "X M H"]:
    """Return the sums of `size` dequantized values from slot `start` on, times their weights.

    A token with no weight in any query has no part, whatever its scale and zero point hold.
    """
    code_XSY, scale_XSZ, zero_XSZ = (
        jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)
        for x in (site.v_code_XCY, site.v_scale_XCZ, site.v_zero_XCZ)
    )
    up, bytes_ = weight_XMS.dtype, code_XSY.shape[2]
    used_XS1 = jnp.any(weight_XMS > 0, axis=1)[:, :, None]
    scale_XSY, zero_XSY = (
        _by_byte(jnp.where(used_XS1, part.astype(up), 0), bytes_) for part in (scale_XSZ, zero_XSZ)
    )
    sums = [
        jnp.einsum("XMS,XSY->XMY", weight_XMS, plane_XSY.astype(up) * scale_XSY + zero_XSY)
        for plane_XSY in codes.planes(code_XSY, bits=site.form.bits)
    ]
    count = bytes_ * site.form.codes_a_byte
    return jnp.stack(sums, axis=-1).reshape(*weight_XMS.shape[:2], count)


def _by_byte(x_XCU: Array, bytes_: int) -> Array:
    """Return what each group has for all bytes of its codes."""
    each = bytes_ // x_XCU.shape[-1]
    spread_XCUe = jnp.broadcast_to(x_XCU[..., None], (*x_XCU.shape, each))
    return spread_XCUe.reshape(*x_XCU.shape[:-1], bytes_)


def _from(first_B: Array, count: int) -> Array:
    return first_B[:, None] + jnp.arange(count, dtype=jnp.int32)


def _grouped(code_XCG: Array, scale_XCU: Array, zero_XCU: Array) -> Array:
    by_group = code_XCG.reshape(*scale_XCU.shape, -1)
    return codes.dequantize(by_group, scale_XCU, zero_XCU).reshape(code_XCG.shape)


def _quantized(x_XCG: Array, form: Groups) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and zero points of groups along the last axis."""
    *axes, width = x_XCG.shape
    by_group = x_XCG.reshape(*axes, width // form.group_size, form.group_size)
    code, scale, zero = codes.quantize(by_group, bits=form.bits)
    return codes.pack(code.reshape(x_XCG.shape), bits=form.bits), scale, zero


def _write_values(site: QuantizedSite, step: Step, new_v_XTH: Array) -> QuantizedSite:
    new = _quantized(new_v_XTH, site.form)
    old = (site.v_code_XCY, site.v_scale_XCZ, site.v_zero_XCZ)
    slot_BT = jnp.where(step.valid_BT, step.position_BT, site.slots)
    code, scale, zero = (put_values(x, part, slot_BT) for x, part in zip(old, new, strict=True))
    return dataclasses.replace(site, v_code_XCY=code, v_scale_XCZ=scale, v_zero_XCZ=zero)


def _write_keys(site: QuantizedSite, step: Step, new_k_XTH: Array) -> QuantizedSite:
    # A loop of as many trips as the busiest row completes blocks, most often none: a `cond` would
    # copy the codes.
    form, tokens = site.form, new_k_XTH.shape[1]
    block = form.residual_length
    first_B = step.length_B // block
    whole_B = (step.length_B + step.count_B) // block
    k_XHS = jnp.concatenate([site.k_ring_XHA, new_k_XTH.swapaxes(1, 2)], axis=2)

    def add(trip: Array, held: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number_B = first_B + trip
        position_BR = _from(number_B * block, block)
        place_BR = places_beside(position_BR, step.length_B, site.ring, tokens)
        new = _quantized(take_keys(k_XHS, place_BR), form)
        number_B = jnp.where(number_B < whole_B, number_B, site.slots // block)
        code, scale, zero = (
            put_keys(x, part, _from(number_B * n, n))
            for x, part, n in zip(held, new, _parts_of(form), strict=True)
        )
        return code, scale, zero

    trips = jnp.max(whole_B - first_B)
    held = (site.k_code_XHE, site.k_scale_XHU, site.k_zero_XHU)
    code, scale, zero = jax.lax.fori_loop(jnp.int32(0), trips, add, held)
    return dataclasses.replace(site, k_code_XHE=code, k_scale_XHU=scale, k_zero_XHU=zero)


def _lines(x_X: Array, place_BS: Array) -> tuple[Array, Array]:
    lines = x_X.shape[0]
    place_XS = jnp.repeat(place_BS, lines // place_BS.shape[0], axis=0)
    return jnp.arange(lines, dtype=jnp.int32)[:, None], place_XS


def _parts_of(form: Groups) -> tuple[int, int, int]:
    """Return the bytes, scales and zero points that a block of keys has a channel."""
    groups = form.residual_length // form.group_size
    return form.residual_length // form.codes_a_byte, groups, groups
