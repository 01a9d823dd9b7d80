"""Positions given are positions counted, and with rotation only distances matter."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.programs.case import Case
from crosscheck.relations.drive import cached_or_full, encoder_of, full, run, sizes_of
from crosscheck.relations.entries import loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions
from crosscheck.subjects.protocol import SubjectInfo


def _explicit_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    for sizes in some_partitions(info, ids.shape[1])[:2]:
        yield Case(ids, appends(sizes), seed=seed)


def _shift_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    room = (info.max_positions or t + 99) - t
    for sizes in some_partitions(info, t)[:2]:
        # Small shifts: angles kept in float32 lose digits with the distance from 0.
        for shift in (1, 3, 16):
            if shift <= room:
                yield Case(ids, appends(sizes), seed=seed, meta={"shift": shift})


def _with_positions(candidate: Any, reference: Any, case: Case, shift: int) -> Sides:
    batch, t = case.ids.shape
    sizes, encoder = sizes_of(case), encoder_of(candidate, batch, case.seed)
    positions = np.broadcast_to(np.arange(t) + shift, (batch, t)).copy()
    fed = run(candidate, case.ids, sizes, encoder=encoder, positions=positions)
    left = {
        "full": full(candidate, case.ids, encoder=encoder, positions=positions),
        "logits": fed.logits_BTV,
    }
    right = {
        "full": full(reference, case.ids, encoder=encoder),
        "logits": cached_or_full(reference, case.ids, sizes, encoder=encoder),
    }
    words = (f"positions {shift}..{shift + t - 1} given", "by default")
    sides = Sides(left, right, chunks=fed.starts, words=words, meta={"shift": shift})
    return loose(candidate, reference, sides)


@relation(
    name="pos.explicit",
    needs={"cache", "positions"},
    cases=_explicit_cases,
    restepped=True,
    catches={"pos.reset", "pos.off_by_one"},
)
def pos_explicit(candidate: Any, reference: Any, case: Case) -> Sides:
    """Positions 0..T-1 given in words are the positions that are counted by default."""
    return _with_positions(candidate, reference, case, 0)


@relation(
    name="pos.shift",
    needs={"cache", "positions", "rope"},
    cases=_shift_cases,
    restepped=True,
    catches={"pos.reset", "pos.off_by_one"},
)
def pos_shift(candidate: Any, reference: Any, case: Case) -> Sides:
    """With rotations or distances only, one number added to all positions changes nothing."""
    return _with_positions(candidate, reference, case, int(case.meta["shift"]))
