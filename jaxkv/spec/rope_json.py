"""Rotary positions of a `config.json`, in the newer spelling and in the older one.

Newer: `rope_parameters` with `rope_theta` and `rope_type` inside. Older: `rope_theta` beside
`rope_scaling`, whose kind is called `rope_type` or, older still, `type`.
Source: transformers 5.24, `modeling_rope_utils.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxkv.spec.config import Rope
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
)

KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
"""Keys of config.json that `rope` reads."""
_DEFAULT_THETA = 10_000.0


def rope(
    config: ConfigJson,
    head_dim: int,
    *,
    block: ConfigJson | None = None,
    theta: float = _DEFAULT_THETA,
    theta_key: str = "rope_theta",
    partial: float | None = None,
) -> Rope:
    """Return the rotary positions that a config describes.

    Args:
        config: Of the whole file.
        head_dim: Channels of a head.
        block: Holds the scaling; by default the one of the whole file, under either name.
        theta: Where neither the file nor the block states it.
        theta_key: Beside the block, where the base stands.
        partial: Share of a head's channels that turn unless the block states it; None for a family
            that turns whole heads.

    Raises:
        ConfigError: The rope type is unknown, a number of it is missing or not a number, a key is
            unknown, or two spellings contradict each other; each is named.
    """
    block = block_of(config) if block is None else block
    read = {"rope_theta", "rope_type", "type"}
    keys, make = _KINDS[_kind(block)]
    share = {"partial_rotary_factor": 1.0} if partial is None else {}
    read |= {*keys, *({"partial_rotary_factor"} if partial is not None else ())}
    block.check_keys(read, {}, share)
    turned = head_dim if partial is None else _turned(block, head_dim, partial)
    return Rope(_theta(config, block, theta, theta_key), turned, make(config, block, turned))


def block_of(config: ConfigJson) -> ConfigJson:
    """Return the object that holds the scaling, empty where there is none.

    Raises:
        ConfigError: It is no object, or two spellings contradict each other.
    """
    given = [key for key in ("rope_parameters", "rope_scaling") if key in config.data]
    values = [config.data[key] for key in given]
    if len(given) == 2 and values[0] != values[1]:
        raise ConfigError(
            f"{config.owner}: rope_parameters {values[0]} and rope_scaling {values[1]} differ, "
            "expected one of them. Remove the one that does not hold."
        )
    if not given:
        return ConfigJson({}, "rope_parameters")
    if not isinstance(values[0], dict):
        raise config.fault(given[0], "an object", "Is the file complete?")
    return ConfigJson(values[0], given[0])


def max_positions(config: ConfigJson) -> int:
    """Return how many positions a model has: more than it was trained at, with a dynamic base.

    Raises:
        ConfigError: The number is missing or something else.
    """
    trained = config.whole("max_position_embeddings")
    block = block_of(config)
    if "dynamic" in (block.data.get("rope_type"), block.data.get("type")):
        return int(trained * block.number("factor"))
    return trained


def _kind(block: ConfigJson) -> str:
    kinds = {block.data[key] for key in ("rope_type", "type") if key in block.data}
    if len(kinds) > 1:
        raise ConfigError(
            f"{block.owner}: rope_type is {block.data['rope_type']!r}, expected the same as type "
            f"{block.data['type']!r}. Remove the one that does not hold."
        )
    key = "type" if "type" in block.data else "rope_type"
    return block.choice(key, {name: name for name in _KINDS}, "default")


def _theta(config: ConfigJson, block: ConfigJson, default: float, key: str) -> float:
    outer = config.number(key, default)
    inner = block.number("rope_theta", outer)
    if key in config.data and inner != outer:
        raise ConfigError(
            f"{config.owner}: {key} is {outer}, expected {inner} as in {block.owner}. "
            "Remove the one that does not hold."
        )
    return inner


def _turned(block: ConfigJson, head_dim: int, partial: float) -> int:
    share = block.number("partial_rotary_factor", partial)
    if share > 1:
        raise block.fault("partial_rotary_factor", "at most 1", "Is the file complete?")
    return int(head_dim * share)


def _original(config: ConfigJson, block: ConfigJson) -> int:
    # Where both are stated, the one beside the block is taken, as the field's library does.
    key = "original_max_position_embeddings"
    inner = block.whole(key, config.whole("max_position_embeddings"))
    return config.whole(key, inner)


def _factor(config: ConfigJson, block: ConfigJson) -> float:
    stretch = config.whole("max_position_embeddings") / _original(config, block)
    return block.number("factor", max(stretch, 1.0))


def _none(config: ConfigJson, block: ConfigJson, turned: int) -> None:
    return None


def _linear(config: ConfigJson, block: ConfigJson, turned: int) -> Scaling:
    return LinearScaling(block.number("factor"))


def _dynamic(config: ConfigJson, block: ConfigJson, turned: int) -> Scaling:
    return DynamicScaling(block.number("factor"), config.whole("max_position_embeddings"))


def _yarn(config: ConfigJson, block: ConfigJson, turned: int) -> Scaling:
    both = [block.number_or_off(key, None) for key in ("mscale", "mscale_all_dim")]
    # One of the two alone says nothing: the factor is then that of mscale 1.
    mscale, all_dim = both if all(both) else (1.0, 0.0)
    given = "attention_factor" in block.data
    return YarnScaling(
        factor=_factor(config, block),
        original_max_positions=_original(config, block),
        attention_factor=block.number("attention_factor") if given else None,
        mscale=mscale or 1.0,
        mscale_all_dim=all_dim or 0.0,
        beta_fast=block.number("beta_fast", 32.0),
        beta_slow=block.number("beta_slow", 1.0),
        truncate=block.flag("truncate", True),
    )


def _longrope(config: ConfigJson, block: ConfigJson, turned: int) -> Scaling:
    given = "attention_factor" in block.data
    return LongScaling(
        short_factors=block.numbers("short_factor", turned // 2),
        long_factors=block.numbers("long_factor", turned // 2),
        original_max_positions=_original(config, block),
        factor=_factor(config, block),
        attention_factor=block.number("attention_factor") if given else None,
    )


def _llama3(config: ConfigJson, block: ConfigJson, turned: int) -> Scaling:
    return Llama3Scaling(
        factor=block.number("factor"),
        low_freq_factor=block.number("low_freq_factor"),
        high_freq_factor=block.number("high_freq_factor"),
        original_max_positions=block.whole("original_max_position_embeddings"),
    )


_ORIGINAL = "original_max_position_embeddings"
_Make = Callable[[ConfigJson, ConfigJson, int], Any]
_LONG = ("factor", "short_factor", "long_factor", "attention_factor", _ORIGINAL)
_KINDS: dict[str, tuple[tuple[str, ...], _Make]] = {
    "default": ((), _none),
    "dynamic": (("factor",), _dynamic),
    "linear": (("factor",), _linear),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), _llama3),
    "longrope": (_LONG, _longrope),
    # The name that the first checkpoints have for it.
    "su": (_LONG, _longrope),
    "yarn": (
        (
            "factor",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "beta_fast",
            "beta_slow",
            "truncate",
            _ORIGINAL,
        ),
        _yarn,
    ),
}


def to_json(rope: Rope | None, *, partial_of: int | None = None) -> dict[str, Any]:
    """Return the newer spelling of rotary positions, which `rope` reads.

    Args:
        rope: What to spell.
        partial_of: The head width, of a family that may turn a part of each head.
    """
    if rope is None:
        return {}
    block: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if partial_of is not None:
        block["partial_rotary_factor"] = rope.rotary_dim / partial_of
    return block if rope.scaling is None else block | _scaling_json(rope.scaling)


def _scaling_json(scaling: Scaling) -> dict[str, Any]:
    fields = dataclasses.asdict(scaling)
    # What the file has beside the block, and None, which it leaves out.
    skipped = {"kind"} | ({"original_max_positions"} if scaling.follows_length else set())
    block = {
        _SPELLED.get(key, key): list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
        if key not in skipped and value is not None
    }
    if isinstance(scaling, YarnScaling) and not scaling.mscale_all_dim:
        block = {key: value for key, value in block.items() if key[:6] != "mscale"}
    if isinstance(scaling, LongScaling):
        block[_ORIGINAL] = scaling.original_max_positions
    return {"rope_type": fields["kind"]} | block


_SPELLED = {
    "original_max_positions": _ORIGINAL,
    "short_factors": "short_factor",
    "long_factors": "long_factor",
}
