"""The flags of a cache made for the request."""

import argparse
from typing import Any

from jaxkv.spec import command_cache
from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup, given
from jaxkv.spec.layout_flags import add_flags, given_flags, read_flags

LAYOUTS = ("contiguous", "window", "paged", "quantized", "sinks", "sinks_absolute")


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--capacity", type=int, metavar="N", help="tokens that the cache can hold (default: need)")
    add("--layout", choices=LAYOUTS, default="contiguous", help="of the cache")
    add("--page-size", type=int, metavar="P", help="tokens of a page, for --layout paged")
    add_flags(parser)


def _check(options: argparse.Namespace) -> None:
    if not options.no_cache:
        return
    asked = given(options, {"capacity": None, "layout": "contiguous", "page_size": None})
    asked |= given_flags(options)
    for name, value in asked.items():
        raise RequestError(
            f"generate: --{name.replace('_', '-')} is {value}, and --no-cache makes no cache. "
            "Leave out one of them."
        )


def _read(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "capacity": options.capacity,
        "layout": options.layout,
        "page_size": options.page_size,
        "layout_options": read_flags("generate", options),
        "slack": command_cache.slack_of(options),
    }


GROUP = FlagGroup(_add, _read, _check)
