"""The relations that a causal decoder with a cache owes: one file a group, found by name."""

from crosscheck.relations.registry import RELATIONS, Relation, Sides, relation

__all__ = ["RELATIONS", "Relation", "Sides", "relation"]
