"""The command `calibrate`: how much a subject's own results move by rounding alone."""

import argparse
from dataclasses import asdict
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, write_json
from crosscheck.commands.run import add_dtypes
from crosscheck.screen import show


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(
        commands, "calibrate", run, help="measure a model's rounding in each dtype"
    )
    shared.add_subject(parser, against=False)
    add_dtypes(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the texts (default 0)")
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print one block a dtype, and return 0.

    Raises:
        CrosscheckError: The spec names nothing.
        SubjectRaised: The model cannot be made.
    """
    from crosscheck.calibrate import calibrate

    subject = open_subject(options.subject)
    measured = [
        asdict(noise) for noise in calibrate(subject, dtypes=options.dtypes, seed=options.seed)
    ]
    if options.json != "-":
        for noise in measured:
            show(_lines(noise))
    write_json({"schema_version": 1, "subject": subject.info.name, "noise": measured}, options.json)
    return 0


def _lines(noise: dict[str, Any]) -> list[str]:
    return [f"{name:<16}{_number(value)}" for name, value in noise.items()] + [""]


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
