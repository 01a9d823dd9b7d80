"""`python -m jaxkv`, and the command `jaxkv`."""

from collections.abc import Callable
from typing import NoReturn

from jaxkv.spec.command_process import run


def command() -> NoReturn:
    """Leave the process with the exit code of `main`; 130 after an interrupt, whenever it comes."""
    run("jaxkv", _main)


def _main() -> Callable[[], int]:
    from jaxkv.cli import main

    return main


if __name__ == "__main__":
    command()
