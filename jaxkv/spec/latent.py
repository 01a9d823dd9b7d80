"""Attention whose keys and values come from one latent a token, as data.

Letters: N query heads, R channels of the latent, H width of a head's keys or values.
Sources: DeepSeek-V2 (2024), section 2.1; DeepSeek-V3 (2024), section 2.1.1.
"""

from dataclasses import dataclass

from jaxkv.spec.part import Part, require, require_above, require_whole


@dataclass(frozen=True)
class Latent(Part):
    """Keys and values of all heads are products of one normed latent of R = rank channels.

    A head's key has nope_width channels made of the latent, and beside them the rotary channels
    of one key that all heads share: rotation does not commute with the product, so what turns
    stands apart. A head's value has value_width channels. With a query_rank, queries too come from
    a latent, normed, of so many channels.

    An attention with a latent has one key/value head of rank + rotary_dim channels, which is all
    that a cache keeps: values are its first rank channels. qkv_bias then is of the two projections
    down, from the stream; none of those up has a bias.

    With a mscale m and a yarn scaling by factor, scores are multiplied by
    (0.1 * m * ln(factor) + 1)^2, on top of yarn's factor on cos and sin.
    """

    rank: int
    nope_width: int
    value_width: int
    norm_eps: float
    query_rank: int | None = None
    mscale: float | None = None

    def __post_init__(self) -> None:
        widths = {
            "rank": self.rank,
            "nope_width": self.nope_width,
            "value_width": self.value_width,
        }
        require_whole("Latent", **widths)
        require_above("Latent", 0, norm_eps=self.norm_eps)
        if self.query_rank is not None:
            require_whole("Latent", query_rank=self.query_rank)
        require(
            self.mscale is None or self.mscale > 0,
            f"Latent: mscale is {self.mscale}, expected above 0, or None for off.",
        )
