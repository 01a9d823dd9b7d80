"""Put each failure of a report on disk: the JSON that `replay` reads, and a program of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crosscheck.errors import CrosscheckError
from crosscheck.failure import Failure, failure_of, file_stem, save
from crosscheck.programs.case_json import case_from_json
from crosscheck.relations import RELATIONS
from crosscheck.reproduce import reproduce
from crosscheck.reproduce_origin import origin_of
from crosscheck.results import RelationResult, Report


def save_failures(
    report: Report,
    folder: Path,
    *,
    specs: tuple[str, str | None],
    subjects: tuple[Any, Any],
    seed: int,
) -> Mapping[int, str]:
    """Return for each saved failure its place in `report.rows` and its JSON file.

    Args:
        report: What was found.
        folder: Made when there is something to save.
        specs: How the command line named candidate and reference.
        subjects: Both of them.
        seed: Of the run.

    Raises:
        CrosscheckError: The folder cannot be written.
    """
    saved: dict[int, str] = {}
    taken: set[str] = set()
    for place, row in enumerate(report.rows):
        if row.verdict != "fail" or row.case is None or row.name not in RELATIONS:
            continue
        failure = failure_of(row, subject=specs[0], against=specs[1], seed=seed, env=report.env)
        stem = file_stem(failure, taken)
        path = folder / f"{stem}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save(failure, path)
            program = program_of(row, failure, subjects, folder)
            script = folder / f"repro_{stem.replace('-', '_')}.py"
            script.unlink(missing_ok=True)
            if program is not None:
                script.write_text(program, "utf-8")
        except OSError as error:
            raise CrosscheckError(f"--save {folder}: {error.strerror}.") from None
        saved[place] = str(path)
    return saved


def program_of(
    row: RelationResult, failure: Failure, subjects: tuple[Any, Any], folder: Path
) -> str | None:
    """Return the program that repeats a failure, or None where it cannot be written short."""
    candidate, other = subjects
    parity = row.axis == "parity" and other is not None
    specs = [failure.subject, failure.against] if parity else [failure.subject]
    made = [candidate, other] if parity else [candidate]
    origins = [
        origin_of(str(spec), subject, folder) for spec, subject in zip(specs, made, strict=True)
    ]
    if None in origins:
        return None
    try:
        cast = [
            each if each.info.dtype == failure.dtype else each.cast(failure.dtype) for each in made
        ]
        return reproduce(
            RELATIONS[failure.relation],
            cast[0],
            cast[-1],
            case_from_json(failure.case),
            origins=[each for each in origins if each is not None],
            dtype=None if made[0].info.dtype == failure.dtype else failure.dtype,
            rtol=None
            if row.comparison is None
            else getattr(row.comparison.tolerance, "rtol", None),
        )
    except Exception:
        # The run has told what it found; a subject that raises now only costs the program.
        return None
