"""Rotary positions of the reference decoder, pair by pair, with every way of stretching them.

Letters: T tokens of a row, N heads, H head width. Sources: Su et al. 2021 (half-split pairs as in
GPT-NeoX); llama-models' llama3/model.py, `apply_scaling`; Chen et al. 2023 (linear); Peng et al.
2023, section 3.2 (YaRN); Ding et al. 2024 (LongRoPE); transformers 5.24, `modeling_rope_utils.py`
(the dynamic base).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scaling = Mapping[str, Any]


def rotate(rope: Mapping[str, Any], x_TNH: NDArray) -> NDArray:
    """Return heads turned by their positions 0 .. T - 1, as one step of T tokens turns them.

    Args:
        rope: Plain data: theta, rotary_dim, a scaling or None, whether pairs are neighbors.
        x_TNH: Queries or keys of one row.
    """
    pairs, tokens = rope["rotary_dim"] // 2, len(x_TNH)
    size = 1.0 if rope["scaling"] is None else _size(rope["scaling"])
    result_TNH = x_TNH.copy()
    for i in range(pairs):
        speed = _speed(rope, i, pairs, tokens)
        angle_T1 = (np.arange(tokens) * speed).astype(x_TNH.dtype)[:, None]
        cos_T1, sin_T1 = np.cos(angle_T1) * size, np.sin(angle_T1) * size
        a, b = (2 * i, 2 * i + 1) if rope.get("interleaved", False) else (i, i + pairs)
        first_TN, second_TN = x_TNH[:, :, a], x_TNH[:, :, b]
        result_TNH[:, :, a] = first_TN * cos_T1 - second_TN * sin_T1
        result_TNH[:, :, b] = second_TN * cos_T1 + first_TN * sin_T1
    return result_TNH


def _speed(rope: Mapping[str, Any], pair: int, pairs: int, tokens: int) -> float:
    theta, scaling = rope["theta"], rope["scaling"]
    speed = theta ** (-pair / pairs)
    if scaling is None:
        return speed
    return SCALINGS[scaling["kind"]](scaling, theta, pair, pairs, tokens) * speed


def _size(scaling: Scaling) -> float:
    if scaling["kind"] not in ("yarn", "longrope"):
        return 1.0
    if scaling["attention_factor"] is not None:
        return scaling["attention_factor"]
    if scaling["kind"] == "longrope":
        return math.sqrt(1 + math.log(scaling["factor"], scaling["original_max_positions"]))
    above = 1 + 0.1 * scaling["mscale"] * math.log(scaling["factor"])
    return above / (1 + 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]))


def _linear(scaling: Scaling, theta: float, pair: int, pairs: int, tokens: int) -> float:
    return 1 / scaling["factor"]


def _llama3(scaling: Scaling, theta: float, pair: int, pairs: int, tokens: int) -> float:
    turns = scaling["original_max_positions"] * theta ** (-pair / pairs) / math.tau
    few, many = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if turns >= many:
        return 1.0
    if turns <= few:
        return 1 / scaling["factor"]
    near = (turns - few) / (many - few)
    return near + (1 - near) / scaling["factor"]


def _dynamic(scaling: Scaling, theta: float, pair: int, pairs: int, tokens: int) -> float:
    original, factor = scaling["original_max_positions"], scaling["factor"]
    length, width = max(tokens, original), 2 * pairs
    stretch = (factor * length / original - (factor - 1)) ** (width / (width - 2))
    return (theta * stretch) ** (-pair / pairs) / theta ** (-pair / pairs)


def _yarn(scaling: Scaling, theta: float, pair: int, pairs: int, tokens: int) -> float:
    ends = []
    for turns in (scaling["beta_fast"], scaling["beta_slow"]):
        wavelength = scaling["original_max_positions"] / turns
        ends.append(pairs * math.log(wavelength / math.tau) / math.log(theta))
    if scaling["truncate"]:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], 2 * pairs - 1)
    last += 0.001 if first == last else 0
    slowed = min(max((pair - first) / (last - first), 0.0), 1.0)
    return slowed / scaling["factor"] + 1 - slowed


def _longrope(scaling: Scaling, theta: float, pair: int, pairs: int, tokens: int) -> float:
    is_long = tokens > scaling["original_max_positions"]
    return 1 / scaling["long_factors" if is_long else "short_factors"][pair]


SCALINGS: dict[str, Callable[[Scaling, float, int, int, int], float]] = {
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
"""Kind -> the factor on one pair's speed, in a step after which the row holds `tokens`."""
