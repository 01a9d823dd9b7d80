"""One result row, the same for every benchmark: printed as a table, written as JSON lines."""

import argparse
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from bench.timing import Spread

BASELINE = "transformers"


@dataclass(frozen=True)
class Row:
    """One measured quantity.

    Attributes:
        bench: Name of the benchmark.
        case: What was run.
        subject: Who ran it.
        metric: What was measured.
        unit: Of median, low and high.
        median: What to quote.
        low: The smallest.
        high: The largest.
        ratio: The baseline's median over the subject's: above 1 is faster. None without a baseline.
    """

    bench: str
    case: str
    subject: str
    metric: str
    unit: str
    median: float
    low: float
    high: float
    ratio: float | None


def rows_of(
    bench: str,
    case: str,
    metric: str,
    found: dict[str, Spread],
    *,
    unit: str = "ms",
    baseline: str = BASELINE,
) -> list[Row]:
    """Return a row for each subject of one interleaved measurement."""
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
        )
        for subject, spread in found.items()
    ]


def report(rows: Iterable[Row], options: argparse.Namespace, *, about: str) -> None:
    """Print the rows as a table, and write them as JSON lines where `--json` says."""
    rows = list(rows)
    console = Console(highlight=False)
    table = Table(title=about)
    for column in ("case", "subject", "metric", "median", "low", "high", "ratio"):
        left = column in ("case", "subject", "metric")
        table.add_column(column, justify="left" if left else "right")
    for row in rows:
        numbers = (f"{x:.2f}" for x in (row.median, row.low, row.high))
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.case, row.subject, f"{row.metric}, {row.unit}", *numbers, ratio)
    console.print(table)
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", BASELINE))
    console.print(f"{platform.processor() or platform.machine()}; {packages}.")
    if options.json:
        with open(options.json, "w") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
