"""The speeds of rotary pairs past the trained length, one function a kind of scaling.

Letters: B rows, R rotary pairs. Sources: llama-models, llama3/model.py, `apply_scaling`; Chen et
al. 2023 (linear); Peng et al. 2023 (YaRN, section 3.2); Ding et al. 2024 (LongRoPE); transformers
5.24, `modeling_rope_utils.py` (dynamic base).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec import scaling as spec
from jaxkv.spec.config import Rope


def scale_frequencies(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, rope: Rope
) -> Float[Array, "*B R"]:
    """Return the angles a position of each pair: [R], or [B, R] where they follow the length.

    Args:
        frequency_R: Unscaled, theta^(-i/R).
        length_B: Tokens that each row holds after the step.
        rope: Which scaling, if any.
    """
    scaling = rope.scaling
    if isinstance(scaling, spec.LinearScaling):
        return frequency_R / scaling.factor
    if isinstance(scaling, spec.Llama3Scaling):
        return llama3(frequency_R, scaling=scaling)
    if isinstance(scaling, spec.YarnScaling):
        return yarn(frequency_R, scaling=scaling, theta=rope.theta)
    if isinstance(scaling, spec.DynamicScaling):
        return dynamic(frequency_R, length_B, scaling=scaling)
    if isinstance(scaling, spec.LongScaling):
        return longrope(frequency_R, length_B, scaling=scaling)
    return frequency_R


def llama3(frequency_R: Float[Array, " R"], *, scaling: spec.Llama3Scaling) -> Float[Array, " R"]:
    """Return fast pairs as given, slow ones / factor, and those between the two blended.

    A pair keeps a share of its speed that grows from 0 to 1 with its turns within the original
    positions.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns_R = frequency_R * (scaling.original_max_positions / math.tau)
    kept_R = ((turns_R - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequency_R / scaling.factor, frequency_R, kept_R)


def dynamic(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, scaling: spec.DynamicScaling
) -> Float[Array, "B R"]:
    """Return the frequencies of a base that grows with the row's length past the original one.

    Growth is 1 + factor * (share of the length past the original). The base is multiplied by
    growth^(R / (R - 1)): pair i, evenly spaced in the logarithm from the fastest (0) to the slowest
    (R - 1), loses that share of log(growth).
    """
    pairs, original = len(frequency_R), scaling.original_max_positions
    past_B = (length_B.double() / original - 1).clamp(min=0).to(frequency_R)
    growth_B = torch.log1p(past_B * scaling.factor)
    share_R = torch.linspace(0, 1, pairs, dtype=frequency_R.dtype, device=frequency_R.device)
    return frequency_R * torch.exp(-growth_B.unsqueeze(1) * share_R)


def yarn(
    frequency_R: Float[Array, " R"], *, scaling: spec.YarnScaling, theta: float
) -> Float[Array, " R"]:
    """Return pairs blended between their own speed and 1 / factor of it, by their number."""
    pairs, original = len(frequency_R), scaling.original_max_positions

    def pair_with(turns: float) -> float:
        """The (fractional) pair that turns so often within the original positions."""
        return pairs * (math.log(original) - math.log(math.tau * turns)) / math.log(theta)

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    if low == high:
        high += 0.001  # the field's way out of a division by zero
    pair_R = torch.arange(pairs, dtype=frequency_R.dtype, device=frequency_R.device)
    ramp_R = ((pair_R - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequency_R, frequency_R / scaling.factor, ramp_R)


def longrope(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, scaling: spec.LongScaling
) -> Float[Array, "B R"]:
    """Return each pair's speed divided by its own factor, a long one for rows past the original."""
    short_R, long_R = frequency_R.new_tensor([scaling.short_factors, scaling.long_factors])
    past_B1 = (length_B > scaling.original_max_positions).unsqueeze(1)
    return torch.where(past_B1, frequency_R / long_R, frequency_R / short_R)


def amplitude(rope: Rope) -> float:
    """Return the factor on cos and sin, whose square scales the scores; 1 for most kinds."""
    scaling = rope.scaling
    if not isinstance(scaling, spec.YarnScaling | spec.LongScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    stretch = math.log(scaling.factor)
    if isinstance(scaling, spec.LongScaling):
        return math.sqrt(1 + stretch / math.log(scaling.original_max_positions))
    return (10 + scaling.mscale * stretch) / (10 + scaling.mscale_all_dim * stretch)
