"""The flags of what is continued, by how much, and whether a cache is kept."""

import argparse

from jaxkv.spec.flag_group import FlagGroup


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompt",
        required=True,
        help="text (the encoder's, if there is one); for 'reference', ids separated by spaces",
    )
    add("--chat", action="store_true", help="the prompt is a user's turn: use the chat template")
    add("--max-new-tokens", type=int, default=32, metavar="N", help="default 32")
    add("--no-cache", action="store_true", help="recompute the whole text for every token")


GROUP = FlagGroup(_add)
