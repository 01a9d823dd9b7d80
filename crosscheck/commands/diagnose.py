"""The command `diagnose`: which faults of the dictionary would explain a divergence."""

import argparse
from dataclasses import asdict
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.failing import failing_row
from crosscheck.commands.opening import write_json
from crosscheck.exits import exit_code
from crosscheck.screen import show
from crosscheck.text import diagnosed, diagnosis_lines, verdict_line


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(commands, "diagnose", run, help="name the fault behind a divergence")
    shared.add_subject(parser)
    shared.add_run(parser)
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Find a failing relation, name its likely faults, and return the exit code.

    Raises:
        CrosscheckError: An option or a spec names nothing.
        SubjectRaised: A model cannot be made.
    """
    report, found = failing_row(options)
    diagnosis = () if found is None else found.row.diagnosis or found.diagnose()
    if options.json != "-":
        if found is None:
            show([verdict_line(report, report.verdict)])
        else:
            show([diagnosed(found.row), *diagnosis_lines(diagnosis)])
    write_json([asdict(each) for each in diagnosis], options.json)
    return exit_code(report.verdict)
