"""One block of queries before any keys: what turns their products with keys into scores.

Letters: B rows, T new tokens, N query heads, K key/value heads, M grouped queries, S keys.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.state import Bias, Step


@dataclass(frozen=True)
class View:
    """A block of a step's queries, and their attention's rule.

    Attributes:
        step: From `begin`.
        q_BKMH: Queries in the order of `ops.group_queries`.
        span: Which of the step's tokens they are.
        heads: N.
        rule: The attention's.
        bias: None for none.
    """

    step: Step
    q_BKMH: Float[Array, "B K M H"]
    span: slice
    heads: int
    rule: ops.Rule
    bias: Bias | None

    @property
    def query_BT(self) -> Int[Array, "B T"]:
        """Their positions."""
        return self.step.position_BT[:, self.span]

    def scored(
        self, product_BKMS: Float[Array, "B K M S"], key_BS: Int[Array, "B S"] | None
    ) -> Float[Array, "B K M S"]:
        """Return scaled, capped and biased scores of products of queries and keys.

        Without a bias nobody asks where the keys stand, and None is enough.
        """
        score_BKMS = product_BKMS * self.rule.scale
        if self.rule.soft_cap is not None:
            score_BKMS = ops.soft_cap(score_BKMS, cap=self.rule.soft_cap)
        if self.bias is None:
            return score_BKMS
        assert key_BS is not None  # whoever has a bias has positions
        added_BNTS = self.bias(self.query_BT, key_BS)
        rows, tokens = self.query_BT.shape
        slots.check_bias(added_BNTS, expected=(rows, self.heads, tokens, key_BS.shape[1]))
        return score_BKMS + ops.group_bias(added_BNTS, num_kv_heads=self.q_BKMH.shape[1])

    def spread(self, mask_BTS: Bool[Array, "B T S"]) -> Bool[Array, "B 1 M S"]:
        """Return a mask of tokens for all their heads."""
        return ops.spread(mask_BTS, groups=self.heads // self.q_BKMH.shape[1])
