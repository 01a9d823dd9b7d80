"""The page of one whole run: a chapter for each benchmark, in Markdown."""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.environment import words
from bench.rows import Row, measured, notes_of, number

if TYPE_CHECKING:
    from bench.all import Outcome

HEAD = (
    "# Benchmarks\n\n"
    "Tables of one run of `python -m bench all`, which wrote this page, each with its own command. "
    "They are one machine's, with these versions, on that day: another finds other numbers, and "
    "only what stands in one table was measured together, in turn. Ratio is the baseline's median "
    "over the subject's: above 1 is faster. Share of the floor is the least time that the machine "
    "needs, measured in the same run, over the subject's. Low and high are the extremes of the "
    "repeats. What was changed for speed, and what it moved, stands in "
    "[performance.md](performance.md).\n"
)


@dataclass(frozen=True)
class Chapter:
    """One benchmark's results as its files hold them.

    Attributes:
        name: Of the benchmark.
        ended: How it ended: `command`, `seconds`, `fault`.
        first: The first line of its results; {} if there are none.
        rows: The others.
    """

    name: str
    ended: dict[str, Any]
    first: dict[str, Any]
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, name: str, folder: Path) -> "Chapter | None":
        """Return what a folder holds of a benchmark; None if it was not run."""
        ended, results = folder / f"{name}.ended.json", folder / f"{name}.jsonl"
        if not ended.exists():
            return None
        lines = results.read_text().splitlines() if results.exists() else []
        first, *others = [json.loads(line) for line in lines] or [{}]
        return cls(
            name, json.loads(ended.read_text()), first, tuple(Row(**each) for each in others)
        )

    @staticmethod
    def keep(name: str, folder: Path, outcome: "Outcome") -> None:
        """Write how a benchmark ended beside its results."""
        (folder / f"{name}.ended.json").write_text(json.dumps(asdict(outcome)))


def book(chapters: Sequence[Chapter]) -> str:
    """Return the page's text."""
    machines = list(
        dict.fromkeys(words(each.first["environment"]) for each in chapters if each.first)
    )
    parts = [HEAD, "Measured on: " + "\n\nand ".join(machines) + "\n" if machines else ""]
    parts += [chapter_text(each) for each in chapters]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def chapter_text(chapter: Chapter) -> str:
    """Return one chapter: what is measured, the command, the table, what must be said of it."""
    about = (importlib.import_module(f"bench.{chapter.name}").__doc__ or "").strip()
    lines = [f"## {chapter.name}", "", *about.splitlines(), ""]
    lines += [f"`{chapter.ended['command']}`: {chapter.ended['seconds']:.0f} s.", ""]
    if chapter.ended["fault"]:
        lines += [f"**It {chapter.ended['fault']}.**", ""]
    if chapter.rows:
        lines += [*_table(chapter.rows), ""]
        lines += [f"{at}. {note}" for at, note in enumerate(notes_of(chapter.rows), 1)]
        lines += [""] * bool(notes_of(chapter.rows))
    if chapter.first.get("says"):
        lines += [chapter.first["says"], ""]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> list[str]:
    notes = notes_of(rows)
    columns = {
        "case": [row.case for row in rows],
        "subject": [row.subject for row in rows],
        "metric": [measured(row.metric, row.unit) for row in rows],
        "median": [number(row.median) for row in rows],
        "low": [number(row.low) for row in rows],
        "high": [number(row.high) for row in rows],
        "ratio": [number(row.ratio) for row in rows],
        "of floor": [number(row.floor_share) for row in rows],
        "note": [str(notes.index(row.note) + 1) if row.note else "" for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    titles = list(shown)
    return [
        f"| {' | '.join(titles)} |",
        f"|{'|'.join('---' if name in _WORDS else '---:' for name in titles)}|",
        *(
            f"| {' | '.join(_cell(each) for each in line)} |"
            for line in zip(*shown.values(), strict=True)
        ),
    ]


_WORDS = ("case", "subject", "metric")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
