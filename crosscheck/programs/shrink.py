"""Make a failing case small while it still fails: fewer ops, rows, tokens, smaller ids.

Hypothesis shrinks what it drew; this works on any case as data, a relation's own examples and a
loaded file included, and stops at a deadline with the smallest so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from crosscheck import budget
from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Grow,
    Op,
    Pad,
    Rollback,
    Speculate,
)

Fails = Callable[[Case], bool]


def shrink(
    case: Case, fails: Fails, *, deadline: float, first_id: int = 0, tries: int = 400
) -> Case:
    """Return the smallest case found that still fails.

    Args:
        case: One that fails.
        fails: Whether a case fails in the same way; false where it can't be run.
        deadline: As `budget.now` gives it.
        first_id: The smallest id to use.
        tries: How many cases to run at most.
    """
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(case, first_id):
            if tries <= 0 or budget.now() > deadline:
                return case
            tries -= 1
            if fails(smaller):
                case, improved = smaller, True
                break
    return case


def _smaller(case: Case, first_id: int) -> Iterator[Case]:
    yield from _fewer_ops(case)
    yield from _fewer_rows(case)
    yield from _fewer_tokens(case)
    yield from _simpler_ops(case)
    yield from _smaller_ids(case, first_id)


def _fewer_ops(case: Case) -> Iterator[Case]:
    count = len(case.ops)
    size = 0 if _is_partition(case) else count // 2
    while size:
        for start in range(0, count - size + 1, size):
            yield replace(case, ops=case.ops[:start] + case.ops[start + size :])
        size //= 2
    for i in range(count - 1):
        pair = case.ops[i], case.ops[i + 1]
        if isinstance(pair[0], Append) and isinstance(pair[1], Append):
            joined = Append(pair[0].n + pair[1].n)
            yield replace(case, ops=(*case.ops[:i], joined, *case.ops[i + 2 :]))


def _fewer_rows(case: Case) -> Iterator[Case]:
    for row in range(len(case.ids) - 1, -1, -1) if len(case.ids) > 1 else ():
        yield replace(
            case,
            ids=np.delete(case.ids, row, axis=0),
            lengths=_without(case.lengths, row),
            ops=tuple(_op_without_row(op, row) for op in case.ops),
        )


def _without(values: tuple[int, ...], row: int) -> tuple[int, ...]:
    return values[:row] + values[row + 1 :]


def _op_without_row(op: Op, row: int) -> Op:
    match op:
        case Gather(rows):
            kept = tuple(r - (r > row) for r in rows if r != row)
            return Gather(kept or (0,))
        case Rollback(to) if not isinstance(to, int):
            return Rollback(_without(to, row))
        case AppendRagged(counts):
            return AppendRagged(_without(counts, row))
        case _:
            return op


def _fewer_tokens(case: Case) -> Iterator[Case]:
    tokens = case.ids.shape[1]
    for kept in dict.fromkeys((tokens // 2, 3 * tokens // 4, tokens - 1)):
        if 0 < kept < tokens:
            short = replace(
                case,
                ids=case.ids[:, :kept],
                lengths=tuple(min(n, kept) for n in case.lengths),
            )
            if not _is_partition(case):
                yield short
            else:
                yield replace(short, ops=_partition(case.ops, kept))
                # What goes wrong after a long first chunk needs only a shorter one.
                yield replace(short, ops=_partition(case.ops[::-1], kept)[::-1])


def _is_partition(case: Case) -> bool:
    """Return whether the steps feed exactly the text: a smaller case must then do so too."""
    sizes = [op.n for op in case.ops if isinstance(op, Append)]
    return len(sizes) == len(case.ops) and sum(sizes) == case.ids.shape[1]


def _partition(ops: tuple[Op, ...], tokens: int) -> tuple[Op, ...]:
    kept: list[Op] = []
    for op in ops:
        if isinstance(op, Append) and tokens:
            kept.append(Append(min(op.n, tokens)))
            tokens -= min(op.n, tokens)
    return tuple(kept)


def _simpler_ops(case: Case) -> Iterator[Case]:
    for i, op in enumerate(() if _is_partition(case) else case.ops):
        for simpler in _simpler(op):
            yield replace(case, ops=(*case.ops[:i], simpler, *case.ops[i + 1 :]))


def _simpler(op: Op) -> Iterator[Op]:
    match op:
        case Append(n) | Fork(n) if n > 1:
            for fewer in dict.fromkeys((1, n // 2, n - 1)):
                yield type(op)(fewer)
        case Pad(side, n) if n > 1:
            yield Pad(side, 1)
        case AppendRagged(counts):
            yield Append(max(counts))
            for i, count in enumerate(counts):
                if count > 1:
                    yield AppendRagged((*counts[:i], count - 1, *counts[i + 1 :]))
        case Rollback(to) if not isinstance(to, int):
            yield Rollback(min(to))
        case Rollback(to) if isinstance(to, int):
            yield Rollback(to + 1)
        case Gather(rows) if len(rows) > 1:
            yield Gather(rows[:-1])
        case Speculate(k, accepted) if k > 1:
            yield Speculate(k - 1, min(accepted, k - 1))
        case Grow(capacity) if capacity > 1:
            yield Grow(capacity - 1)


def _smaller_ids(case: Case, first_id: int) -> Iterator[Case]:
    lowest = np.full_like(case.ids, first_id)
    # Equal tokens hide what distinct ones show, so a counting text is tried as well.
    counting = first_id + np.arange(case.ids.size).reshape(case.ids.shape)
    for ids in (lowest, counting.astype(case.ids.dtype)):
        if ids.sum() < case.ids.sum():
            yield replace(case, ids=ids)
    for place in np.ndindex(case.ids.shape):
        if case.ids[place] > first_id:
            ids = case.ids.copy()
            ids[place] = first_id
            yield replace(case, ids=ids)
