"""The texts and partitions that always run: longer than every window, and never cut evenly alone.

Letters: B rows, T tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from crosscheck.programs.case import Append, Case
from crosscheck.subjects.protocol import SubjectInfo

TOKENS = 14
LONGEST = 48


def tokens_for(info: SubjectInfo) -> int:
    """Return how long a text should be: beyond the windows where they are small, within the limit.

    >>> from crosscheck.subjects.protocol import SubjectInfo
    >>> tokens_for(SubjectInfo("a", "numpy", "float64", 9, windows=(None, 12)))
    21
    """
    small = [window for window in info.windows if window and window <= LONGEST - 9]
    wanted = max([TOKENS, *(window + 9 for window in small)])
    return max(2, min(wanted, (info.max_positions or wanted + 1) - 1))


def draw(info: SubjectInfo, seed: int, *, batch: int = 2, tokens: int | None = None) -> NDArray:
    """Return ids [B, T] of ordinary tokens."""
    shape = (batch, tokens_for(info) if tokens is None else tokens)
    rng = np.random.default_rng([seed, 31])
    return rng.integers(info.first_id, info.vocab_size, shape).astype(np.int32)


def appends(sizes: Sequence[int]) -> tuple[Append, ...]:
    """Return the program that feeds chunks of these sizes."""
    return tuple(Append(int(n)) for n in sizes)


def partitions(info: SubjectInfo, tokens: int) -> list[tuple[int, ...]]:
    """Return the partitions that always run, without repeats, most telling first.

    No partition suffices alone: one by one and [T-1, 1] each miss a third of the faults seen.
    """
    t, ones = tokens, (1,) * tokens
    if "chunk" not in info.capabilities:
        return [ones]
    found = [_cut((3, 1, 4, 2, 4), t), ones, (1, t - 1), (t - 1, 1), _cut((4, 4, 6), t), (t,)]
    found += [(*_first(6, t), *ones[: max(0, t - 6)]), _cut((3,), t), _cut((5,), t)]
    for window in sorted({w for w in info.windows if w and w < t}):
        found += straddling(info, t, window)
    return _distinct([*found, (t // 2, t - t // 2)], t)


def straddling(info: SubjectInfo, tokens: int, window: int) -> list[tuple[int, ...]]:
    """Return partitions whose chunks fall short of a window, fill it and pass it."""
    t = tokens
    if "chunk" not in info.capabilities:
        return [(1,) * t]
    found = [_cut((3, 1, 4, 2, 4), t), *([(1, t - 1)] if t - 1 > window else [])]
    found += [_cut((size,), t) for size in (window - 1, window, window + 1) if size > 0]
    return _distinct([*found, (*_first(window, t), *(1,) * max(0, t - window))], t)


def some_partitions(info: SubjectInfo, tokens: int) -> list[tuple[int, ...]]:
    """Return the few that stand for all where another question is asked; one by one is last."""
    if "chunk" not in info.capabilities:
        return partitions(info, tokens)
    t = tokens
    return _distinct([_cut((4, 4, 6), t), _cut((3, 1, 4, 2, 4), t), (1,) * t], t)


def partition_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    """Yield the same text under all partitions."""
    ids = draw(info, seed)
    for sizes in partitions(info, ids.shape[1]):
        yield Case(ids, appends(sizes), seed=seed)


def _first(size: int, tokens: int) -> tuple[int, ...]:
    return (min(size, tokens),)


def _cut(sizes: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return the sizes, over and over, until they make up the tokens.

    >>> _cut((4, 4, 6), 20)
    (4, 4, 6, 4, 2)
    """
    cut: list[int] = []
    for size in cycle(sizes):
        if sum(cut) >= tokens:
            break
        cut.append(min(size, tokens - sum(cut)))
    return tuple(cut)


def _distinct(found: Sequence[tuple[int, ...]], tokens: int) -> list[tuple[int, ...]]:
    whole = (tuple(n for n in sizes if n) for sizes in found)
    return list(dict.fromkeys(sizes for sizes in whole if sum(sizes) == tokens))
