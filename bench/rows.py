"""One result row, the same for every benchmark: printed, written as JSON lines, drawn as a page."""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.environment import environment, words
from bench.timing import Spread

BASELINE = "transformers"
# Measured beside the subjects, to compare them with: none of them is the best of a case.
REFERENCES = ("weight-read", "products", "program")


@dataclass(frozen=True)
class Row:
    """One measured quantity, or why it could not be measured.

    Attributes:
        bench: Name of the benchmark.
        case: What was run.
        subject: Who ran it.
        metric: What was measured.
        unit: Of median, low and high.
        median: What to quote; None if nothing was measured.
        low: The smallest.
        high: The largest.
        ratio: The baseline's median over the subject's: above 1 is faster. None without a baseline.
        floor_share: The time that the machine needs at least over the subject's: 1 is the floor.
        note: Why there is no number, or what must be said of it.
    """

    bench: str
    case: str
    subject: str
    metric: str
    unit: str
    median: float | None
    low: float | None
    high: float | None
    ratio: float | None = None
    floor_share: float | None = None
    note: str = ""


def rows_of(
    bench: str,
    case: str,
    metric: str,
    found: Mapping[str, Spread],
    *,
    unit: str = "ms",
    baseline: str = BASELINE,
    floor: float | None = None,
) -> list[Row]:
    """Return a row for each subject of one interleaved measurement.

    Args:
        bench: As in `Row`, like case, metric and unit.
        case: What was run.
        metric: What was measured.
        found: Spread by subject.
        unit: Of the spreads.
        baseline: The subject that the ratios are against.
        floor: The least that the machine needs, in the unit.
    """
    base = found.get(baseline)
    return [
        Row(
            bench=bench,
            case=case,
            subject=subject,
            metric=metric,
            unit=unit,
            median=spread.median,
            low=spread.low,
            high=spread.high,
            ratio=None if base is None else base.median / spread.median,
            floor_share=None if floor is None else floor / spread.median,
        )
        for subject, spread in found.items()
    ]


def missing(bench: str, case: str, subject: str, metric: str, unit: str, note: str) -> Row:
    """Return the row of a case that ran out of memory or is not supported, with the reason."""
    return Row(bench, case, subject, metric, unit, None, None, None, note=note)


def report(
    rows: Iterable[Row],
    options: argparse.Namespace,
    *,
    about: str,
    precision: str = "float32",
    says: str = "",
    figures: Mapping[str, str] | None = None,
) -> None:
    """Print the rows as a table, and write them where `--json` and `--html` say.

    Args:
        rows: In the order of the table.
        options: With `json` and `html`, paths or None.
        about: The table's title.
        precision: Of weights and cache.
        says: What may and may not be read from the table.
        figures: SVG by title, for the page.
    """
    rows, console = list(rows), Console(highlight=False)
    console.print(_table(rows, about))
    for number, note in enumerate(notes_of(rows), 1):
        console.print(f"[{number}] {note}", markup=False)
    if says:
        console.print(says)
    found = environment(precision=precision)
    console.print(words(found))
    save(rows, options, about=about, found=found, says=says, figures=figures)


def save(
    rows: list[Row],
    options: argparse.Namespace,
    *,
    about: str,
    found: dict[str, Any],
    says: str = "",
    figures: Mapping[str, str] | None = None,
) -> None:
    """Write the rows where `--json` and `--html` say.

    Args:
        rows: In the order of the table.
        options: With `json` and `html`, paths or None.
        about: The title.
        found: From `environment`.
        says: What may and may not be read from the numbers.
        figures: SVG by title, for the page.
    """
    if options.json:
        first = {"environment": found, "about": about, "says": says}
        lines = [first, *(as_line(row) for row in rows)]
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if getattr(options, "html", None):
        from bench.page import write

        write(options.html, rows, about=about, says=says, environment=found, figures=figures or {})


def as_line(row: Row) -> dict[str, Any]:
    """Return a row as plain data, with `note` only where there is one."""
    return {name: value for name, value in asdict(row).items() if name != "note" or value}


def notes_of(rows: Iterable[Row]) -> list[str]:
    """Return what the rows' notes say, each once, in their order."""
    return list(dict.fromkeys(row.note for row in rows if row.note))


def with_ratios(rows: Iterable[Row], *, baseline: str) -> list[Row]:
    """Return the rows with their ratios against the baseline's row of the same case and metric."""
    rows = list(rows)
    base = {(row.case, row.metric): row.median for row in rows if row.subject == baseline}
    found = []
    for row in rows:
        against = base.get((row.case, row.metric))
        ratio = against / row.median if against and row.median else None
        found.append(replace(row, ratio=ratio))
    return found


def _table(rows: list[Row], about: str) -> Table:
    metrics = {(row.metric, row.unit) for row in rows}
    one = metrics.pop() if len(metrics) == 1 else None
    left = ["case", "subject"] if one else ["case", "subject", "metric"]
    shows_floor = any(row.floor_share is not None for row in rows)
    shows_ratio = any(row.ratio is not None for row in rows)
    table = Table(title=f"{about}: {measured(*one)}" if one else about)
    right = ["median", "low", "high"] + ["ratio"] * shows_ratio + ["of floor"] * shows_floor
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right")
    notes = notes_of(rows)
    if notes:
        table.add_column("note", justify="right")
    for row in rows:
        cells = [row.case, row.subject] + [measured(row.metric, row.unit)] * (one is None)
        cells += [number(x) for x in (row.median, row.low, row.high)]
        cells += [number(row.ratio)] * shows_ratio + [number(row.floor_share)] * shows_floor
        if notes:
            cells.append(f"\\[{notes.index(row.note) + 1}]" if row.note else "")
        table.add_row(*cells)
    return table


def measured(metric: str, unit: str) -> str:
    """Return a metric with its unit, for a table."""
    return f"{metric}, {unit}" if unit else metric


def number(value: float | None) -> str:
    """Return a number for a table; '' for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
