"""Places of tokens behind sinks, where a ring's keys stand turned by their slot and never again.

A score follows from how far apart query and key stand, so that any clock will do which both are
turned by. Keys of a ring of C slots behind s sinks are turned by the number of their slot: token p
by p if p < s, else by s + (p - s) mod C. A query that sees W <= C recent tokens meets its own lap
of the ring and the one before it, whose keys stand C places farther back than their slots say: it
is turned once for each, and a third time for the sinks, from its index in the cache, min(p, s + W -
1). No place is ever beyond s + 2C, however long the text.

Letters: B rows, T new tokens, N query heads, K key/value heads, G query heads of one, M grouped
queries, L = 3 times that each is turned, H head width, S keys, the first s of them sinks.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.compression import Sinks
from torchkv.caches.state import Rotate
from torchkv.caches.view import View


def slot_of(position: Int[Array, "..."], *, sinks: int, ring: int) -> Int[Array, "..."]:
    """Return the slots of tokens, by their positions in the text."""
    laps = torch.div(position - sinks, ring, rounding_mode="floor").clamp(min=0)
    return position - laps * ring


def turned(
    q_BTNH: Float[Array, "B T N H"],
    query_BT: Int[Array, "B T"],
    rotate: Rotate,
    *,
    form: Sinks,
    ring: int,
) -> Float[Array, "B _ N H"]:
    """Return queries turned for keys of their own lap, then for the lap before, then for sinks.

    Args:
        q_BTNH: Queries, not rotated.
        query_BT: Their positions in the text.
        rotate: Of the attention.
        form: How many sinks and recent tokens a query sees.
        ring: Slots behind the sinks.
    """
    slot_BT = slot_of(query_BT, sinks=form.sinks, ring=ring)
    newest = form.sinks + form.window - 1
    at_BT = torch.cat((slot_BT, slot_BT + ring, query_BT.clamp(max=newest)), 1)
    return rotate(q_BTNH.repeat(1, 3, 1, 1), at_BT)


def pieces(
    at: int, *, form: Sinks, ring: int, by_slot: bool
) -> tuple[int, list[tuple[slice, int]]]:
    """Return a query's own slot; and all slots that it sees, with the place it is turned by there.

    Sinks first, unless one place is for all of them; then the lap before; and the lap that ends
    with its own slot.

    Args:
        at: Its position in the text.
        form: How many sinks and recent tokens it sees.
        ring: Slots behind the sinks.
        by_slot: Whether keys are turned by slots; else one place, that in the text, is for all.
    """
    sinks, window = form.sinks, form.window
    newest, oldest = (p if p < sinks else sinks + (p - sinks) % ring for p in (at, at - window + 1))
    if at < sinks + window:
        return newest, [(slice(0, at + 1), at)]
    own, before, far = (newest, newest + ring, sinks + window - 1) if by_slot else (at, at, at)
    if oldest <= newest:
        return newest, [(slice(0, sinks), far), (slice(oldest, newest + 1), own)]
    lap = (slice(oldest, sinks + ring), before)
    if not by_slot:
        return newest, [lap, (slice(0, newest + 1), own)]
    return newest, [(slice(0, sinks), far), lap, (slice(sinks, newest + 1), own)]


def products(
    view: View,
    k_BKSH: Float[Array, "B K S H"],
    key_BS: Int[Array, "B S"],
    *,
    sinks: int,
    ring: int,
) -> Float[Array, "B K M S"]:
    """Return the products of a block of queries with keys that stand turned by their slots.

    Args:
        view: Of queries as `turned` gives them, grouped.
        k_BKSH: Keys, the sinks first.
        key_BS: Their positions in the text.
        sinks: How many sinks there are.
        ring: Slots behind them.

    Cost: two products with all keys, which are read once.
    """
    tokens = view.query_BT.shape[1]
    k_BKHS = k_BKSH.mT.to(view.q_BKMH.dtype)
    q_BKGLTH = view.q_BKMH.unflatten(2, (-1, 3, tokens))
    both_BKMS = torch.matmul(q_BKGLTH[:, :, :, :2].flatten(2, 4), k_BKHS)
    own_BKGTS, before_BKGTS = both_BKMS.unflatten(2, (-1, 2, tokens)).unbind(3)
    # The text's position at which each query's own lap of the ring began.
    began_BT = view.query_BT - (view.query_BT - sinks) % ring
    is_before_BTS = key_BS.unsqueeze(1) < began_BT.unsqueeze(2)
    product_BKGTS = torch.where(is_before_BTS[:, None, None], before_BKGTS, own_BKGTS)
    product_BKMS = product_BKGTS.flatten(2, 3)
    to_sinks_BKMS = torch.matmul(q_BKGLTH[:, :, :, 2].flatten(2, 3), k_BKHS[..., :sinks])
    product_BKMS[..., :sinks] = to_sinks_BKMS
    return product_BKMS
