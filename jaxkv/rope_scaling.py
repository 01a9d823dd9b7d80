"""The speeds of rotary pairs past the trained length, one function a kind of scaling.

Letters: B rows, R rotary pairs. Sources: llama-models, llama3/model.py, `apply_scaling`; Chen et
al. 2023 (linear); Peng et al. 2023 (YaRN, section 3.2); Ding et al. 2024 (LongRoPE); transformers
5.24, `modeling_rope_utils.py` (dynamic base).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv.spec import scaling as spec
from jaxkv.spec.config import Rope


def scale_frequencies(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, rope: Rope
) -> Float[Array, "*B R"]:
    """Return the angles a position of each pair: [R], or [B, R] where they follow the length.

    Args:
        frequency_R: Unscaled, theta^(-i/R).
        length_B: Tokens that each row holds after the step.
        rope: Which scaling, if any; static.
    """
    match rope.scaling:
        case spec.Llama3Scaling():
            return llama3(frequency_R, scaling=rope.scaling)
        case spec.LinearScaling():
            return frequency_R / rope.scaling.factor
        case spec.DynamicScaling():
            return dynamic(frequency_R, length_B, scaling=rope.scaling)
        case spec.YarnScaling():
            return yarn(frequency_R, scaling=rope.scaling, theta=rope.theta)
        case spec.LongScaling():
            return longrope(frequency_R, length_B, scaling=rope.scaling)
        case _:
            return frequency_R


def llama3(frequency_R: Float[Array, " R"], *, scaling: spec.Llama3Scaling) -> Float[Array, " R"]:
    """Return fast pairs as given, slow ones / factor, and those between the two blended.

    Linearly in a pair's turns within the original positions.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_max_positions
    wavelength_R = 2 * jnp.pi / frequency_R
    slowed_R = frequency_R / scaling.factor
    smooth_R = (original / wavelength_R - low) / (high - low)
    blended_R = (1 - smooth_R) * slowed_R + smooth_R * frequency_R
    slow_or_blended_R = jnp.where(wavelength_R > original / low, slowed_R, blended_R)
    return jnp.where(wavelength_R < original / high, frequency_R, slow_or_blended_R)


def dynamic(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, scaling: spec.DynamicScaling
) -> Float[Array, "B R"]:
    """Return the frequencies of a base that grows with the row's length past the original one.

    The base is multiplied by growth^(R / (R - 1)), so pair i's frequency by growth^(-i / (R - 1)):
    the fastest pair keeps its speed, the slowest is divided by the growth.
    """
    pairs, original = frequency_R.shape[0], scaling.original_max_positions
    length_B = jnp.maximum(length_B, original).astype(frequency_R.dtype)
    growth_B1 = (scaling.factor * length_B / original - (scaling.factor - 1))[:, None]
    return frequency_R * growth_B1 ** (-jnp.arange(pairs, dtype=frequency_R.dtype) / (pairs - 1))


def yarn(
    frequency_R: Float[Array, " R"], *, scaling: spec.YarnScaling, theta: float
) -> Float[Array, " R"]:
    """Return pairs blended between their own speed and 1 / factor of it, by their number."""
    pairs = frequency_R.shape[0]
    first, last = (
        pairs * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # Equal ends would divide by zero: a step of a thousandth is what the field has.
    width = last - first or 0.001
    slowed_R = jnp.clip((jnp.arange(pairs, dtype=frequency_R.dtype) - first) / width, 0, 1)
    return frequency_R / scaling.factor * slowed_R + frequency_R * (1 - slowed_R)


def longrope(
    frequency_R: Float[Array, " R"], length_B: Int[Array, " B"], *, scaling: spec.LongScaling
) -> Float[Array, "B R"]:
    """Return each pair's speed divided by its own factor, a long one for rows past the original."""
    short_R, long_R = (
        jnp.asarray(each, frequency_R.dtype)
        for each in (scaling.short_factors, scaling.long_factors)
    )
    is_long_B1 = (length_B > scaling.original_max_positions)[:, None]
    return frequency_R / jnp.where(is_long_B1, long_R, short_R)


def amplitude(rope: Rope) -> float:
    """Return the factor on cos and sin, whose square scales the scores; 1 for most kinds."""
    match rope.scaling:
        case spec.YarnScaling(attention_factor=None, factor=factor) as scaling:
            high, low = (
                0.1 * m * math.log(factor) + 1 for m in (scaling.mscale, scaling.mscale_all_dim)
            )
            return high / low
        case spec.LongScaling(attention_factor=None) as scaling:
            past = math.log(scaling.factor) / math.log(scaling.original_max_positions)
            return (1 + past) ** 0.5
        case (
            spec.YarnScaling(attention_factor=float(given))
            | spec.LongScaling(attention_factor=float(given))
        ):
            return given
        case _:
            return 1.0
