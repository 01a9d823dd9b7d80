"""What the quantized layout stores: codes with scales and zero points, and a ring of last tokens.

Written from full precision only, in place: a value's code when its token comes, a key's when its
block of R tokens is whole. Letters: B rows, K key/value heads, M grouped queries, H head width, T
new tokens, C slots (whole blocks of R), S slots read, A slots of the ring, E bytes of keys' codes,
U groups of tokens, Y bytes of values' codes, Z groups of channels, P codes in a byte, R tokens of a
block, Q blocks of all rows, O codes of a byte.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor as Array

from jaxkv.spec.compression import Groups
from torchkv.caches import codes, ring, slots
from torchkv.caches.state import Step

# Numbers of a tile: more no longer fit into the caches of a processor's core.
NUMBERS = 1 << 20
# Queries of a key/value head whose weights are copied without a thought.
FEW = 32


@dataclass(frozen=True)
class QuantizedSite:
    """One attention's codes, scales and zero points, and the ring of its last tokens."""

    k_code_BKHE: UInt8[Array, "B K H E"]
    k_scale_BKHU: Float[Array, "B K H U"]
    k_zero_BKHU: Float[Array, "B K H U"]
    v_code_BKCY: UInt8[Array, "B K C Y"]
    v_scale_BKCZ: Float[Array, "B K C Z"]
    v_zero_BKCZ: Float[Array, "B K C Z"]
    k_ring_BKHA: Float[Array, "B K H A"]
    v_ring_BKAH: Float[Array, "B K A H"]
    form: Groups
    slack: int

    @property
    def slots(self) -> int:
        """Tokens that a row's codes have room for."""
        return self.v_code_BKCY.shape[2]

    @property
    def ring(self) -> int:
        """Tokens that the ring holds."""
        return self.v_ring_BKAH.shape[2]


def empty(
    form: Groups,
    *,
    batch: int,
    kv_heads: int,
    width: int,
    capacity: int,
    slack: int,
    dtype: torch.dtype,
) -> QuantizedSite:
    """Return a site without tokens."""
    block, size, each = form.residual_length, form.group_size, form.codes_a_byte
    room = -(-capacity // block) * block

    def zeros(*shape: int, kind: torch.dtype = dtype) -> Array:
        return torch.zeros((batch, kv_heads, *shape), dtype=kind)

    return QuantizedSite(
        k_code_BKHE=zeros(width, room // each, kind=torch.uint8),
        k_scale_BKHU=zeros(width, room // size),
        k_zero_BKHU=zeros(width, room // size),
        v_code_BKCY=zeros(room, width // each, kind=torch.uint8),
        v_scale_BKCZ=zeros(room, width // size),
        v_zero_BKCZ=zeros(room, width // size),
        k_ring_BKHA=zeros(width, block + slack),
        v_ring_BKAH=zeros(block + slack, width),
        form=form,
        slack=slack,
    )


def write(
    site: QuantizedSite,
    step: Step,
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
) -> None:
    """Write a step's tokens into the ring, their values' codes, and whole key blocks, in place.

    Cost: quantizes T values a line, and R keys for each block that the step completes.
    """
    _write_values(site, step, v_BTKH)
    _write_keys(site, step, k_BTKH)
    ring.write(site.k_ring_BKHA, site.v_ring_BKAH, k_BTKH, v_BTKH, step)


def beside(
    site: QuantizedSite, k_BTKH: Float[Array, "B T K H"], v_BTKH: Float[Array, "B T K H"]
) -> tuple[Float[Array, "B K H S"], Float[Array, "B K S H"]]:
    """Return a copy of the ring, as it is before a step, with the step's tokens behind it."""
    return (
        torch.cat((site.k_ring_BKHA, slots.heads_first(k_BTKH).mT), 3),
        torch.cat((site.v_ring_BKAH, slots.heads_first(v_BTKH)), 2),
    )


def places_beside(
    position_BS: Int[Array, "B S"], length_B: Int[Array, " B"], ring_slots: int, tokens: int
) -> Int[Array, "B S"]:
    """Return where `beside` holds the tokens of these positions, of those that it can hold."""
    new_BS = (position_BS - length_B.unsqueeze(1)).clamp(max=tokens - 1) + ring_slots
    return torch.where(new_BS < ring_slots, position_BS % ring_slots, new_BS)


def take_keys(x_BKHC: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return each row's keys at its own places, in their order; places past the end give any."""
    place_B11S = place_BS.long().clamp(max=x_BKHC.shape[3] - 1)[:, None, None, :]
    return x_BKHC.gather(3, place_B11S.expand(-1, *x_BKHC.shape[1:3], -1))


def take_values(x_BKCH: Array, place_BS: Int[Array, "B S"]) -> Array:
    """Return each row's values at its own places, in their order; places past the end give any."""
    place_B1S1 = place_BS.long().clamp(max=x_BKCH.shape[2] - 1)[:, None, :, None]
    return x_BKCH.gather(2, place_B1S1.expand(-1, x_BKCH.shape[1], -1, x_BKCH.shape[3]))


def keys_from(
    site: QuantizedSite, first_B: Int[Array, " B"], count: int
) -> Float[Array, "B K H S"]:
    """Return so many dequantized keys of each row from its own first token, a multiple of R."""
    form = site.form
    byte_BE = _from(first_B // form.codes_a_byte, count // form.codes_a_byte)
    group_BU = _from(first_B // form.group_size, count // form.group_size)
    code_BKHS = codes.unpack(take_keys(site.k_code_BKHE, byte_BE), bits=form.bits)
    return _grouped(
        code_BKHS, take_keys(site.k_scale_BKHU, group_BU), take_keys(site.k_zero_BKHU, group_BU)
    )


def values_from(
    site: QuantizedSite, first_B: Int[Array, " B"], count: int
) -> Float[Array, "B K S H"]:
    """Return so many dequantized values of each row from its own first token."""
    place_BS = _from(first_B, count)
    code_BKSH = codes.unpack(take_values(site.v_code_BKCY, place_BS), bits=site.form.bits)
    return _grouped(
        code_BKSH,
        take_values(site.v_scale_BKCZ, place_BS),
        take_values(site.v_zero_BKCZ, place_BS),
    )


def tiles(
    q_BKMH: Float[Array, "B K M H"], count: int, *, most: int, block: int = 1
) -> list[tuple[int, int]]:
    """Return start and size of about equal tiles of so many tokens.

    Neither their keys nor their scores are many more than `NUMBERS`.

    Args:
        q_BKMH: The queries that read them.
        count: Tokens in all.
        most: Tokens of a tile, at most.
        block: What every size but the last one's is a multiple of.
    """
    rows, kv_heads, queries, width = q_BKMH.shape
    each = max(min(most, NUMBERS // (rows * kv_heads * max(queries, width))), block)
    parts = max(-(-count // each), 1)
    each = -(-count // (parts * block)) * block
    return [(start, min(each, count - start)) for start in range(0, count, each)] if count else []


def score_tile(
    site: QuantizedSite, step: Step, q_BKMH: Float[Array, "B K M H"], start: int, size: int
) -> Float[Array, "B K M S"]:
    """Return the products of queries with `size` dequantized keys from slot `start` on.

    The codes of a byte are taken apart into planes, each a product of its own; the products, not
    the keys, are put in order. A zero point is the same for a group: one product for all of it.
    """
    form, each = site.form, site.form.codes_a_byte
    group_U = slice(start // form.group_size, (start + size) // form.group_size)
    scale, zero = (x[..., group_U].to(q_BKMH.dtype) for x in (site.k_scale_BKHU, site.k_zero_BKHU))
    code_BKHE = site.k_code_BKHE[..., start // each : (start + size) // each]
    plane_OBKHE, share_O1111 = _planes(code_BKHE, scale, form, step)
    product_OBKME = torch.matmul(q_BKMH * share_O1111, plane_OBKHE)
    product_BKMS = product_OBKME.movedim(0, -1).flatten(3)
    base_BKMU = torch.matmul(q_BKMH, zero)
    by_group = product_BKMS.unflatten(3, (base_BKMU.shape[3], form.group_size))
    return by_group.add_(base_BKMU.unsqueeze(-1)).flatten(3)


def weigh_tile(
    site: QuantizedSite,
    step: Step,
    weight_BKMS: Float[Array, "B K M S"],
    start: int,
    size: int,
    *,
    all_seen: bool = False,
) -> Float[Array, "B K M H"]:
    """Return the sums of `size` dequantized values from slot `start` on, times their weights.

    A token with no weight in any query has no part, whatever its scale and zero point hold; to see
    to that takes time, and is left out if every query sees every token.
    """
    form, slot_S = site.form, slice(start, start + size)
    scale, zero = (
        x[:, :, slot_S].to(weight_BKMS.dtype) for x in (site.v_scale_BKCZ, site.v_zero_BKCZ)
    )
    if not all_seen:
        unused_BKS1 = (weight_BKMS.amax(2) == 0).unsqueeze(-1)
        scale, zero = (x.masked_fill(unused_BKS1, 0.0) for x in (scale, zero))
    plane_OBKSY, share_O1111 = _planes(site.v_code_BKCY[:, :, slot_S], scale, form, step)
    if weight_BKMS.shape[2] <= FEW:
        sum_OBKMY = torch.matmul(weight_BKMS, plane_OBKSY)
    else:
        # One product of all planes copies the weights for each.
        sum_OBKMY = torch.stack([torch.matmul(weight_BKMS, x) for x in plane_OBKSY])
    sum_BKMH = (sum_OBKMY * share_O1111).movedim(0, -1).flatten(3)
    base_BKMZ = torch.matmul(weight_BKMS, zero)
    by_group = sum_BKMH.unflatten(3, (base_BKMZ.shape[3], form.group_size))
    return by_group.add_(base_BKMZ.unsqueeze(-1)).flatten(3)


def _planes(code_BKCE: Array, scale_BKCU: Array, form: Groups, step: Step) -> tuple[Array, Array]:
    """Return the codes of each byte apart, times their scales, and each plane's share.

    A code stays where it is in its byte, so that plane p is 2^(bits * p) times too large: times its
    share, a power of two, it is what it stands for, to the bit.
    """
    mask_O, share_O = _masks(form.bits, scale_BKCU.dtype, code_BKCE.device)
    shape, bytes_a_group = (len(mask_O), *code_BKCE.shape), form.group_size // form.codes_a_byte
    code_OBKCE = step.room(*shape, dtype=torch.uint8)
    torch.bitwise_and(code_BKCE, mask_O, out=code_OBKCE)
    plane_OBKCE = step.room(*shape, dtype=scale_BKCU.dtype).copy_(code_OBKCE)
    return plane_OBKCE.mul_(scale_BKCU.repeat_interleave(bytes_a_group, -1)), share_O


@cache
def _masks(bits: int, dtype: torch.dtype, device: torch.device) -> tuple[Array, Array]:
    """Return the bits of each code of a byte, and what it is then to be multiplied with."""
    places = range(0, 8, bits)
    mask_O = torch.tensor([((1 << bits) - 1) << at for at in places], dtype=torch.uint8)
    share_O = torch.tensor([2.0**-at for at in places], dtype=dtype)
    mask, share = (x.to(device).reshape(-1, 1, 1, 1, 1) for x in (mask_O, share_O))
    return mask, share


def _from(first_B: Array, count: int) -> Array:
    return first_B.unsqueeze(1) + torch.arange(count, dtype=torch.int32, device=first_B.device)


def _grouped(code_BKCG: Array, scale_BKCU: Array, zero_BKCU: Array) -> Array:
    by_group = code_BKCG.unflatten(-1, (scale_BKCU.shape[-1], -1))
    return codes.dequantize(by_group, scale_BKCU, zero_BKCU).flatten(-2)


def _quantized(x: Array, form: Groups) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and zero points of groups along the last axis."""
    code, scale, zero = codes.quantize(x.unflatten(-1, (-1, form.group_size)), bits=form.bits)
    return codes.pack(code.flatten(-2), bits=form.bits), scale, zero


def _write_values(site: QuantizedSite, step: Step, v_BTKH: Array) -> None:
    held = (site.v_code_BKCY, site.v_scale_BKCZ, site.v_zero_BKCZ)
    for x, part in zip(held, _quantized(v_BTKH, site.form), strict=True):
        slots.write_tokens(x, part, step)


def _write_keys(site: QuantizedSite, step: Step, k_BTKH: Array) -> None:
    block = site.form.residual_length
    whole = [
        (row, number)
        for row, (before, after) in enumerate(step.spans)
        for number in range(before // block, after // block)
    ]
    if not whole:
        return
    row_Q, number_Q = torch.tensor(whole, device=k_BTKH.device).unbind(1)
    position_QR = _from(number_Q * block, block)
    place_QR = places_beside(position_QR, step.length_B.long()[row_Q], site.ring, k_BTKH.shape[1])
    k_BKHS = torch.cat((site.k_ring_BKHA, slots.heads_first(k_BTKH).mT), 3)
    k_QKHR = k_BKHS[row_Q[:, None], :, :, place_QR].permute(0, 2, 3, 1)
    held = (site.k_code_BKHE, site.k_scale_BKHU, site.k_zero_BKHU)
    for x, part in zip(held, _quantized(k_QKHR, site.form), strict=True):
        count = part.shape[-1]
        x[row_Q[:, None], :, :, _from(number_Q * count, count)] = part.permute(0, 3, 1, 2)
