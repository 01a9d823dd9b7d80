"""The options that keep a command line's cache in a file, and what must agree before it goes on."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from jaxkv.spec.cache_file import Saved
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, SourceError, Unsupported
from jaxkv.spec.flag_group import FlagGroup

# Tokens that a ring of a cache that goes to disk can take back: a text that ends where the saved
# one did still has its last token to compute.
SLACK = 1


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    add_argument = parser.add_argument
    add_argument(
        "--save-cache", metavar="F", help="write the cache of prompt and new tokens to a file"
    )
    add_argument(
        "--load-cache", metavar="F", help="go on from a saved cache with whose text PROMPT begins"
    )
    add_argument("--tenant", metavar="S", default="", help="whose file it is: only S can load it")


def check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other.

    Raises:
        RequestError: They do.
        SourceError: A cache cannot be written where it should be.
    """
    kept = _is_kept(options)
    refused = {
        "--tenant says whose file is saved or loaded, and there is none. Leave it out, or give "
        "--save-cache or --load-cache.": options.tenant and not kept,
        "--no-cache keeps nothing to save or to go on from. Leave out --no-cache, or --save-cache "
        "and --load-cache.": options.no_cache and kept,
        "--capacity is that of the saved cache. Leave it out here, and give it when saving.": (
            options.load_cache is not None and options.capacity is not None
        ),
        "--save-cache has nothing to save with --max-new-tokens 0, since nothing enters the model. "
        "Ask for 1 token or more.": options.save_cache is not None and options.max_new_tokens == 0,
    }
    for message, holds in refused.items():
        if holds:
            raise RequestError(f"generate: {message}")
    if options.save_cache is not None:
        _check_place(Path(options.save_cache))


def _check_place(path: Path) -> None:
    """Refuse a place where nothing can be written, before anything is computed for it.

    Raises:
        SourceError: It is a folder, or its folder is not there or may not be written to.
    """
    facts = {
        f"there is no folder {path.parent}": not path.parent.is_dir(),
        "it is a folder": path.is_dir(),
        f"the folder {path.parent} may not be written to": not os.access(path.parent, os.W_OK),
    }
    for fact, holds in facts.items():
        if holds:
            raise SourceError(
                f"generate: --save-cache {path} cannot be written: {fact}. Choose another place."
            )


def check_model(options: argparse.Namespace, config: ModelConfig) -> None:
    """Refuse to keep the cache of a model whose keys and values depend on more than its text.

    Raises:
        Unsupported: It has an encoder.
    """
    if _is_kept(options) and getattr(config, "encoder", None) is not None:
        raise Unsupported(
            "generate: --save-cache and --load-cache know the decoder's text alone, and the model "
            "has an encoder. Leave them out."
        )


def slack_of(options: argparse.Namespace) -> int:
    """Return by how many tokens a ring of this command's cache can be rolled back."""
    return SLACK if _is_kept(options) else 0


def reused_of(saved: Saved, prompt_ids: Sequence[int], path: str) -> int:
    """Return how many tokens of a prompt a saved cache spares: all that it holds, or all but one.

    Args:
        saved: What the file says of itself.
        prompt_ids: The encoded prompt.
        path: For messages.

    Raises:
        SourceError: The saved text is not the beginning of the prompt.
        RequestError: The file holds several texts.
    """
    if len(saved.tokens) != 1:
        raise RequestError(
            f"generate: --load-cache {path} holds {len(saved.tokens)} texts, expected 1."
        )
    held, prompt = saved.tokens[0], [int(token) for token in prompt_ids]
    if held != prompt[: len(held)]:
        pairs = zip(held, prompt, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(prompt))
        there = f"{prompt[at]} in the prompt" if at < len(prompt) else "where the prompt has ended"
        raise SourceError(
            f"generate: --load-cache {path} holds a text of {len(held)} tokens whose token {at} is "
            f"{held[at]}, {there}. Give a prompt that begins with the saved text, or leave out "
            "--load-cache."
        )
    return min(len(held), len(prompt) - 1)


def _is_kept(options: argparse.Namespace) -> bool:
    return options.save_cache is not None or options.load_cache is not None


GROUP = FlagGroup(add, check=check)
