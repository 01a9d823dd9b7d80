"""A failure on disk: what failed, on which case, how to make the models; one JSON file.

It holds no weights and no code: `crosscheck replay` makes the subjects from their specs again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crosscheck.errors import CrosscheckError
from crosscheck.results import RelationResult
from crosscheck.results_json import row_to_json

KIND = "crosscheck failure"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Failure:
    """One failing relation, as it is saved.

    Attributes:
        subject: The spec of the candidate, as typed on the command line.
        against: The spec of the reference; None for the subject's own forward.
        relation: The relation's name.
        dtype: In which it failed.
        case: The failing case as JSON data.
        seed: Of the run.
        observed: The row as it was reported.
        env: Versions and platform.
    """

    subject: str
    against: str | None
    relation: str
    dtype: str
    case: Mapping[str, Any]
    seed: int = 0
    observed: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def failure_of(
    row: RelationResult, *, subject: str, against: str | None, seed: int, env: Mapping[str, str]
) -> Failure:
    """Return what is saved of a failing row; against is left out on the self axis.

    Raises:
        CrosscheckError: The row has no case.
    """
    if row.case is None:
        raise CrosscheckError(f"failure_of: row {row.name!r} has no case, expected a failing one.")
    other = against if row.axis == "parity" else None
    observed = row_to_json(row)
    return Failure(subject, other, row.name, row.dtype, row.case, seed, observed, env)


def save(failure: Failure, path: Path) -> None:
    """Write a failure."""
    data = {"kind": KIND, "schema_version": SCHEMA_VERSION} | asdict(failure)
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def load(path: str | Path) -> Failure:
    """Return the failure in a file.

    Raises:
        CrosscheckError: There is no such file, or it holds no failure that this version reads.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        fact = getattr(error, "strerror", None) or "it is no JSON"
        raise CrosscheckError(
            f"replay: {path}: {fact}. Expected the .json that `crosscheck run` saved."
        ) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise CrosscheckError(
            f"replay: {path} is no saved failure. Expected the .json that `crosscheck run` saved."
        )
    version = data.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise CrosscheckError(
            f"replay: {path} has schema_version {version}, expected {SCHEMA_VERSION}. "
            "Use the crosscheck that wrote it, or run again."
        )
    data.pop("kind")
    try:
        return Failure(**data)
    except TypeError as error:
        fact = str(error).removeprefix("Failure.__init__() ")
        raise CrosscheckError(f"replay: {path} is damaged: {fact}. Run again.") from None


def file_stem(failure: Failure, taken: set[str]) -> str:
    """Return a short name for the files of a failure, unlike those taken; the name joins them."""
    base = f"{failure.relation}-{failure.dtype}".replace(".", "-")
    base += "-parity" if failure.against else ""
    stem, number = base, 2
    while stem in taken:
        stem, number = f"{base}-{number}", number + 1
    taken.add(stem)
    return stem
