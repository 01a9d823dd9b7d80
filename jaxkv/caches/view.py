"""One block of queries before any keys: what turns their products with keys into scores.

Letters: B rows, T new tokens, N query heads, K key/value heads, X = B*K, M grouped queries, S keys.
"""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.state import Bias, Step


@dataclass(frozen=True)
class View:
    """A block of a step's queries, and their attention's rule.

    Attributes:
        step: From `begin`.
        q_XMH: Queries in the order of `ops.group_queries`.
        span: Which of the step's tokens they are; static.
        heads: N.
        rule: Static.
        bias: None for none.
    """

    step: Step
    q_XMH: Float[Array, "X M H"]
    span: slice
    heads: int
    rule: ops.Rule
    bias: Bias | None

    @property
    def query_BT(self) -> Int[Array, "B T"]:
        """Their positions."""
        return self.step.position_BT[:, self.span]

    def scored(
        self, product_XMS: Float[Array, "X M S"], key_BS: Int[Array, "B S"]
    ) -> Float[Array, "X M S"]:
        """Return scaled, capped and biased scores of products of queries and keys."""
        score_XMS = product_XMS * self.rule.scale
        if self.rule.soft_cap is not None:
            score_XMS = ops.soft_cap(score_XMS, cap=self.rule.soft_cap)
        if self.bias is None:
            return score_XMS
        rows, tokens = self.query_BT.shape
        added_BNTS = self.bias(self.query_BT, key_BS)
        slots.check_bias(added_BNTS, expected=(rows, self.heads, tokens, key_BS.shape[1]))
        kv_heads = self.q_XMH.shape[0] // rows
        return score_XMS + ops.group_bias(added_BNTS, num_kv_heads=kv_heads)

    def spread(self, mask_BTS: Bool[Array, "B T S"]) -> Bool[Array, "X M S"]:
        """Return a mask of tokens for all their heads."""
        kv_heads = self.q_XMH.shape[0] // mask_BTS.shape[0]
        return ops.spread(mask_BTS, num_kv_heads=kv_heads, groups=self.heads // kv_heads)
