"""Rotary positions of a `config.json`, in the newer spelling and in the older one.

Newer: `rope_parameters` with `rope_theta` and `rope_type` inside. Older: `rope_theta` beside
`rope_scaling`, whose kind is called `rope_type` or, older still, `type`.
Source: transformers 5.24, `modeling_rope_utils.py`.
"""

from jaxkv.spec.config import Llama3Scaling, Rope
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError

KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
"""Keys of config.json that `rope` reads."""
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_KEYS_OF_TYPE: dict[str, tuple[str, ...]] = {"default": (), "llama3": _LLAMA3}
_DEFAULT_THETA = 10_000.0


def rope(config: ConfigJson, rotary_dim: int) -> Rope:
    """Return the rotary positions that a config describes.

    Args:
        config: Of the whole file.
        rotary_dim: Channels of a head that turn.

    Raises:
        ConfigError: The rope type is unknown, a number of it is missing or not a number, a key is
            unknown, or two spellings contradict each other; each is named.
    """
    block = _block(config)
    kind = _kind(block)
    block.check_keys(
        {"rope_theta", "rope_type", "type", *_KEYS_OF_TYPE[kind]},
        {},
        {"partial_rotary_factor": 1.0},
    )
    return Rope(_theta(config, block), rotary_dim, _llama3(block) if kind == "llama3" else None)


def _block(config: ConfigJson) -> ConfigJson:
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


def _kind(block: ConfigJson) -> str:
    kinds = {block.data[key] for key in ("rope_type", "type") if key in block.data}
    if len(kinds) > 1:
        raise ConfigError(
            f"{block.owner}: rope_type is {block.data['rope_type']!r}, expected the same as type "
            f"{block.data['type']!r}. Remove the one that does not hold."
        )
    key = "type" if "type" in block.data else "rope_type"
    return block.choice(key, {name: name for name in _KEYS_OF_TYPE}, "default")


def _theta(config: ConfigJson, block: ConfigJson) -> float:
    outer = config.number("rope_theta", _DEFAULT_THETA)
    inner = block.number("rope_theta", outer)
    if "rope_theta" in config.data and inner != outer:
        raise ConfigError(
            f"{config.owner}: rope_theta is {outer}, expected {inner} as in {block.owner}. "
            "Remove the one that does not hold."
        )
    return inner


def _llama3(block: ConfigJson) -> Llama3Scaling:
    return Llama3Scaling(
        factor=block.number("factor"),
        low_freq_factor=block.number("low_freq_factor"),
        high_freq_factor=block.number("high_freq_factor"),
        original_max_positions=block.whole("original_max_position_embeddings"),
    )
