"""Two relations of the engine's own: generated programs, and the work that a cache saves."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.errors import CrosscheckError
from crosscheck.oracle import full_of
from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Op,
    Pad,
    Rollback,
    Speculate,
)
from crosscheck.programs.draw import Limits
from crosscheck.programs.expect import full_texts, tabulate
from crosscheck.programs.model import Rows
from crosscheck.programs.run import check_ops, run_program
from crosscheck.relations.entries import loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.subjects.protocol import SubjectInfo, describe, steady

_TELLING: tuple[tuple[Op, ...], ...] = (
    (Append(5), Append(1), Append(4), Rollback(6), Append(3), Append(1)),
    (Append(4), Gather((1, 0, 1)), Append(1), Append(3), Gather((2, 1, 0)), Append(2)),
    (Append(3), Rollback(1), Append(1), Append(1)),
    (Append(1), Append(1), Append(1), Rollback(2), Append(1), Gather((1, 1, 0)), Append(1)),
    (Append(6), Fork(3), Append(1), Append(2)),
    (AppendRagged((3, 6, 1)), Append(1), AppendRagged((0, 2, 1)), Append(2)),
    (Append(3), Speculate(3, 1), Speculate(2, 0), Speculate(2, 2), Append(1)),
    (Pad("left", 3), Append(4), Append(1), Append(2)),
    (Pad("right", 2), Append(4), Append(1), Append(2)),
)


def telling_programs(info: SubjectInfo, seed: int) -> Iterator[Case]:
    """Yield the programs that always run, those that the subject can run."""
    rng = np.random.default_rng(seed)
    for ops in _TELLING:
        ids_BT = rng.integers(info.first_id, info.vocab_size, (3, 24), dtype=np.int32)
        case = Case(ids_BT, ops, seed=seed)
        try:
            check_ops(case, info.capabilities)
        except CrosscheckError:
            continue
        if _fits(case, info):
            yield case


def _fits(case: Case, info: SubjectInfo) -> bool:
    if Pad("right", 2) in case.ops and "count" not in info.capabilities:
        return False
    # A small ring or a cache of codes may refuse to go back; generated programs know how far to go.
    smallest = min((w for w in info.windows if w is not None), default=None)
    if "quant" in info.capabilities:
        smallest = 0
    rows, held = Rows.start(case), 0
    for op in case.ops:
        held = max(held, max(rows.lengths) + (op.k if isinstance(op, Speculate) else 0))
        if isinstance(op, Rollback | Speculate) and smallest is not None and held >= smallest:
            return False
        rows = rows.after(op)
    return max(held, *rows.lengths) + rows.padded <= (info.max_positions or 24)


def _says_nothing(info: SubjectInfo) -> str | None:
    if "quant" in info.capabilities and "quant_invariant" not in info.capabilities:
        return "the bound of a quantized cache holds for the texts of quant.bound"
    if next(telling_programs(steady(info), 0), None) is not None:
        return None
    if not info.capabilities & {"rollback", "gather", "fork", "count", "left_pad"}:
        return (
            "a program takes back, reorders, copies or pads, this subject only appends: give "
            "rollback=, gather= or fork="
        )
    return "its programs are longer than a window or max_positions of this subject allows"


@relation(
    name="cache.program",
    needs={"cache"},
    cases=telling_programs,
    applies=_says_nothing,
    restepped=True,
    catches={"pos.reset", "mask.top_left", "rollback.leak", "gather.partial"},
)
def program(candidate: Any, reference: Any, case: Case) -> Sides:
    """Whatever was appended, taken back, copied and reordered, each step answers like `full`."""
    trace = run_program(candidate, case).require()
    table = tabulate(trace)
    info = describe(reference)
    limits = Limits.of(candidate, steady(describe(candidate)))
    width = min(limits.longest, info.max_positions or 10**9)
    right = full_texts(
        full_of(reference, case.seed), table.texts, width=width, filler=info.first_id
    )
    left_points, right_points = {}, {}
    if table.length_MT is not None:
        left_points["length"], right_points["length"] = table.length_MT, table.held_MT
    sides = Sides(
        left_points | {"logits": table.logits_MTV},
        right_points | {"logits": right},
        valid=table.valid_MT,
        chunks=tuple(trace.starts),
        words=("program", "full"),
        meta={
            "texts": [list(text) for text in table.texts],
            "capacity": case.capacity,
            "lengths": list(trace.lengths),
        },
    )
    return loose(candidate, reference, sides, exact_right=True)


def _halves(info: SubjectInfo, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    ids_BT = rng.integers(info.first_id, info.vocab_size, (2, 8), dtype=np.int32)
    yield Case(ids_BT, (Append(1),) * 8, seed=seed)


@relation(
    name="cache.work",
    needs={"cache"},
    cases=_halves,
    catches={"prompt.reprocessed", "work.recomputed"},
)
def work(candidate: Any, reference: Any, case: Case) -> Sides:
    """A step runs the tokens that it is given, and none of the earlier ones again."""
    trace = run_program(candidate, case).require()
    if trace.forwarded is None:
        return Sides({}, {}, words=("forwarded", "fed"))
    return Sides(
        {"positions": np.full((1, 1), float(max(trace.forwarded, trace.fed)))},
        {"positions": np.full((1, 1), float(trace.fed))},
        words=("forwarded", "fed"),
    )
