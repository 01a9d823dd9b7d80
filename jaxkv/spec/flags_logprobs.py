"""The flag of log-probabilities, which `--json` prints."""

import argparse
from typing import Any

from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup
from jaxkv.spec.stop import Decode


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: of each new token and of the N likeliest at its place; 0 for its alone",
    )


def _check(options: argparse.Namespace) -> None:
    if options.logprobs is None:
        return
    if options.logprobs < 0:
        raise RequestError(
            f"generate: --logprobs is {options.logprobs}, expected at least 0. Give 0 for the new "
            "tokens' alone."
        )
    if not options.json:
        raise RequestError(
            f"generate: --logprobs is {options.logprobs}, and only --json prints them. Give "
            "--json, or leave out --logprobs."
        )


def _read(options: argparse.Namespace) -> dict[str, Any]:
    # `generate` takes True for the new tokens' alone.
    return {} if options.logprobs is None else {"logprobs": options.logprobs or True}


def _plain(options: argparse.Namespace) -> str | None:
    return None if options.logprobs is None else "--logprobs"


def _tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    if options.logprobs is None:
        return {}
    pairs = zip(outcome.new_tokens[0], outcome.logprobs[0].tolist(), strict=True)
    found = [_entry(token, logprob, decode) for token, logprob in pairs]
    if options.logprobs:
        tops = zip(outcome.top_ids[0].tolist(), outcome.top_logprobs[0].tolist(), strict=True)
        for each, (ids, logprobs) in zip(found, tops, strict=True):
            each["top"] = [_entry(*pair, decode) for pair in zip(ids, logprobs, strict=True)]
    return {"logprobs": found}


def _entry(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    return {"id": token, "text": decode([token]), "logprob": logprob}


GROUP = FlagGroup(_add, _read, _check, plain=_plain, tell=_tell, serves=("speculate",))
