"""The command `calibrate`: how much a subject's own results move by rounding alone."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from crosscheck.commands import options as shared
from crosscheck.commands.opening import open_subject, write_json
from crosscheck.commands.run import add_dtypes
from crosscheck.screen import show

WORDS = {
    "scale": "largest |logit|; the next four are absolute",
    "full_rms": "errors of the uncached forward",
    "cached_rms": "errors of the cached runs",
    "ratio_rms": "cached over full: what the rule of a working dtype limits",
    "self_noise": "the uncached forward against itself, relative",
    "semantic_rtol": "what the float64 gate allows with that",
    "margin": "smallest top-2 margin",
    "positions": "measured",
}


def add(commands: Any) -> None:
    """Add the command."""
    parser = shared.command(
        commands, "calibrate", run, help="measure a model's rounding in each dtype"
    )
    shared.add_subject(parser, against=False)
    add_dtypes(parser)
    shared.add_seed(parser, "of the texts")
    shared.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print a column a dtype, and return 0.

    Raises:
        CrosscheckError: The spec names nothing.
        SubjectRaised: The model cannot be made.
    """
    from crosscheck.calibrate import calibrate

    subject = open_subject(options.subject)
    measured = [
        asdict(noise) for noise in calibrate(subject, dtypes=options.dtypes, seed=options.seed)
    ]
    name = subject.info.name
    if options.json != "-":
        show(_lines(name, measured))
    write_json({"schema_version": 1, "subject": name, "noise": measured}, options.json)
    return 0


def _lines(name: str, measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each measure, a column for each dtype."""
    yield f"{name}: rounding alone, against its own uncached forward in float64"
    yield ""
    for measure in measured[0] if measured else ():
        columns = "".join(f"{_number(noise[measure]):>12}" for noise in measured)
        yield f"{measure:<14}{columns}  {WORDS.get(measure, '')}".rstrip()


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
