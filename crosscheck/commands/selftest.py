"""The command `selftest`: plant every fault in the user's own model, and see which are found."""

import argparse
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, seconds_left, write_json
from crosscheck.commands.run import add_blind
from crosscheck.exits import NOTHING, PASS, UNTOLD
from crosscheck.matrix import matrix_json, matrix_lines
from crosscheck.screen import progress, show


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(
        commands, "selftest", run, help="plant faults in a model and see whether they are found"
    )
    shared.add_subject(parser, against=False)
    shared.add_run(parser)
    parser.add_argument("--faults", default="all", metavar="NAMES", help="default all")
    add_blind(parser)
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Plant, print the matrix and the mutation score, and return the exit code.

    Raises:
        CrosscheckError: An option or the spec names nothing.
        SubjectRaised: The model cannot be made.
    """
    from crosscheck.select import select
    from crosscheck.selftest import selftest

    select(options.relations)
    subject = open_subject(options.subject)
    with progress("selftest", seconds=options.budget) as advance:
        matrix = selftest(
            subject,
            relations=options.relations,
            faults=options.faults,
            budget_seconds=seconds_left(options.budget),
            progress=advance,
        )
    if options.json != "-":
        show(matrix_lines(matrix, subject.info.name))
    data = matrix_json(matrix, subject.info.name)
    write_json(data, options.json)
    if not data["planted"]:
        return NOTHING
    return PASS if options.allow_blind or not data["blind"] else UNTOLD
