"""What a cache may not change: cached logits against one forward, and a prefix against itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.programs.case import Case
from crosscheck.relations.drive import encoder_of, feed, full, parted, run, sizes_of, start, whole
from crosscheck.relations.entries import entries, loose, pair
from crosscheck.relations.levels import stateful
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import (
    appends,
    draw,
    partition_cases,
    some_partitions,
    tokens_for,
)
from crosscheck.subjects.protocol import SubjectInfo, describe
from crosscheck.tolerance import semantic


def _prefill_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    t = tokens_for(info)
    for batch, tokens in ((2, t), (1, t - 1), (3, 1), (2, 2)):
        ids = draw(info, seed, batch=batch, tokens=tokens)
        yield Case(ids, appends(whole(info, tokens)), seed=seed)


def _against_full(candidate: Any, reference: Any, case: Case) -> Sides:
    encoder, sizes = encoder_of(candidate, len(case.ids), case.seed), sizes_of(case)
    fed = run(candidate, case.ids, sizes, room=case.capacity, encoder=encoder)
    sides = Sides(
        {"logits": fed.logits_BTV},
        {"logits": full(reference, case.ids, encoder=encoder)},
        chunks=fed.starts,
        words=(f"chunks {','.join(map(str, sizes))}", "one forward"),
        meta={"sizes": sizes, "windows": describe(candidate).windows},
    )
    return loose(candidate, reference, sides, exact_right=True)


@relation(
    name="cache.full",
    needs={"cache"},
    cases=_prefill_cases,
    catches={"mask.none", "head.scale", "head.slice", "head.cap", "train.mode"},
)
def cache_full(candidate: Any, reference: Any, case: Case) -> Sides:
    """One prefill with a cache gives the logits of one forward without."""
    return _against_full(candidate, reference, case)


@relation(
    name="cache.partition",
    needs={"cache"},
    cases=partition_cases,
    restepped=True,
    catches={
        "append.double",
        "append.dtype",
        "append.dtype.float16",
        "append.stale",
        "append.stale.values",
        "append.swap_kv",
        "concat.axis",
        "cross.rows",
        "head.scale",
        "head.slice",
        "head.slice.shifted",
        "mask.none",
        "mask.top_left",
        "mask.off_by_one",
        "mask.off_by_one.narrow",
        "mask.prompt_hidden",
        "pos.reset",
        "pos.off_by_one",
        "pos.single_reset",
        "prompt.reprocessed",
        "rope.dynamic",
        "rope.twice",
        "state.dropped",
        "write.overlap",
    },
)
def cache_partition(candidate: Any, reference: Any, case: Case) -> Sides:
    """Any partition of a text into steps gives the logits of one forward at every position."""
    return _against_full(candidate, reference, case)


def _causal_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    for sizes in dict.fromkeys((some_partitions(info, t)[0], whole(info, t))):
        for at in dict.fromkeys((t - 1, t // 2, 1)):
            yield Case(ids, appends(sizes), seed=seed, meta={"changed": at})


@relation(
    name="cache.causal",
    needs={"cache"},
    cases=_causal_cases,
    catches={"mask.none", "mask.off_by_one"},
)
def cache_causal(candidate: Any, reference: Any, case: Case) -> Sides:
    """Changing a token never moves the logits before it, with a cache or without."""
    at, sizes, info = int(case.meta["changed"]), sizes_of(case), describe(candidate)
    changed = case.ids.copy()
    changed[:, at] = _other(changed[:, at], info)
    encoder = encoder_of(candidate, len(case.ids), case.seed)
    valid = np.broadcast_to(np.arange(case.ids.shape[1]) < at, case.ids.shape)
    left, right = (
        {
            "full": full(subject, ids, encoder=encoder),
            "logits": run(subject, ids, sizes, encoder=encoder).logits_BTV,
        }
        for subject, ids in ((candidate, changed), (_with_cache(reference, candidate), case.ids))
    )
    return loose(
        candidate,
        reference,
        Sides(
            left,
            right,
            valid,
            words=(f"token {at} changed", "as it was"),
            meta={"changed": at, "sizes": sizes},
        ),
    )


def _other(ids: np.ndarray, info: SubjectInfo) -> np.ndarray:
    span = info.vocab_size - info.first_id
    return (ids - info.first_id + span // 2 + 1) % span + info.first_id


def _with_cache(reference: Any, candidate: Any) -> Any:
    return reference if "cache" in describe(reference).capabilities else candidate


def _prefix_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    chunked = "chunk" in info.capabilities
    for first in dict.fromkeys((t // 2, 5, 1, t - 1)):
        sizes = (*whole(info, first), *whole(info, t - first))
        yield Case(ids, appends(sizes), seed=seed, meta={"prefix": first})
        if chunked and first in (t // 2, 1) and t - first > 1:
            ones = appends((first, *(1,) * (t - first)))
            yield Case(ids, ones, seed=seed, meta={"prefix": first})


@relation(
    name="cache.prefix",
    needs={"cache"},
    cases=_prefix_cases,
    level=stateful(),
    restepped=True,
    catches={"mask.none", "page.alias", "write.overlap"},
)
def cache_prefix(candidate: Any, reference: Any, case: Case) -> Sides:
    """Extending a prefix leaves its keys and values, and its logits are those of its own run.

    In a quantized cache keys and values become codes as the text goes on: there they are owed as
    the whole text in one step leaves them.
    """
    n, t, info = int(case.meta["prefix"]), case.ids.shape[1], describe(candidate)
    encoder, sizes = encoder_of(candidate, len(case.ids), case.seed), sizes_of(case)
    head, tail = parted(sizes, n)
    state = start(candidate, len(case.ids), t, encoder=encoder)
    first = feed(candidate, state, case.ids[:, :n], head)
    before = entries(candidate, first.state, n)
    after = feed(candidate, first.state, case.ids[:, n:], tail)
    held = entries(candidate, after.state, n)
    at_once = run(candidate, case.ids, whole(info, t), encoder=encoder)
    level = None
    if "quant" in info.capabilities:
        before, level = entries(candidate, at_once.state, n), semantic()
    left, right = pair(held, before, info, t)
    alone = run(_with_cache(reference, candidate), case.ids[:, :n], head, encoder=encoder)
    sides = Sides(
        {**left, "logits": at_once.logits_BTV[:, :n]},
        {**right, "logits": alone.logits_BTV},
        chunks=(0,),
        words=(f"extended to {t}", f"prefix of {n} alone"),
        meta={"prefix": n, "sizes": sizes},
        level=level,
    )
    return loose(candidate, reference, sides)
