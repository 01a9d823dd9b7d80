"""The flags of strings that end the text."""

import argparse
from typing import Any

from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup
from jaxkv.spec.stop import Decode


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop",
        action="append",
        metavar="STR",
        help="end before this string, wherever tokens split it; may be repeated",
    )


def _check(options: argparse.Namespace) -> None:
    if "" in (options.stop or ()):
        raise RequestError(
            "generate: --stop is '', expected at least 1 character. Leave it out, or give a string."
        )
    if options.stop and options.no_cache:
        raise RequestError(
            "generate: --stop needs a cache to go on from after the text was looked at. Leave out "
            "--no-cache or --stop."
        )


def _tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    if not options.stop:
        return {}
    return {"text": outcome.texts[0], "stopped": outcome.stopped[0]}


def ending(options: argparse.Namespace, decode: Decode) -> dict[str, Any]:
    """Return the arguments of the entry for the strings, which need the model's tokenizer."""
    return {"stop": tuple(options.stop), "decode": decode} if options.stop else {}


GROUP = FlagGroup(_add, check=_check, tell=_tell)
