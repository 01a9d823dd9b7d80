"""A bias of the scores by distance (T5): how distances fall into buckets, one number a head each.

Source: Raffel et al. 2020, section 2.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jaxkv.spec.part import Part, require, require_whole


@dataclass(frozen=True)
class Relative(Part):
    """A table of so many buckets, shared by all layers of a stack.

    A causal attention has one bucket a distance up to half of them, then ever wider ones, the last
    from max_distance on. Where later tokens are seen too, one half of the buckets is for those, and
    each half is divided so.
    """

    buckets: int
    max_distance: int

    def __post_init__(self) -> None:
        require_whole("Relative", buckets=self.buckets, max_distance=self.max_distance)
        require(
            self.buckets >= 4 and self.buckets % 4 == 0,
            f"Relative: buckets is {self.buckets}, expected a multiple of 4.",
        )
        require(
            self.max_distance > self.buckets // 2,
            f"Relative: max_distance is {self.max_distance}, expected above buckets / 2 = "
            f"{self.buckets // 2}.",
        )


class Biased(Protocol):
    """What of an attention a table of biases depends on."""

    @property
    def relative(self) -> Relative | None:
        """The buckets; None without a bias."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads, each with a number a bucket."""
        ...


def check_relatives(owner: str, attentions: Sequence[Biased]) -> None:
    """Refuse layers that cannot share one table.

    Raises:
        ConfigError: Their buckets or query heads differ.
    """
    forms = {(a.relative, a.num_heads) for a in attentions if a.relative is not None}
    require(
        len(forms) <= 1,
        f"{owner}: layers have {len(forms)} forms of relative bias, expected one table for all.",
    )


def relative_shapes(prefix: str, attentions: Sequence[Biased]) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of a stack's table, (buckets, heads); nothing without one."""
    for a in attentions:
        if a.relative is not None:
            return {f"{prefix}relative.weight": (a.relative.buckets, a.num_heads)}
    return {}
