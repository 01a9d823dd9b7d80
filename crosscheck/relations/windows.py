"""A window that is wide enough is no window, and a ring is a full cache under a band."""

from collections.abc import Iterator
from typing import Any

from crosscheck.programs.case import Case
from crosscheck.relations.drive import encoder_of, full, run, sizes_of
from crosscheck.relations.entries import loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions, straddling
from crosscheck.subjects.protocol import SubjectInfo, describe


def _wide_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    for window in (t, t + 1):
        for sizes in some_partitions(info, t)[:2]:
            yield Case(ids, appends(sizes), seed=seed, meta={"window": window})


@relation(
    name="window.wide",
    needs={"cache", "window"},
    cases=_wide_cases,
    restepped=True,
    catches={"window.wide_off_by_one"},
)
def window_wide(candidate: Any, reference: Any, case: Case) -> Sides:
    """A window of at least T tokens gives the logits of full attention."""
    window = int(case.meta["window"])
    subject = candidate.variant(f"window={window}")
    unbounded = _windowed(reference, candidate, 4 * case.ids.shape[1])
    return _banded(subject, unbounded, candidate, case, window)


def _windowed(reference: Any, candidate: Any, window: int) -> Any:
    info = describe(reference)
    if "window" in info.capabilities:
        return reference.variant(f"window={window}")
    return reference if not any(info.windows) else candidate.variant(f"window={window}")


def _banded(subject: Any, right: Any, candidate: Any, case: Case, window: int | None) -> Sides:
    sizes, encoder = sizes_of(case), encoder_of(candidate, len(case.ids), case.seed)
    fed = run(subject, case.ids, sizes, encoder=encoder)
    sides = Sides(
        {"logits": fed.logits_BTV},
        {"logits": full(right, case.ids, encoder=encoder)},
        chunks=fed.starts,
        words=(f"window {window}, chunks {','.join(map(str, sizes))}", "one banded forward"),
        meta={"window": window, "sizes": sizes},
    )
    return loose(candidate, right, sides, exact_right=True)


def _ring_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    for window in sorted({w for w in info.windows if w and w < t}):
        for sizes in straddling(info, t, window):
            yield Case(ids, appends(sizes), seed=seed, meta={"window": None})
    if "window" in info.capabilities:
        for window in (5, 1):
            for sizes in straddling(info, t, window):
                yield Case(ids, appends(sizes), seed=seed, meta={"window": window})


def _has_window(info: SubjectInfo) -> str | None:
    if "window" in info.capabilities or any(info.windows):
        return None
    return info.absent.get("window") or (
        "no layer is known to have a window; a subject tells with windows=, a width or None for "
        "each layer, or with window=True and a variant 'window=N'"
    )


@relation(
    name="window.ring",
    needs={"cache"},
    cases=_ring_cases,
    applies=_has_window,
    restepped=True,
    catches={
        "window.off_by_one",
        "window.off_by_one.wide",
        "window.cache_only",
        "window.chunk_drops_past",
        "window.chunk_too_wide",
        "window.evicts_newest",
        "window.slot_position",
        "length.from_ring",
    },
)
def window_ring(candidate: Any, reference: Any, case: Case) -> Sides:
    """Steps through a ring give the logits of one forward under the banded mask, far past W."""
    window = case.meta["window"]
    if window is None:
        small = min(w for w in describe(candidate).windows if w)
        return _banded(candidate, reference, candidate, case, small)
    subject = candidate.variant(f"window={window}")
    return _banded(subject, _windowed(reference, candidate, window), candidate, case, window)
