"""The flags of what a text does to its own logits."""

import argparse
from typing import Any

from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup, given

_DEFAULTS = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_new_tokens": 0,
}


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="divides the logits of tokens in prompt and new text; default 1",
    )
    add(
        "--presence-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="taken from the logits of tokens in the new text",
    )
    add(
        "--frequency-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="taken from them for each time that they came",
    )
    add(
        "--logit-bias",
        action="append",
        metavar="ID=B",
        help="added to the logit of a token, -inf bars it; may be repeated",
    )
    add(
        "--min-new-tokens",
        type=int,
        default=0,
        metavar="N",
        help="new tokens before any end token",
    )


def _check(options: argparse.Namespace) -> None:
    if options.min_new_tokens > max(options.max_new_tokens, 0):
        raise RequestError(
            f"generate: --min-new-tokens is {options.min_new_tokens}, expected at most "
            f"--max-new-tokens {options.max_new_tokens}. Lower it, or raise --max-new-tokens."
        )
    _biases(options)


def _read(options: argparse.Namespace) -> dict[str, Any]:
    bias = _biases(options)
    return given(options, _DEFAULTS) | ({"logit_bias": bias} if bias else {})


def _biases(options: argparse.Namespace) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in options.logit_bias or ():
        token, _, bias = text.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise RequestError(
                f"generate: --logit-bias is {text!r}, expected an id and a number such as 13=-2.5 "
                "or 13=-inf. Give one each time."
            ) from None
    return found


GROUP = FlagGroup(_add, _read, _check)
