"""What is wrong in a command is told in one line, before the work whose result it would spoil."""

import argparse
from pathlib import Path
from typing import NoReturn

from crosscheck.commands.opening import why_not_written
from jaxkv.spec.errors import SourceError

FILES = ("json", "html", "page")


class Parser(argparse.ArgumentParser):
    """An argument parser that exits with 2 after one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 after one line."""
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def positive(text: str) -> int:
    """Return a whole number of at least 1.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def check_places(options: argparse.Namespace) -> None:
    """Refuse files that can't be written.

    Args:
        options: Of any benchmark; `json`, `html`, `page` and `folder` may be among them.

    Raises:
        SourceError: A folder is not there, or is no place to write.
    """
    folder = Path(getattr(options, "folder", "."))
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"--folder {folder}: a file, expected a folder. Give another place.")
    for name in FILES:
        file = getattr(options, name, None)
        if file is None:
            continue
        if wrong := why_not_written(file):
            raise SourceError(f"--{name} {file}: {wrong}")
