"""The command `selftest`: plant every fault in the user's own model, and see which are found."""

import argparse
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, seconds_left, write_json, write_page
from crosscheck.commands.run import add_blind
from crosscheck.exits import NOTHING, PASS, UNTOLD
from crosscheck.matrix import matrix_lines
from crosscheck.screen import progress, show


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(
        commands, "selftest", run, help="plant faults in a model and see whether they are found"
    )
    shared.add_subject(parser, against=False)
    shared.add_run(parser, relations="all")
    parser.add_argument("--faults", default="all", metavar="NAMES", help="default all")
    add_blind(parser)
    shared.add_json(parser)
    shared.add_html(parser)


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
            budget_seconds=seconds_left(options.budget, began=options.began),
            progress=advance,
        )
    if options.json != "-":
        show(matrix_lines(matrix))
    data = matrix.to_json()
    write_json(data, options.json)
    write_page(data, options.html)
    if not matrix.planted:
        return NOTHING
    could_tell = not matrix.blind and not matrix.survivors
    return PASS if options.allow_blind or could_tell else UNTOLD
