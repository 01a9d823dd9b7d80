"""The command `localize`: where the first divergence begins."""

import argparse
from dataclasses import asdict
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.failing import failing_row
from crosscheck.commands.opening import write_json
from crosscheck.exits import exit_code
from crosscheck.screen import show
from crosscheck.text import divergence_lines, verdict_line, where

FIELDS = (
    *("relation", "row", "position", "chunk", "layer", "point", "inherited"),
    *("origin", "isolated"),
)


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(commands, "localize", run, help="say where a divergence begins")
    shared.add_subject(parser)
    shared.add_run(parser)
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Find a failing relation, say where it begins, and return the exit code.

    Raises:
        CrosscheckError: An option or a spec names nothing.
        SubjectRaised: A model cannot be made.
    """
    report, found = failing_row(options)
    divergence = None if found is None else found.row.divergence or found.localize()
    if options.json != "-":
        if found is None or divergence is None:
            show([verdict_line(report, report.verdict)])
        else:
            show([f"begins at {where(divergence)}", "", *divergence_lines(found.row)])
    data = dict.fromkeys(FIELDS) if divergence is None else asdict(divergence)
    write_json({"verdict": report.verdict} | data, options.json)
    return exit_code(report.verdict)
