"""The command `run`: every relation that the subject can be asked for, within a budget."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from crosscheck.budget import Clock
from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, seconds_left, write_json, write_page
from crosscheck.commands.saving import save_failures
from crosscheck.exits import exit_code
from crosscheck.results import Report
from crosscheck.screen import progress, show
from crosscheck.text import report_lines

FOLDER = "crosscheck-failures"


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(commands, "run", run, help="test a model's cache against itself")
    shared.add_subject(parser)
    shared.add_run(parser, budget=None)
    add_dtypes(parser)
    add_blind(parser)
    shared.add_json(parser)
    shared.add_html(parser)
    parser.add_argument(
        "--save",
        default=FOLDER,
        metavar="DIR",
        help=f"where failures go, as .json and repro_*.py (default ./{FOLDER}); '' for nowhere",
    )


def add_dtypes(parser: argparse.ArgumentParser) -> None:
    """Add --dtypes."""
    parser.add_argument(
        "--dtypes",
        type=shared.dtypes,
        default=("float64", "float32"),
        metavar="NAMES",
        help="what to compute in; float64 judges the function, the others the rounding "
        "(default float64,float32)",
    )


def add_blind(parser: argparse.ArgumentParser) -> None:
    """Add --allow-blind."""
    parser.add_argument(
        "--allow-blind",
        action="store_true",
        help="exit with 0 for a blind run; the verdict stays blind",
    )


def run(options: argparse.Namespace) -> int:
    """Run, print the report, save the failures, and return the exit code.

    Raises:
        CrosscheckError: An option or a spec names nothing.
        SubjectRaised: A model cannot be made.
    """
    report, saved = checked(options)
    if options.json != "-":
        show(report_lines(report, report.verdict, saved=saved))
    from crosscheck.results_json import to_json

    data = to_json(report)
    write_json(data, options.json)
    write_page(data, options.html)
    return exit_code(report.verdict, allow_blind=options.allow_blind)


def checked(options: argparse.Namespace) -> tuple[Report, Mapping[int, str]]:
    """Return the report, and the files of the failures that were saved."""
    from crosscheck.check import check
    from crosscheck.select import select

    select(options.relations)
    candidate = open_subject(options.subject)
    reference = open_subject(options.against) if options.against else None
    loading = Clock(0.0, options.began).spent
    with progress("crosscheck", seconds=options.budget) as advance:
        report = check(
            candidate,
            reference,
            relations=options.relations,
            budget_seconds=options.budget and seconds_left(options.budget, began=options.began),
            dtypes=options.dtypes,
            seed=options.seed,
            progress=advance,
        )
    report = replace(report, notes=(*report.notes, *time_notes(report, options.budget, loading)))
    saved = {}
    if options.save:
        saved = save_failures(
            report,
            Path(options.save),
            specs=(options.subject, options.against),
            subjects=(candidate, reference),
            seed=options.seed,
        )
    return report, saved


def time_notes(report: Report, budget: float | None, loading: float) -> Iterator[str]:
    """Yield where the time went, if there was too little of it."""
    if any(row.late for row in report.rows if row.verdict == "inconclusive"):
        given = f"{report.seconds:.0f} s after it" if budget is None else f"{budget:g} s"
        yield (
            f"{loading:.0f} s went into loading; {given} were too few for all relations. "
            "Raise --budget, or choose some with --relations"
        )
