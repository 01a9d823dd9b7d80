"""The relations that a causal decoder with a cache owes: one file a group, found by name.

Importing this package registers them all, in the order in which they are worth running.
"""

from importlib import import_module

from crosscheck.relations.registry import (
    RELATIONS,
    Relation,
    Sides,
    core_names,
    relation,
    why_not,
)

GROUPS = (
    "cached",
    "rows",
    "branches",
    "memory",
    "windows",
    "positions",
    "speculation",
    "forms",
    "pages",
    "quantized",
    "modes",
)

for _group in GROUPS:
    import_module(f"crosscheck.relations.{_group}")

__all__ = [
    "GROUPS",
    "RELATIONS",
    "Relation",
    "Sides",
    "core_names",
    "relation",
    "why_not",
]
