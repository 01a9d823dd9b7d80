"""The command `replay`: run a saved failure again."""

import argparse
from dataclasses import replace
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, write_json
from crosscheck.exits import exit_code
from crosscheck.failure import Failure, load
from crosscheck.programs.case_json import case_from_json
from crosscheck.results import RelationResult
from crosscheck.screen import show
from crosscheck.text import divergence_lines, label


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(commands, "replay", run, help="run a saved failure again")
    parser.add_argument("file", metavar="FILE", help="the .json that `run` saved")
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Replay, print whether it still fails, and return the exit code.

    Raises:
        CrosscheckError: The file or its specs name nothing.
        SubjectRaised: A model cannot be made.
    """
    from crosscheck.results_json import row_to_json

    row = replay(load(options.file))
    if options.json != "-":
        if row.verdict == "fail":
            show(divergence_lines(row, options.file))
        else:
            words = row.reason or "the saved case no longer fails"
            show([f"{row.verdict.upper()} {label(row)}, {row.dtype}: {words}"])
    write_json(row_to_json(row), options.json)
    return exit_code(row.verdict)


def replay(failure: Failure, subject: Any = None) -> RelationResult:
    """Return the saved relation's result on the saved case, now.

    Args:
        failure: From `load`.
        subject: Use this one in place of the saved spec.

    Raises:
        CrosscheckError: The relation or a spec is unknown.
        SubjectRaised: A model cannot be made.
    """
    from crosscheck.check import check_case
    from crosscheck.select import select

    (relation,) = select(failure.relation)
    candidate = open_subject(failure.subject) if subject is None else subject
    reference = open_subject(failure.against) if failure.against else None
    case = case_from_json(failure.case)
    row = check_case(candidate, reference, relation.name, case, dtype=failure.dtype)
    return replace(row, axis="parity" if failure.against else "self")
