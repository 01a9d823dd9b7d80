"""The flag of log-probabilities, which `--json` prints."""

import argparse
from collections.abc import Sequence
from typing import Any

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError
from jaxkv.spec.flag_group import FlagGroup
from jaxkv.spec.stop import Decode

NAMES = ("logprobs", "top_ids", "top_logprobs")
"""Where an outcome keeps them."""


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


def check_model(options: argparse.Namespace, config: ModelConfig) -> None:
    """Refuse more likeliest tokens than a model has.

    Raises:
        RequestError: They are more.
    """
    if options.logprobs is not None and options.logprobs > config.vocab_size:
        raise RequestError(
            f"generate: --logprobs is {options.logprobs}, expected at most {config.vocab_size}, "
            "the model's vocabulary. Lower it."
        )


def _read(options: argparse.Namespace) -> dict[str, Any]:
    # `generate` takes True for the new tokens' alone.
    return {} if options.logprobs is None else {"logprobs": options.logprobs or True}


def _tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    if options.logprobs is None:
        return {}
    # Beside beams and samples each row has several texts, and the first is the one told here.
    told = [getattr(outcome, name) for name in NAMES]
    first = [x and (x[0][0] if isinstance(x[0], list) else x[0]) for x in told]
    return {"logprobs": entries(outcome.new_tokens[0], first, decode)}


def entries(ids: Sequence[int], told: Sequence[Any], decode: Decode) -> list[dict[str, Any]]:
    """Return what `--json` tells of a text's tokens.

    Args:
        ids: New ones.
        told: Of this text, what an outcome has under `NAMES`; None for likeliest tokens that were
            not wanted.
        decode: Ids -> text.
    """
    logprobs, top_ids, top_logprobs = told
    found = [_entry(*pair, decode) for pair in zip(ids, logprobs.tolist(), strict=True)]
    if top_ids is not None:
        tops = zip(top_ids.tolist(), top_logprobs.tolist(), strict=True)
        for each, both in zip(found, tops, strict=True):
            each["top"] = [_entry(*pair, decode) for pair in zip(*both, strict=True)]
    return found


def _entry(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    return {"id": token, "text": decode([token]), "logprob": logprob}


GROUP = FlagGroup(_add, _read, _check, tell=_tell)
