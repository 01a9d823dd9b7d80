"""What every part of a config shares: checks at construction, and construction from plain data."""

import dataclasses
import difflib
from typing import Any, TypeVar

from jaxkv.spec.errors import ConfigError

P = TypeVar("P", bound="Part")


def require(holds: bool, message: str) -> None:
    """Check that something holds.

    Raises:
        ConfigError: It does not.
    """
    if not holds:
        raise ConfigError(message)


def require_whole(owner: str, **values: int) -> None:
    """Check that values are whole numbers of at least 1.

    Raises:
        ConfigError: One is something else.
    """
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(
            whole and value >= 1,
            f"{owner}: {name} is {value!r}, expected a whole number of at least 1.",
        )


def require_above(owner: str, least: float, **values: float) -> None:
    """Check that values are numbers above `least`.

    Raises:
        ConfigError: One is something else.
    """
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(
            number and value > least, f"{owner}: {name} is {value!r}, expected above {least:g}."
        )


def check_keys(owner: str, given: set[str], known: set[str]) -> None:
    """Refuse keys that nobody reads.

    Raises:
        ConfigError: A key is unknown (the nearest known name is offered).
    """
    for key in sorted(given - known):
        near = difflib.get_close_matches(key, sorted(known), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
        raise ConfigError(f"{owner}: unknown key {key!r}. {hint}")


class Part:
    """Construction from plain data, shared by all parts of a config."""

    @classmethod
    def from_dict(cls: type[P], data: dict[str, Any]) -> P:
        """Return the part that plain data (as of `dataclasses.asdict`) describes.

        Raises:
            ConfigError: A key is unknown or missing, or a value is out of range.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType] every part is a dataclass
        check_keys(cls.__name__, set(data), set(fields))
        for name, field in fields.items():
            if name not in data and field.default is dataclasses.MISSING:
                raise ConfigError(f"{cls.__name__}: key {name!r} is missing. Add it.")
        return cls(**{name: cls._revive(name, value) for name, value in data.items()})

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        """Return the field's value; plain data holds dicts for parts and lists for tuples."""
        return value


def part_of(parts: dict[str, type[P]], name: str, value: Any) -> Any:
    """Return the part that a field's plain data describes; any other value as it is.

    Args:
        parts: Field -> its part.
        name: Of the field.
        value: A dict for a part.

    Raises:
        ConfigError: What `from_dict` refuses.
    """
    return parts[name].from_dict(value) if name in parts and isinstance(value, dict) else value
