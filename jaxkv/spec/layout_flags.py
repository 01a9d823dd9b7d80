"""Command-line flags of layouts with options of their own."""

import argparse
from typing import Any

from jaxkv.spec.compression import QUANTIZED_OPTIONS, SINK_OPTIONS
from jaxkv.spec.errors import RequestError

_FLAGS = {
    "bits": "quantized: 2, 4, 8 or fp8 (default 4)",
    "group_size": "quantized: numbers that share a scale (default: up to 32, divides a head)",
    "residual_length": "quantized: last tokens kept as they are (default 32, in whole groups)",
    "order": "quantized: chunk_invariant (default) or kivi",
    "sinks": "sinks: first tokens kept (default 4)",
    "window": "sinks: last tokens kept (default 1020)",
}
_OF = {
    "quantized": QUANTIZED_OPTIONS,
    "sinks": SINK_OPTIONS,
    "sinks_absolute": SINK_OPTIONS,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command that makes or counts a cache."""
    for name, about in _FLAGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=_value, metavar="X", help=about)


def given_flags(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was given for a layout alone, by name, whether or not it has it."""
    values = {name: getattr(options, name) for name in _FLAGS}
    return {name: value for name, value in values.items() if value is not None}


def read_flags(function: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what was given for the layout alone, as `caches.init` takes it.

    Raises:
        RequestError: An option of another layout.
    """
    given = given_flags(options)
    for name in given:
        if name not in _OF.get(options.layout, ()):
            raise RequestError(
                f"{function}: --{name.replace('_', '-')} is {given[name]}, which --layout "
                f"{options.layout} does not have. Leave it out."
            )
    return given


def _value(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
