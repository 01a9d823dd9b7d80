"""The fault dictionary: programs over the protocol that make a right subject wrong, by name."""

from crosscheck.faults.registry import FAULTS, Fault, fault

__all__ = ["FAULTS", "Fault", "fault"]
