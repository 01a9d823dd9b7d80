"""Faults of one form of a model that its other forms do not have: heads, layouts, latents.

Letters: T new tokens, K key/value heads, H head width.
"""

from typing import Any

import numpy as np

from crosscheck.faults.planted import Planted
from crosscheck.faults.registry import fault
from crosscheck.faults.storing import NEEDS, MainOnly, Written, has_heads


def _rolled(w: Written) -> None:
    for side in w.sides:
        side[w.new] = np.roll(side[w.new], 1, axis=1)


@fault(
    name="gqa.tile",
    needs=NEEDS | {"gqa"},
    kinds="MJ",
    shows="write",
    applies=has_heads,
    advice="Look for tile where key/value heads must be repeated, and for the order of groups.",
)
def gqa_tile(subject: Any) -> Planted:
    """Groups of queries read the key/value heads of another group."""
    return MainOnly(subject, _rolled)


@fault(
    name="layout.transposed",
    needs=NEEDS | {"layouts", "chunk"},
    kinds="J",
    shows="write",
    applies=has_heads,
    advice="Look for a transpose that one layout needs and another does not.",
)
def layout_transposed(subject: Any) -> Planted:
    """One layout stores chunks with tokens and heads in the wrong order."""

    def write(w: Written) -> None:
        for side in w.sides:
            t, k, h = (chunk_TKH := side[w.new]).shape
            side[w.new] = chunk_TKH.reshape(k, t, h).swapaxes(0, 1)

    return MainOnly(subject, write)


@fault(
    name="mla.scale",
    needs=NEEDS | {"mla"},
    kinds="L",
    shows="write",
    advice="Look for the squared factor of scaled rotary positions in the softmax scale.",
)
def mla_scale(subject: Any) -> Planted:
    """The absorbed form scales its scores by another factor than the expanded one."""

    def write(w: Written) -> None:
        w.keys_SKH[w.new] *= 1.26

    return MainOnly(subject, write)
