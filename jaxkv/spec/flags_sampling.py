"""The flags of how tokens are drawn."""

import argparse
from typing import Any

from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup, given

_DEFAULTS = {"temperature": 0.0, "top_k": None, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--temperature", type=float, default=0.0, metavar="X", help="default 0: greedy")
    add("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    add(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest ones up to P"
    )
    add("--min-p", type=float, default=0.0, metavar="P", help="least share of the likeliest one")
    add("--seed", type=int, default=0, metavar="N", help="of the draws; default 0")


def _read(options: argparse.Namespace) -> dict[str, Any]:
    asked = given(options, _DEFAULTS)
    return {"seeds" if name == "seed" else name: value for name, value in asked.items()}


def _check(options: argparse.Namespace) -> None:
    # Beams and samples have a group of their own, which says more.
    if options.temperature != 0 or options.beams is not None or options.samples is not None:
        return
    drawn = {name: value for name, value in _DEFAULTS.items() if name != "temperature"}
    for name, value in given(options, drawn).items():
        raise RequestError(
            f"generate: --{name.replace('_', '-')} is {value}, and nothing is drawn at "
            "--temperature 0. Give a --temperature above 0, or leave it out."
        )


GROUP = FlagGroup(_add, _read, _check)
