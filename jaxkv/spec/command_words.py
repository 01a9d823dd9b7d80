"""What messages say, in the words of a command line: its options instead of Python's arguments.

A function knows its arguments alone, and its messages name them; a user of a command has typed
options, and never heard of the function.
"""

import argparse
import re

# Where an option has another name than the argument that it becomes.
_OTHER = {"seeds": "seed"}
_NO_OPTIONS = ("command", "model", "prompt", "run")
_CALLED = re.compile(r"^[a-z_]+: ")


def reword(message: str, options: argparse.Namespace) -> str:
    """Return the message with options in place of arguments, the command in place of a function.

    A name of several words is one wherever it stands. One of a single word is a word of the
    language too, and is an argument at the beginning, before a number, or after what to do with it.

    Args:
        message: "<function>: <argument> is <given>, expected <wanted>. <next step>."
        options: The command's.
    """
    names = {name: name for name in vars(options) if name not in _NO_OPTIONS} | _OTHER
    if getattr(options, "prompt_lookup", None) is not None:
        names["k"] = "prompt_lookup"
    found = message
    for name, option in names.items():
        if option in vars(options):
            found = _reword(found, name, f"--{option.replace('_', '-')}")
    if found == message:
        return message
    return _CALLED.sub(f"{options.command}: ", found)


def _reword(message: str, name: str, flag: str) -> str:
    word = re.escape(name)
    message = re.sub(rf"\b(set|Use) {word}='?(\w+)'?", rf"\1 {flag} \2", message)
    if "_" in name:
        return re.sub(rf"(^|\s){word}\b(?!=)", rf"\1{flag}", message)
    before = rf"^[a-z_]+: |\b(?:[Rr]aise |[Ll]ower )|, (?={word} \d)"
    return re.sub(rf"({before}){word}\b", rf"\1{flag}", message)
