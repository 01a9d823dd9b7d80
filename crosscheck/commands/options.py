"""Options that several commands share, and the parser whose errors are one line."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

SUBJECT = (
    "a model: 'file.py:factory', 'pkg.mod:factory', 'hf:DIR', 'hf-tiny:FAMILY', or a twin such as "
    "'jaxkv.subject:llama?layout=paged'"
)


class Parser(argparse.ArgumentParser):
    """An argument parser that exits with 2 after one line."""

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Return the options; what no command knows sends to the help of the one given."""
        found, unknown = self.parse_known_args(argv)
        if unknown:
            own = Parser(f"{self.prog} {found.command}")
            own.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def error(self, message: str) -> NoReturn:
        """Exit with 2 after one line, as for every other wrong input."""
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def command(commands: Any, name: str, run: Any, *, help: str) -> argparse.ArgumentParser:
    """Return a new command's parser; `run(options)` returns the exit code."""
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def add_subject(parser: argparse.ArgumentParser, *, against: bool = True) -> None:
    """Add SUBJECT, and --against where there may be a second one."""
    parser.add_argument("subject", metavar="SUBJECT", help=SUBJECT)
    if against:
        parser.add_argument(
            "--against",
            metavar="SUBJECT",
            help="the reference; by default the subject's own forward without a cache",
        )


def add_run(
    parser: argparse.ArgumentParser, *, relations: str = "core", budget: float | None = 60.0
) -> None:
    """Add what decides what is run: relations, budget, seed; a budget of None is the model's."""
    add = parser.add_argument
    add(
        "--relations",
        default=relations,
        metavar="NAMES",
        help=f"names and patterns, as core,window.* (default {relations}; all for every one)",
    )
    add(
        "--budget",
        type=seconds,
        default=budget,
        metavar="TIME",
        help="how long the run may take in all, as 90s or 2m (default 60s"
        + (", after loading, and up to 600s for a large model)" if budget is None else ")"),
    )
    add_seed(parser, "of all that is drawn")


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --seed; `what` says what is drawn with it."""
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help=f"{what}, from 0 on (default 0)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", metavar="FILE", help="write the result to FILE, '-' for stdout")


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add --html."""
    parser.add_argument("--html", metavar="FILE", help="write the result as one page")


def seconds(text: str) -> float:
    """Return a time in seconds: '90', '90s', '1.5m'.

    Raises:
        ArgumentTypeError: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(s|m|h)?", text.strip())
    value = float(match[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[match[2]] if match else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, expected 60s, 2m or the like")
    return value


def whole(text: str) -> int:
    """Return a whole number from 0 on, which every generator takes as a seed.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed, expected 0, 1, 2 or the like")
    return int(text)


def dtypes(text: str) -> tuple[str, ...]:
    """Return the dtypes of a list with commas.

    Raises:
        ArgumentTypeError: One of them is unknown.
    """
    from crosscheck.judge import UNIT_ROUNDOFF

    names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    for name in names or ("",):
        if name not in UNIT_ROUNDOFF:
            raise argparse.ArgumentTypeError(
                f"{name!r} is unknown, expected some of {','.join(UNIT_ROUNDOFF)}"
            )
    return names
