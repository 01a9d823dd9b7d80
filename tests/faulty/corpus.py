"""The corpus: source-edited faulty copies, the fault of each, and the cases to be diagnosed.

A case is a copy, the relation that shows it, a seed, and whether the clean copy is given as the
reference (`against`) or the faulty one must do alone. The corpus and the expected names were
written before there was anything that diagnoses; the third that is `held` was not looked at while
the diagnosing code was tuned.
"""

import zlib
from dataclasses import dataclass
from functools import cache

from tests.faulty.edits_flax import FLAX_EDITS
from tests.faulty.edits_torch import TORCH_EDITS
from tests.faulty.edits_transformers import STATIC_CACHE, TRANSFORMERS_EDITS

PARTITION = ("cache.partition", "cache.partition", "cache.partition", "cache.full", "cache.prefix")
ROLLBACK = ("cache.rollback",) * 4
GATHER = ("cache.fork_gather",) * 4
PADDED = ("pad.left",) * 4
CAPACITY = ("cache.capacity",) * 4
SHOWN_BY = {
    "rollback.leak": ROLLBACK,
    "rollback.reset": ROLLBACK,
    "rollback.ignored": ROLLBACK,
    "gather.partial": GATHER,
    "gather.skipped": GATHER,
    "pos.pad_shift": PADDED,
    "mask.empty_row_nan": PADDED,
    "pos.shared_length": ("ragged.continue",) * 4,
    "capacity.clamp": CAPACITY,
    "capacity.as_length": CAPACITY,
    "train.dropout": ("mode.stale",) * 4,
    "window.off_by_one": ("window.ring", "cache.partition", "window.ring", "cache.partition"),
    "window.cache_only": ("window.ring", "cache.partition", "window.ring", "cache.partition"),
    "length.from_ring": ("window.ring", "cache.partition", "window.ring", "cache.partition"),
}


@dataclass(frozen=True)
class Copy:
    """One faulty copy: of which model, and the dictionary's name of its fault."""

    base: str
    fault: str

    @property
    def name(self) -> str:
        return f"{self.base}-{self.fault}"

    @property
    def held(self) -> bool:
        return zlib.crc32(self.name.encode()) % 3 == 2


@dataclass(frozen=True)
class FaultyCase:
    """One case to be diagnosed."""

    copy: Copy
    relation: str
    seed: int
    against: bool

    def __str__(self) -> str:
        side = "against" if self.against else "alone"
        return f"{self.copy.name}-{self.relation}-{self.seed}-{side}"


COPIES = (
    *(Copy("torch", fault) for fault in TORCH_EDITS),
    *(Copy("flax", fault) for fault in FLAX_EDITS),
    *(Copy(family, fault) for family, fault in TRANSFORMERS_EDITS),
)
CASES = tuple(
    FaultyCase(copy, relation, seed, against=seed % 3 == 1)
    for copy in COPIES
    for seed, relation in enumerate(SHOWN_BY.get(copy.fault, PARTITION))
)


@cache
def subject_of(base: str, fault: str | None = None, seed: int = 0):
    """Return a subject: the clean one, or the copy with a fault; equal seeds, equal weights."""
    name = base if fault is None else f"{base}-{fault}"
    if base == "torch":
        from tests.faulty.build import torch_subject

        return torch_subject(TORCH_EDITS.get(fault, ()), name=name, seed=seed)
    if base == "flax":
        from tests.faulty.build import flax_subject

        return flax_subject(FLAX_EDITS.get(fault, ()), name=name, seed=seed)
    from crosscheck.adapters import adapt
    from tests.faulty.transformers_copies import transformers_copy

    edits = () if fault is None else TRANSFORMERS_EDITS[base, fault]
    static = (base, fault) in STATIC_CACHE
    model, cache_class = transformers_copy(base, edits, static=static, seed=seed)
    return adapt(model, cache=cache_class, name=name)
