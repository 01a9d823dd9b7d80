"""How rotary positions are stretched, as GGUF metadata and tensors say it.

Source: llama.cpp, src/llama-model.cpp and src/llama-context.cpp: without a type a factor is linear;
yarn's factor on cos and sin is multiplied by `attn_factor`; `rope_freqs.weight` divides each pair's
speed, which is how the converter writes llama3's blend; the two `rope_factors` tensors are those of
longrope. There the long ones hold once the room made for a text passes the original length; here,
as in the model's own code, once the text does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxkv.spec.errors import ConfigError
from jaxkv.spec.gguf_keys import GgufKeys
from jaxkv.spec.scaling import LinearScaling, LongScaling, Scaling, YarnScaling

KEYS = {
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
"""Keys that `scaling` reads."""
LONG, SHORT, FREQS = (f"rope_{name}.weight" for name in ("factors_long", "factors_short", "freqs"))
_YARN_KEYS = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
_ATTENTION = "rope.scaling.attn_factor"
_ORIGINAL = "rope.scaling.original_context_length"
Tensors = Mapping[str, Callable[[], np.ndarray]]
"""Name of a tensor -> a function that reads it."""


def scaling(keys: GgufKeys, tensors: Tensors, pairs: int) -> Scaling | None:
    """Return the scaling that a file describes, or None.

    Args:
        keys: Of the file.
        tensors: Of the file; those of rotary factors are read.
        pairs: Number of rotary pairs, R.

    Raises:
        ConfigError: The kind is unknown, a number is missing or out of range, or the file asks for
            two scalings at once; each is named.
    """
    has_factors = LONG in tensors or SHORT in tensors
    usual = "longrope" if has_factors else "linear"
    kind = keys.choice("rope.scaling.type", sorted(_KINDS), usual)
    if kind != "yarn":
        for key in (*_YARN_KEYS, *([] if kind == "longrope" else [_ATTENTION])):
            _only(keys, key, 1.0 if key == _ATTENTION else None, kind)
    if has_factors and kind != "longrope":
        raise keys.fault(
            "rope.scaling.type", f"'longrope' beside tensor {LONG!r}", "Is the file complete?"
        )
    found = _KINDS[kind](keys, tensors, pairs)
    if FREQS not in tensors:
        return found
    if found is not None:
        raise ConfigError(
            f"config_from_gguf: tensor {FREQS!r} is present, expected none beside the scaling "
            f"{kind!r} (one at a time is supported). Take another checkpoint."
        )
    factors = _factors(tensors, FREQS, pairs)
    return LongScaling(factors, factors, keys.whole("context_length"), 1.0, 1.0)


def _none(keys: GgufKeys, tensors: Tensors, pairs: int) -> None:
    return None


def _linear(keys: GgufKeys, tensors: Tensors, pairs: int) -> Scaling | None:
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    return None if factor == 1 else LinearScaling(factor)


def _yarn(keys: GgufKeys, tensors: Tensors, pairs: int) -> Scaling:
    factor, times = keys.number("rope.scaling.factor"), keys.number(_ATTENTION, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_positions=keys.whole(_ORIGINAL, keys.whole("context_length")),
        attention_factor=None if times == 1 else times * (1 + 0.1 * math.log(factor)),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _longrope(keys: GgufKeys, tensors: Tensors, pairs: int) -> Scaling:
    _only(keys, "rope.scaling.factor", 1.0, "longrope")
    positions = keys.whole("context_length")
    original = keys.whole(_ORIGINAL, positions)
    return LongScaling(
        short_factors=_factors(tensors, SHORT, pairs),
        long_factors=_factors(tensors, LONG, pairs),
        original_max_positions=original,
        factor=max(positions / original, 1.0),
        attention_factor=keys.number(_ATTENTION, 1.0),
    )


_KINDS: dict[str, Callable[[GgufKeys, Tensors, int], Any]] = {
    "linear": _linear,
    "longrope": _longrope,
    "none": _none,
    "yarn": _yarn,
}


def _only(keys: GgufKeys, key: str, value: float | None, kind: str) -> None:
    if keys.has(key) and keys.number(key) != value:
        wanted = "no such key" if value is None else repr(value)
        raise keys.fault(key, f"{wanted} with the scaling {kind!r}", "Is the file complete?")


def _factors(tensors: Tensors, name: str, pairs: int) -> tuple[float, ...]:
    if name not in tensors:
        raise ConfigError(
            f"config_from_gguf: tensor {name!r} is missing, expected the factors of longrope. "
            "Is the file complete?"
        )
    factors = tensors[name]()
    if factors.shape != (pairs,):
        raise ConfigError(
            f"config_from_gguf: tensor {name!r} has shape {factors.shape}, expected ({pairs},), "
            "one factor a rotary pair. Is the file complete?"
        )
    return tuple(factors.tolist())
