"""A softmax carried along over tiles of keys: running maximum, sum and weighted values.

So attention reads a cache piece by piece, and no row of scores is ever whole. Letters: B rows, K
key/value heads, M grouped queries, S keys of a tile, H head width. Source: online softmax (Milakov
and Gimelshein 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor as Array

Weigh = Callable[[Float[Array, "B K M S"]], Float[Array, "B K M H"]]


@dataclass(frozen=True)
class Carried:
    """What the tiles so far gave."""

    out_BKMH: Float[Array, "B K M H"]
    peak_BKM1: Float[Array, "B K M 1"]
    total_BKM1: Float[Array, "B K M 1"]


def start(q_BKMH: Float[Array, "B K M H"]) -> Carried:
    """Return the state of these queries before any tile, in their dtype."""
    total_BKM1 = torch.zeros_like(q_BKMH[..., :1])
    return Carried(torch.zeros_like(q_BKMH), torch.full_like(total_BKM1, -torch.inf), total_BKM1)


def add(
    state: Carried,
    score_BKMS: Float[Array, "B K M S"],
    visible_B1MS: Bool[Array, "B 1 M S"],
    weigh: Weigh,
) -> Carried:
    """Return the state with one more tile; scores that are not visible may be anything.

    Args:
        state: Of the tiles before.
        score_BKMS: In the state's dtype.
        visible_B1MS: Which of them count.
        weigh: Takes weights, not normalized and 0 where nothing is visible, to weighted values.
    """
    score_BKMS = score_BKMS.masked_fill(~visible_B1MS, -torch.inf)
    peak_BKM1 = torch.maximum(state.peak_BKM1, score_BKMS.amax(-1, keepdim=True))
    # A query that has seen no key yet has a peak of -inf; any finite one gives it weights of 0.
    around_BKM1 = peak_BKM1.masked_fill(peak_BKM1 == -torch.inf, 0.0)
    weight_BKMS = (score_BKMS - around_BKM1).exp_()
    shrink_BKM1 = (state.peak_BKM1 - around_BKM1).exp_()
    return Carried(
        torch.addcmul(weigh(weight_BKMS), state.out_BKMH, shrink_BKM1),
        peak_BKM1,
        state.total_BKM1 * shrink_BKM1 + weight_BKMS.sum(-1, keepdim=True),
    )


def finish(state: Carried) -> Float[Array, "B K M H"]:
    """Return the weighted means; zeros for a query that has seen nothing."""
    return state.out_BKMH / state.total_BKM1.masked_fill(state.total_BKM1 == 0, 1.0)
