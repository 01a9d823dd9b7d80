"""Buffers as a compiled step sees them: of a fixed number of slots, one token a row, no host reads.

All rows hold one length, a tensor, and what stands beyond it is masked. Letters: B rows, N query
heads, K key/value heads, H head width, S slots.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from torchkv import ops
from torchkv.caches.state import Bias, Expand, Rotate


@dataclass(frozen=True)
class FixedSite:
    """One attention's first slots, views of a contiguous site's buffers."""

    k_BKSH: Float[Array, "B K S H"]
    v_BKSH: Float[Array, "B K S H"]


class Unguarded:
    """An epoch that is never past: whoever runs the step has checked the cache's own."""

    def check(self, function: str, held: str) -> None:
        """Do nothing."""

    def write(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class OneToken:
    """A step's plan of tensors alone: one real token in every row, all rows of one length.

    Attributes:
        length_B: int32, tokens that each row held before the step.
        count_B: int32, 1 for each row.
        position_BT: int32, length_B as T = 1.
        valid_BT: True for each row.
        epoch: Checked outside.
        start: Any number: that the rows are alike, and not where, is what it is asked for.
    """

    length_B: Int[Array, " B"]
    count_B: Int[Array, " B"]
    position_BT: Int[Array, "B T"]
    valid_BT: Bool[Array, "B T"]
    epoch: Unguarded
    start: int = 0


def check(
    site: FixedSite,
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
) -> None:
    """Do nothing: the contiguous site was checked when it was made."""


def attend(
    site: FixedSite,
    step: OneToken,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], FixedSite]:
    """Return the attention output of each row's token, and the site, written in place.

    Args:
        site: One attention's buffers.
        step: Of one token a row.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated.
        v_BTKH: Values.
        rule: Without a soft cap, which the fused kernel does not know.
        rotate: Applied to queries and keys with their positions.
        bias: None.
        expand: None.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    at = step.length_B[:1]
    for buffer, new in ((site.k_BKSH, k_BTKH), (site.v_BKSH, v_BTKH)):
        buffer.index_copy_(2, at.long(), new.transpose(1, 2))
    slot_S = torch.arange(site.k_BKSH.shape[2], device=at.device)
    seen_S = slot_S <= at
    if rule.window is not None:
        seen_S = seen_S & (slot_S > at - rule.window)
    out_BKMH = F.scaled_dot_product_attention(
        ops.group_queries(q_BTNH, site.k_BKSH.shape[1]),
        site.k_BKSH,
        site.v_BKSH,
        attn_mask=seen_S[None, None, None],
        scale=rule.scale,
    )
    return ops.ungroup(out_BKMH, tokens=1), site
