"""A report as JSON data and back; strict JSON, so NaN and infinities are words."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from crosscheck.compare import Comparison
from crosscheck.errors import CrosscheckError
from crosscheck.greedy import GreedyComparison
from crosscheck.levels import Bitwise, Bounded, Close, Semantic, Tolerance
from crosscheck.oracle_ratio import Ratio
from crosscheck.place import Place
from crosscheck.programs.case_json import plain
from crosscheck.results import SCHEMA_VERSION, Diagnosis, Divergence, RelationResult, Report

_LEVELS: dict[str, Any] = {
    "bitwise": Bitwise,
    "semantic": Semantic,
    "close": Close,
    "bounded": Bounded,
    "ratio": Ratio,
}
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as data that strict JSON takes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": report.verdict,
        "subject": report.subject,
        "against": report.against,
        "oracle": report.oracle,
        "notes": list(report.notes),
        "coverage": {name: list(faults) for name, faults in report.coverage.items()},
        "env": dict(report.env),
        "seconds": round(report.seconds, 3),
        "rows": [row_to_json(row) for row in report.rows],
    }


def row_to_json(row: RelationResult) -> dict[str, Any]:
    """Return one row as data that strict JSON takes."""
    data = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    data["relation"] = data.pop("name")
    data["comparison"] = _comparison_to_json(row.comparison)
    data["divergence"] = None if row.divergence is None else dataclasses.asdict(row.divergence)
    data["diagnosis"] = [dataclasses.asdict(each) for each in row.diagnosis]
    data["documented"] = None if row.documented is None else list(row.documented)
    return plain(data)


def from_json(data: Mapping[str, Any]) -> Report:
    """Return the report that `to_json` wrote.

    Raises:
        CrosscheckError: Another schema version, or a key is missing.
    """
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CrosscheckError(
            f"from_json: schema_version is {version!r}, expected {SCHEMA_VERSION}. "
            "Was the file written by another version of crosscheck?"
        )
    try:
        return Report(
            subject=data["subject"],
            against=data["against"],
            rows=tuple(map(row_from_json, data["rows"])),
            oracle=data["oracle"],
            notes=tuple(data["notes"]),
            coverage={name: tuple(faults) for name, faults in data["coverage"].items()},
            env=dict(data["env"]),
            seconds=data["seconds"],
        )
    except KeyError as error:
        raise CrosscheckError(f"from_json: the report lacks {error}.") from None


def row_from_json(data: Mapping[str, Any]) -> RelationResult:
    """Return the row that `row_to_json` wrote."""
    row = {key: value for key, value in data.items() if key != "relation"}
    documented, divergence = row["documented"], row["divergence"]
    row |= {
        "name": data["relation"],
        "worst": number(row["worst"]),
        "required_tolerance": number(row["required_tolerance"]),
        "comparison": _comparison_from_json(row["comparison"]),
        "divergence": None if divergence is None else Divergence(**divergence),
        "diagnosis": tuple(Diagnosis(**each) for each in row["diagnosis"]),
        "documented": None if documented is None else tuple(documented),
        "kills": tuple(row["kills"]),
    }
    return RelationResult(**row)


def number(value: Any) -> Any:
    """Return a number that was written as a word, and anything else as it is."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _comparison_to_json(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    data = {each.name: getattr(comparison, each.name) for each in dataclasses.fields(comparison)}
    level = comparison.tolerance
    data["tolerance"] = {"words": str(level)} | _fields(level)
    for key in ("worst_at", "first"):
        data[key] = None if data[key] is None else dataclasses.asdict(data[key])
    greedy = comparison.greedy
    if greedy is not None:
        data["greedy"] = _fields(greedy)
        first = greedy.first
        data["greedy"]["first"] = None if first is None else dataclasses.asdict(first)
    return plain(data)


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _comparison_from_json(data: Mapping[str, Any] | None) -> Comparison | None:
    if data is None:
        return None
    numbers = {key: number(value) for key, value in data.items()}
    numbers |= {
        "names": tuple(data["names"]),
        "points": tuple(data["points"]),
        "tolerance": _level(data["tolerance"]),
        "worst_at": _place(data["worst_at"]),
        "first": _place(data["first"]),
        "non_finite": tuple(data["non_finite"]),
        "greedy": _greedy(data["greedy"]),
        "name": data["name"],
    }
    return Comparison(**numbers)


def _level(data: Mapping[str, Any]) -> Tolerance:
    kind = _LEVELS[data["level"]]
    given = {each.name for each in dataclasses.fields(kind) if each.init}
    return kind(**{key: value for key, value in data.items() if key in given})


def _place(data: Mapping[str, Any] | None) -> Any:
    if data is None:
        return None
    return Place(data["name"], data["row"], data["position"], tuple(data["index"]))


def _greedy(data: Mapping[str, Any] | None) -> GreedyComparison | None:
    if data is None:
        return None
    ids = data["first_ids"]
    numbers = {key: number(value) for key, value in data.items()}
    numbers |= {
        "names": tuple(data["names"]),
        "first": _place(data["first"]),
        "first_ids": None if ids is None else tuple(ids),
    }
    return GreedyComparison(**numbers)
