"""A detection matrix in words and as data: faults down, relations across, effect over tolerance."""

from collections.abc import Iterator
from typing import Any


def matrix_lines(matrix: Any, name: str) -> Iterator[str]:
    """Yield a line for each fault, what no relation could see, and the mutation score."""
    data = matrix_json(matrix, name)
    yield f"{name}: faults planted in it, and the relation that sees each best"
    yield ""
    yield f"{'fault':<26}{'killed by':<22}{'error/allowed':>13}  also by"
    for fault, seen in data["cells"].items():
        yield _fault_line(fault, seen)
    for title, facts in (("not planted", data["skipped"]), ("note", data["notes"])):
        if facts:
            yield ""
            pairs = facts.items() if isinstance(facts, dict) else ((each, "") for each in facts)
            yield from (f"{title}: {key}{': ' if value else ''}{value}" for key, value in pairs)
    yield ""
    if data["survivors"]:
        yield f"no relation sees {', '.join(data['survivors'])} in this model"
    if data["blind"]:
        yield f"BLIND here, whatever they say: {', '.join(data['blind'])}"
    score = f"{data['killed'] / data['planted']:.0%}" if data["planted"] else "none planted"
    yield f"mutation score {score}: {data['killed']} of {data['planted']} faults killed"


def _fault_line(fault: str, seen: dict[str, float]) -> str:
    killers = sorted((name for name in seen if seen[name] > 1), key=lambda name: -seen[name])
    if not killers:
        return f"{fault:<26}{'-':<22}{max(seen.values(), default=0.0):>13.2g}  blind"
    best, *others = killers
    more = f"{', '.join(others[:3])}{f' and {len(others) - 3} more' if len(others) > 3 else ''}"
    return f"{fault:<26}{best:<22}{seen[best]:>13.1e}  {more}".rstrip()


def matrix_json(matrix: Any, name: str) -> dict[str, Any]:
    """Return the matrix as data: killed, planted, blind, survivors, cells, skipped, notes."""
    return {
        "schema_version": 1,
        "subject": name,
        "killed": matrix.killed,
        "planted": matrix.planted,
        "blind": sorted(matrix.blind),
        "survivors": sorted(matrix.survivors),
        "cells": {fault: dict(row) for fault, row in matrix.cells.items()},
        "skipped": dict(matrix.skipped),
        "notes": list(matrix.notes),
    }
