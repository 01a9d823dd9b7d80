"""The dictionary of faults: programs over the protocol that wrap a right subject."""

from crosscheck.faults import (
    bookkeeping,
    capacity,
    cross,
    gather,
    heads,
    masks,
    modes,
    output,
    pages,
    positions,
    quantized,
    rollback,
    sharing,
    speculation,
    windows,
    writes,
)
from crosscheck.faults.registry import FAULTS, Fault, fault

__all__ = ["FAULTS", "Fault", "fault"]

GROUPS = (
    positions,
    masks,
    windows,
    writes,
    heads,
    capacity,
    bookkeeping,
    rollback,
    gather,
    sharing,
    pages,
    speculation,
    quantized,
    cross,
    output,
    modes,
)
