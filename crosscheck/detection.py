"""A detection matrix as data: which relation saw which planted fault, and by how much."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crosscheck.judging import KILL
from crosscheck.results import SCHEMA_VERSION


@dataclass(frozen=True)
class DetectionMatrix:
    """What planting faults in one subject showed.

    Attributes:
        subject: Its name.
        cells: fault -> relation -> the largest effect, as a multiple of the tolerance.
        skipped: fault -> why it was not planted.
        unseen: relation -> faults that it is there for, planted here, and did not see.
        notes: Sentences for the report.
        seconds: How long it took.
    """

    subject: str
    cells: Mapping[str, Mapping[str, float]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    unseen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def planted(self) -> int:
        """How many faults were planted."""
        return len(self.cells)

    @property
    def killed(self) -> int:
        """How many of them some relation saw with room to spare."""
        return self.planted - len(self.survivors)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Faults that no relation saw."""
        return tuple(
            name for name, row in self.cells.items() if max(row.values(), default=0.0) < KILL
        )

    @property
    def blind(self) -> tuple[str, ...]:
        """Relations that did not see a fault that they are there for."""
        return tuple(name for name, faults in self.unseen.items() if faults)

    @property
    def score(self) -> float:
        """Return the mutation score; 0 where nothing was planted."""
        return self.killed / self.planted if self.planted else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the matrix as data that strict JSON takes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "subject": self.subject,
            "killed": self.killed,
            "planted": self.planted,
            "score": self.score,
            "blind": list(self.blind),
            "survivors": list(self.survivors),
            "unseen": {name: list(faults) for name, faults in self.unseen.items()},
            "skipped": dict(self.skipped),
            "cells": {
                fault: {name: _plain(effect) for name, effect in row.items()}
                for fault, row in self.cells.items()
            },
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def table(self) -> Any:
        """Return the matrix as a `rich` table: a fault a row, the relation that saw it best."""
        from rich.table import Table

        table = Table(
            "fault",
            "seen best by",
            "effect / tolerance",
            "also by",
            title=f"{self.subject}: {self.killed} of {self.planted} planted faults killed "
            f"({self.score:.0%})",
        )
        for fault, row in self.cells.items():
            ranked = sorted(row, key=lambda name: -row[name])
            seen = [name for name in ranked if row[name] >= KILL]
            best = seen[0] if seen else "BLIND"
            effect = max(row.values(), default=0.0)
            table.add_row(fault, best, f"{effect:.1e}", ", ".join(seen[1:]))
        return table


def _plain(effect: float) -> float | str:
    return effect if math.isfinite(effect) else "inf"
