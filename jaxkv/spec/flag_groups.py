"""All groups of flags of the command `generate`. A new one is a file of its own and a name here."""

import argparse
from typing import Any

from jaxkv.spec import (
    command_cache,
    flags_branches,
    flags_cache,
    flags_drafts,
    flags_ending,
    flags_logprobs,
    flags_processors,
    flags_request,
    flags_sampling,
)
from jaxkv.spec.errors import RequestError
from jaxkv.spec.stop import Decode

# In the order of the help.
GROUPS = (
    flags_request.GROUP,
    flags_sampling.GROUP,
    flags_processors.GROUP,
    flags_ending.GROUP,
    flags_logprobs.GROUP,
    flags_branches.GROUP,
    flags_drafts.GROUP,
    flags_cache.GROUP,
    command_cache.GROUP,
)
PLAIN = "generate"


def add(parser: argparse.ArgumentParser) -> None:
    """Add all flags to the command's parser."""
    for group in GROUPS:
        group.add(parser)


def check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other.

    Raises:
        RequestError: They do.
    """
    for group in GROUPS:
        group.check(options)
    entry(options)  # which refuses two


def read(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that the entry function is called with, beside model and texts.

    Raises:
        RequestError: A flag belongs to something that was not asked for.
    """
    return {name: value for group in GROUPS for name, value in group.read(options).items()}


def entry(options: argparse.Namespace) -> str:
    """Return the name of the entry function that the flags ask for; only `generate` streams.

    Raises:
        RequestError: They ask for two.
    """
    names = [name for group in GROUPS if (name := group.entry(options)) is not None]
    if len(names) > 1:
        raise RequestError(
            f"generate: the flags ask for {' and '.join(names)}, expected one of them. Leave out "
            "the flags of the others."
        )
    return names[0] if names else PLAIN


def tell(options: argparse.Namespace, outcome: Any, decode: Decode) -> dict[str, Any]:
    """Return what `--json` adds.

    Args:
        options: The command's.
        outcome: What the entry function returned.
        decode: Ids -> text.
    """
    facts = (group.tell(options, outcome, decode) for group in GROUPS)
    return {name: value for each in facts for name, value in each.items()}


def rest(options: argparse.Namespace, outcome: Any, decode: Decode) -> list[str]:
    """Return the lines to print after the first text, where an entry gives several; see `tell`."""
    return [line for group in GROUPS for line in group.rest(options, outcome, decode)]
