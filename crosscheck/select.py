"""Which relations a run is asked for: by name, by glob, or as a set."""

import difflib
import importlib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from crosscheck.errors import CrosscheckError
from crosscheck.relations.registry import RELATIONS, Relation, core_names, why_not
from crosscheck.subjects.protocol import SubjectInfo


def load_relations() -> None:
    """Register every relation that comes with crosscheck; a second call does nothing."""
    importlib.import_module("crosscheck.relations")
    importlib.import_module("crosscheck.programs.relation")


def select(
    wanted: str | Iterable[str] = "core", info: SubjectInfo | None = None
) -> tuple[Relation, ...]:
    """Return the relations that are asked for, in the order of their registration.

    Args:
        wanted: "core", "all", names and globs ("window.*"), comma-separated or listed.
        info: Of the subject; only what it can run is returned. None for all that match.

    Raises:
        CrosscheckError: A name or a glob matches nothing, or nothing is asked for.
    """
    load_relations()
    parts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    patterns = [part.strip() for part in parts if part.strip()]
    if not patterns:
        raise CrosscheckError(
            f"select: relations is {wanted!r}, expected names, globs, 'core' or 'all'."
        )
    named = {name for pattern in patterns for name in _matching(pattern)}
    return tuple(
        relation
        for name, relation in RELATIONS.items()
        if name in named and (info is None or why_not(relation, info) is None)
    )


def _matching(pattern: str) -> list[str]:
    if pattern == "all":
        return list(RELATIONS)
    if pattern == "core":
        return list(core_names())
    found = [name for name in RELATIONS if fnmatchcase(name, pattern)]
    if not found:
        near = difflib.get_close_matches(pattern, RELATIONS, 1, 0.0)
        hint = f"Did you mean {near[0]!r}?" if near else "None is registered."
        raise CrosscheckError(
            f"select: relation {pattern!r} is none of {len(RELATIONS)} known ones. {hint}"
        )
    return found
