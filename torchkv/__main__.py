"""`python -m torchkv`, and the command `torchkv`."""

from collections.abc import Callable
from typing import NoReturn

from jaxkv.spec.command_process import run


def command() -> NoReturn:
    """Leave the process with the exit code of `main`; 130 after an interrupt, whenever it comes."""
    run("torchkv", _main)


def _main() -> Callable[[], int]:
    from torchkv.cli import main

    return main


if __name__ == "__main__":
    command()
