"""What was taken back or reordered leaves no trace: rollback, gather and fork."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.programs.case import Case, Fork, Gather, Rollback
from crosscheck.relations.drive import (
    encoder_of,
    feed,
    parted,
    refusing,
    run,
    sizes_of,
    start,
    whole,
)
from crosscheck.relations.entries import entries, loose, pair
from crosscheck.relations.levels import stateful
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw
from crosscheck.subjects.protocol import SubjectInfo, describe


def _rollback_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    """Yield: tokens kept, then dropped ones, then others; the first case wraps a small window."""
    ids = draw(info, seed, batch=4)
    t = ids.shape[1]
    small = min([w for w in info.windows if w and w < t], default=t)
    room = info.max_positions or t + 6
    below = max(1, min(small - 3, t - 6))
    found = [(t // 2, 3, 1), (below, 2, 2), (below, 1, 2), (t // 2, 2, 2), (t // 2, 1, 1)]
    found += [(below, 6, 2), (t // 2, 6, 2), (1, 2, 2), (1, 6, 1), (t - 2, 2, 2), (t - 1, 1, 1)]
    for keep, dropped, first in dict.fromkeys(found):
        dropped = min(dropped, room - keep, t)
        if 0 < keep < t and dropped > 0:
            ops = (
                *appends((*whole(info, keep), *whole(info, dropped))),
                Rollback(keep),
                *appends(_tail(info, t - keep, first)),
            )
            yield Case(ids, ops, seed=seed, meta={"keep": keep, "dropped": dropped})


def _tail(info: SubjectInfo, tokens: int, first: int) -> tuple[int, ...]:
    """Return one token at a time, or a chunk of `first`, one token and the rest."""
    if first == 1 or tokens < first + 2:
        return (1,) * tokens
    return (*whole(info, first), 1, *whole(info, tokens - first - 1))


@relation(
    name="cache.rollback",
    needs={"cache", "rollback"},
    cases=_rollback_cases,
    level=stateful(),
    catches={
        "rollback.leak",
        "rollback.reset",
        "rollback.ignored",
        "rollback.positions",
        "rollback.evicted",
    },
)
def cache_rollback(candidate: Any, reference: Any, case: Case) -> Sides:
    """Tokens that were fed and rolled back leave keys, values and logits as if never fed.

    Raises:
        Refused: The subject raised at the rollback, as a ring may that evicted what it would need.
    """
    half = len(case.ids) // 2
    ids, junk, t, info = case.ids[:half], case.ids[half:], case.ids.shape[1], describe(candidate)
    keep, dropped = int(case.meta["keep"]), int(case.meta["dropped"])
    head, rest_sizes = parted(sizes_of(case), keep)
    wrong, tail = parted(rest_sizes, dropped)
    encoder = encoder_of(candidate, half, case.seed)
    state = start(candidate, half, t + dropped, encoder=encoder)
    first = feed(candidate, state, ids[:, :keep], head)
    before = entries(candidate, first.state, keep)
    state = feed(candidate, first.state, junk[:, :dropped], wrong).state
    state = refusing(
        info,
        f"rollback from {keep + dropped} to {keep}",
        lambda: candidate.rollback(state, np.full(half, keep)),
    )
    left, right = pair(entries(candidate, state, keep), before, info, keep)
    length = np.asarray(candidate.length(state))[:, None].astype(np.float64)
    rest = feed(candidate, state, ids[:, keep:], tail)
    other = reference if "cache" in describe(reference).capabilities else candidate
    never = run(other, ids, (*head, *tail), encoder=encoder).logits_BTV
    sides = Sides(
        {**left, "length": length, "logits": _joined(first.logits_BTV, rest.logits_BTV)},
        {**right, "length": np.full((half, 1), float(keep)), "logits": never},
        chunks=(0, *(keep + start for start in rest.starts)),
        words=(f"{dropped} tokens fed and rolled back", "never fed"),
        meta={"keep": keep, "dropped": dropped, "windows": info.windows},
    )
    return loose(candidate, reference, sides)


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=1)


def _gather_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed, batch=3)
    t = ids.shape[1]
    for first in dict.fromkeys((t // 2, 2)):
        chunk = max(1, t - first - 2)
        tail = appends((*whole(info, chunk), *(1,) * (t - first - chunk)))
        # In two steps: a cache may keep what came last apart from what came before.
        head = appends((*whole(info, first - 1), 1))
        for rows in ((2, 0, 1), (1, 1, 0), (2,), (0, 2, 1, 1)):
            ops = (*head, Gather(rows), *tail)
            yield Case(ids, ops, seed=seed, meta={"first": first})
        if "fork" in info.capabilities:
            yield Case(ids, (*head, Fork(1), *tail), seed=seed, meta={"first": first})


@relation(
    name="cache.fork_gather",
    needs={"cache", "gather"},
    cases=_gather_cases,
    level=stateful(),
    catches={
        "gather.partial",
        "gather.partial.old",
        "gather.skipped",
        "gather.inverse",
        "fork.alias",
    },
)
def cache_fork_gather(candidate: Any, reference: Any, case: Case) -> Sides:
    """Reordered, repeated, left out or forked rows go on like rows that were so from the start."""
    if any(isinstance(op, Fork) for op in case.ops):
        return _forked(candidate, reference, case)
    (rows,) = (list(op.rows) for op in case.ops if isinstance(op, Gather))
    first, t, info = int(case.meta["first"]), case.ids.shape[1], describe(candidate)
    sizes, (head_sizes, tail) = sizes_of(case), parted(sizes_of(case), first)
    encoder = encoder_of(candidate, len(case.ids), case.seed)
    texts = _continued(case.ids, rows, first)
    state = start(candidate, len(case.ids), t, encoder=encoder)
    head = feed(candidate, state, case.ids[:, :first], head_sizes)
    before = entries(candidate, head.state, first)
    state = candidate.gather(head.state, np.asarray(rows))
    left, right = pair(entries(candidate, state, first), before.take(rows), info, first)
    rest = feed(candidate, state, texts[:, first:], tail)
    other = reference if "cache" in describe(reference).capabilities else candidate
    picked = None if encoder is None else encoder[rows]
    never = run(other, texts, sizes, encoder=picked).logits_BTV
    sides = Sides(
        {**left, "logits": _joined(head.logits_BTV[rows], rest.logits_BTV)},
        {**right, "logits": never},
        chunks=(0, *(first + s for s in rest.starts)),
        words=(f"rows {rows} gathered after {first}", "so from the start"),
        meta={"rows": rows, "first": first},
    )
    return loose(candidate, reference, sides)


def _continued(ids: np.ndarray, rows: list[int], first: int) -> np.ndarray:
    """Return the gathered texts, each going on with tokens of its own: duplicates must part."""
    tails = np.stack([np.roll(ids[row, first:], i) for i, row in enumerate(rows)])
    tails = np.where(np.arange(len(rows))[:, None] % 2 == 1, tails[:, ::-1], tails)
    return np.concatenate([ids[rows, :first], tails], axis=1)


def _forked(candidate: Any, reference: Any, case: Case) -> Sides:
    first, (batch, t) = int(case.meta["first"]), case.ids.shape
    sizes, (head_sizes, tail) = sizes_of(case), parted(sizes_of(case), first)
    encoder = encoder_of(candidate, batch, case.seed)
    ids, other = case.ids, np.roll(case.ids, 1, axis=0)
    other = np.concatenate([ids[:, :first], other[:, first:]], axis=1)
    state = start(candidate, batch, t, encoder=encoder)
    head = feed(candidate, state, ids[:, :first], head_sizes)
    branch = candidate.fork(head.state)
    # Both branches live: step by step, each would read what the other wrote last.
    forked, went_on, at, state = [], [], first, head.state
    for size in tail:
        now = slice(at, at + size)
        out, branch = candidate.step(branch, other[:, now].copy())
        forked.append(out)
        out, state = candidate.step(state, ids[:, now].copy())
        went_on.append(out)
        at += size
    right = reference if "cache" in describe(reference).capabilities else candidate
    wanted = [
        run(right, text, sizes, encoder=encoder).logits_BTV[:, first:] for text in (other, ids)
    ]
    return loose(
        candidate,
        reference,
        Sides(
            {"fork": _joined(*forked), "logits": _joined(*went_on)},
            {"fork": wanted[0], "logits": wanted[1]},
            words=(f"forked after {first}", "two runs"),
            meta={"first": first},
        ),
    )
