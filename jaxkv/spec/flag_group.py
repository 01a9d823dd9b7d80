"""A group of flags of the command `generate`: a file of its own, one place in flag_groups.py."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.stop import Decode


def _nothing(*_: Any) -> None:
    return None


def _no_facts(*_: Any) -> dict[str, Any]:
    return {}


def _no_lines(*_: Any) -> list[str]:
    return []


@dataclass(frozen=True)
class FlagGroup:
    """What a group of flags adds to the command.

    Attributes:
        add: Adds the flags to the command's parser.
        read: From the options, the arguments that an entry function of either twin is called with
            (its `generate`, `stream` and others), by their names there.
        check: Raises RequestError where the options contradict each other, before a model is
            opened.
        entry: From the options, the name of the entry function that they ask for, a key of
            `ENTRIES` in the twins' cli.py; None where they ask for none.
        tell: From the options, what the entry returned and ids -> text: the fields that `--json`
            adds.
        rest: From the same, the lines to print after the first text, where there are more texts.
    """

    add: Callable[[argparse.ArgumentParser], None]
    read: Callable[[argparse.Namespace], dict[str, Any]] = _no_facts
    check: Callable[[argparse.Namespace], None] = _nothing
    entry: Callable[[argparse.Namespace], str | None] = _nothing
    tell: Callable[[argparse.Namespace, Any, Decode], dict[str, Any]] = _no_facts
    rest: Callable[[argparse.Namespace, Any, Decode], list[str]] = _no_lines


def given(options: argparse.Namespace, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults: an entry need not take the others."""
    values = {name: getattr(options, name) for name in defaults}
    return {name: value for name, value in values.items() if value != defaults[name]}
