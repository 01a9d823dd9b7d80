"""What layouts that keep nothing for all layers together share: nothing, by the same verbs.

Letters: B rows, C rows of a gathered cache.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor as Array

OPTIONS = ()


def init_shared(*, batch: int, capacity: int) -> None:
    """Return None."""


def begin_shared(
    shared: None, length_B: Int[Array, " B"], count_B: Int[Array, " B"], *, T: int
) -> tuple[None, Int[Array, " B"]]:
    """Return nothing, and no token refused."""
    return None, torch.zeros_like(count_B)


def settle(shared: None) -> None:
    """Return None."""


def rollback_shared(shared: None, length_B: Int[Array, " B"]) -> None:
    """Return None."""


def gather_shared(shared: None, rows_B: Int[Array, " C"]) -> None:
    """Return None."""


def reset_shared(shared: None) -> None:
    """Return None."""


def clear_shared(shared: None, only_B: Bool[Array, " B"]) -> None:
    """Return None."""


def narrow_shared(shared: None, *, slots: int) -> None:
    """Return None."""


def widen_shared(shared: None, old: None) -> None:
    """Return None."""


def explain(shared: None, row: int) -> str | None:
    """Return None: rows are refused for want of capacity alone."""
