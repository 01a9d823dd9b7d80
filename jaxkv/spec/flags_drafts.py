"""The flags of speculation: a model that drafts, or a lookup in the text."""

import argparse
from typing import Any

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import RequestError, Unsupported
from jaxkv.spec.flag_group import Decode, FlagGroup
from jaxkv.spec.source import open_source, open_tokenizer

DRAFTS = 4
MTP = "mtp"
"""What `--draft` names where the model's own module drafts; a directory called so is ./mtp."""


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a smaller model with the same tokenizer, which drafts; or mtp: DeepSeek-V3's own module"
    add("--draft", metavar="MODEL", help=what)
    add("--k", type=int, metavar="K", help=f"its drafts a step, default {DRAFTS}")
    add(
        "--prompt-lookup",
        type=int,
        metavar="K",
        help="draft K tokens a step from what followed the last ones earlier in the text",
    )


def _check(options: argparse.Namespace) -> None:
    if options.draft is not None and options.prompt_lookup is not None:
        raise RequestError(
            "generate: --draft and --prompt-lookup are given, expected one of them. Leave out one."
        )
    if options.k is not None and options.draft is None:
        raise RequestError(
            f"generate: --k is {options.k} without --draft. Add --draft MODEL, or use "
            "--prompt-lookup K."
        )
    if options.no_cache and _entry(options) is not None:
        raise RequestError("generate: --no-cache leaves nothing to verify drafts in. Leave it out.")


def _read(options: argparse.Namespace) -> dict[str, Any]:
    if options.prompt_lookup is not None:
        return {"k": options.prompt_lookup}
    if options.draft is None:
        return {}
    return {"k": DRAFTS if options.k is None else options.k}


def _entry(options: argparse.Namespace) -> str | None:
    asked = options.draft is not None or options.prompt_lookup is not None
    return "speculate" if asked else None


def _tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    if _entry(options) is None:
        return {}
    names = ("drafted", "accepted", "rolled_back")
    return {name: int(getattr(outcome, f"{name}_B")[0]) for name in names}


def check_config(options: argparse.Namespace, checkpoint: Checkpoint) -> None:
    """Refuse drafts beside an encoder.

    Raises:
        Unsupported: The model has one.
    """
    if _entry(options) is not None and checkpoint.config.encoder is not None:
        flag = "--draft" if options.prompt_lookup is None else "--prompt-lookup"
        raise Unsupported(
            f"generate: {flag} is given, but {checkpoint.name!r} has an encoder, beside which "
            "drafts are not verified. Leave it out."
        )


def open_draft(options: argparse.Namespace, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of the model that drafts.

    Args:
        options: The command's, with `draft`.
        checkpoint: Of the model that verifies.

    Raises:
        SourceError: The name leads to no model.
        RequestError: Its tokenizer gives other ids.
    """
    draft = open_source(options.draft)
    own, other = open_tokenizer(checkpoint), open_tokenizer(draft)
    if own.vocab_size != other.vocab_size:
        raise RequestError(
            f"generate: the tokenizer of --draft {options.draft} has {other.vocab_size} tokens, "
            f"the model's {own.vocab_size}. Take a draft with the model's own tokenizer."
        )
    for token in range(own.vocab_size):
        mine, theirs = own.decode([token]), other.decode([token])
        if mine != theirs:
            raise RequestError(
                f"generate: token {token} is {theirs!r} to the tokenizer of --draft "
                f"{options.draft}, {mine!r} to the model's. Take a draft with the model's own "
                "tokenizer."
            )
    return draft


GROUP = FlagGroup(_add, _read, _check, _entry, _tell)
