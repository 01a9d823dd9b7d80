"""Larger random weights: with a package's own initialization most cache faults hardly show."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

NOTE = (
    "random weights, amplified: matrices N(0, 1.2/sqrt(fan_in)), vectors + N(0, 0.15), seed {seed}"
)
# Decay rates, step sizes and tables of frequencies are not weights of this kind: a normal draw
# would make a state-space layer unstable, or a rotation meaningless.
KEPT = ("A_log", "dt_bias", "dt_proj", ".D", "inv_freq")


def seed_of(amplify: int | bool | None) -> int | None:
    """Return the seed that a hint means: True is 0, False and None are no amplification."""
    return None if amplify is None or amplify is False else int(amplify is not True and amplify)


def amplified(
    arrays: Mapping[str, NDArray], *, seed: int = 0, fan_in_axis: int = -1
) -> dict[str, NDArray]:
    """Return seeded draws that are large enough for attention to be peaked, in float64.

    A matrix becomes N(0, 1.2 / sqrt(fan_in)), a vector keeps its values plus N(0, 0.15), so that
    norm gains stay near one and biases leave zero.

    Args:
        arrays: Name -> weight, in the order in which they are drawn.
        seed: Of the draws.
        fan_in_axis: Which axis of a matrix is summed over: -1 for torch's (out, in), -2 for
            flax's (in, out).
    """
    rng = np.random.default_rng(seed)
    drawn: dict[str, NDArray] = {}
    for name, old in arrays.items():
        if any(kept in name for kept in KEPT):
            continue
        noise = rng.standard_normal(old.shape)
        if old.ndim >= 2:
            drawn[name] = noise * 1.2 / np.sqrt(old.shape[fan_in_axis])
        else:
            drawn[name] = old.astype(np.float64) + 0.15 * noise
    return drawn
