"""The command `programs`: where jaxkv keeps compiled programs between runs, and to clear them.

JAX itself keeps none between processes unless told where; a command line starts anew each time.
"""

import argparse
import os
from pathlib import Path
from typing import Any

VARIABLE, OFF = "JAXKV_PROGRAMS", "off"
# What JAX lets the folder grow to; a program of 30 layers takes 0.3 MB.
MOST_BYTES = 256 * 2**20
# The names that JAX gives its files there.
_PATTERNS = ("*-cache", "*-atime", ".lockfile")


def folder() -> Path | None:
    """Return where programs are kept: what JAXKV_PROGRAMS says; None if that is "off".

    Without it, jaxkv/programs under XDG_CACHE_HOME or ~/.cache.
    """
    told = os.environ.get(VARIABLE, "")
    if told:
        return None if told == OFF else Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jaxkv", "programs")


def add(commands: Any) -> None:
    """Add the command to jaxkv's parsers."""
    programs = commands.add_parser(
        "programs", help="say where compiled programs are kept, or clear them"
    )
    programs.add_argument("--clear", action="store_true", help="delete them")
    programs.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the folder and what it takes; with --clear what was deleted."""
    where = folder()
    if where is None:
        print(f"Compiled programs are not kept: {VARIABLE} is {OFF!r}.")
        return
    files = [each for pattern in _PATTERNS for each in where.glob(pattern) if each.is_file()]
    size_bytes = sum(each.stat().st_size for each in files)
    count = sum(each.name.endswith("-cache") for each in files)
    if options.clear:
        for each in files:
            each.unlink(missing_ok=True)
    print(f"{where}: {count} programs, {size_bytes:,} bytes{' deleted' * options.clear}")
