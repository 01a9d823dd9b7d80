"""Faults of codes, scales and zero points, planted in what a quantized cache gives back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.registry import fault
from crosscheck.faults.storing import MainOnly, Written

NEEDS = {"cache", "quant", "kv", "kv_write"}


def _codes(w: Written) -> NDArray:
    """Return the slots that are no longer exact."""
    return np.append(w.old, w.new)[:-4]


@fault(
    name="quant.zero_point",
    needs=NEEDS,
    kinds="I",
    shows="overwrite",
    advice="Look at whether the zero point is added after the scale, on read and write alike.",
)
def quant_zero_point(subject: Any) -> Any:
    """What comes back from the codes lacks its zero point."""

    def write(w: Written) -> None:
        slots = _codes(w)
        for side in w.sides:
            side[slots] -= side[slots].min(axis=-1, keepdims=True)

    return MainOnly(subject, write)


@fault(
    name="quant.axis",
    needs=NEEDS,
    kinds="I",
    shows="overwrite",
    advice="Look at the axis along which scales are taken and laid out: tokens, heads or channels.",
)
def quant_axis(subject: Any) -> Any:
    """Scales are applied to another token's codes."""

    def write(w: Written) -> None:
        slots = _codes(w)
        for side in w.sides:
            reach = side[slots].max(axis=-1, keepdims=True) - side[slots].min(
                axis=-1, keepdims=True
            )
            low = side[slots].min(axis=-1, keepdims=True)
            unit = (side[slots] - low) / np.where(reach == 0, 1, reach)
            side[slots] = unit * np.roll(reach, 1, axis=0) + np.roll(low, 1, axis=0)

    return MainOnly(subject, write)
