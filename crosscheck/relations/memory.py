"""What a cache does to memory: old states stay, a step writes its own slots, room is no input."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.programs.case import Case
from crosscheck.relations.drive import (
    cached_or_full,
    encoder_of,
    feed,
    is_refusal,
    room_for,
    run,
    sizes_of,
    start,
    whole,
)
from crosscheck.relations.entries import entries, loose, pair
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, partitions, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe, window_of
from crosscheck.tolerance import bitwise


def _branch_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed, batch=4)
    found = some_partitions(info, ids.shape[1])
    for sizes in [sizes for sizes in found if len(sizes) > 2][:2]:
        yield Case(ids, appends(sizes), seed=seed)


@relation(
    name="cache.immutable",
    needs={"cache", "persistent"},
    cases=_branch_cases,
    level=bitwise(),
    catches={"state.in_place"},
)
def cache_immutable(candidate: Any, _reference: Any, case: Case) -> Sides:
    """An old state still holds and answers the same after others were made of it."""
    half = len(case.ids) // 2
    ids, other = case.ids[:half], case.ids[half:]
    sizes, t = sizes_of(case), ids.shape[1]
    first, middle = sizes[0], sizes[0] + sizes[1]
    state = start(candidate, half, t, encoder=encoder_of(candidate, half, case.seed))
    given = ids.copy()
    _, old = candidate.step(state, given[:, :first])
    before = entries(candidate, old, first)
    answer = np.array(feed(candidate, old, ids[:, first:], sizes[1:]).logits_BTV)
    # Between two steps from the old state come others of it, by every verb.
    head, new = candidate.step(old, ids[:, first:middle].copy())
    head = np.array(head)
    _disturb(candidate, old, other[:, first:], sizes[1:])
    after = entries(candidate, old, first)
    rest = feed(candidate, new, ids[:, middle:], sizes[2:]).logits_BTV
    return Sides(
        {**after.points, "ids": given, "logits": np.concatenate([head, rest], axis=1)},
        {**before.points, "ids": ids, "logits": answer},
        chunks=(first,),
        words=("among other steps", "undisturbed"),
        meta={"sizes": sizes},
    )


def _disturb(subject: Any, old: Any, other: NDArray, sizes: tuple[int, ...]) -> None:
    """Make other states of an old one by every verb that the subject declares."""
    capabilities = describe(subject).capabilities
    new = feed(subject, old, other, sizes).state
    if "rollback" in capabilities:
        subject.rollback(old, subject.length(old) - 1)
    if "gather" in capabilities:
        feed(subject, subject.gather(old, np.arange(len(other))[::-1]), other, sizes)
    if "fork" in capabilities:
        feed(subject, subject.fork(old), other, sizes)
    subject.length(new)


def _write_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    for sizes in some_partitions(info, ids.shape[1]):
        yield Case(ids, appends(sizes), seed=seed)


def _has_entries(info: SubjectInfo) -> str | None:
    if not info.num_layers:
        return "the subject does not say how many layers hold a cache"
    if "quant" in info.capabilities:
        return "a quantized cache rewrites the entries that leave its residual"
    return None


@relation(
    name="cache.write_set",
    needs={"cache", "kv"},
    cases=_write_cases,
    level=bitwise(),
    applies=_has_entries,
    catches={"append.double", "page.alias", "write.overlap"},
)
def cache_write_set(candidate: Any, _reference: Any, case: Case) -> Sides:
    """A step fills the slots of its own tokens, and no bit of an earlier token changes."""
    info, sizes, (batch, t) = describe(candidate), sizes_of(case), case.ids.shape
    state = start(candidate, batch, t, encoder=encoder_of(candidate, batch, case.seed))
    lefts: dict[str, list[NDArray]] = {}
    rights: dict[str, list[NDArray]] = {}
    fed, before = 0, None
    for size in sizes:
        _, state = candidate.step(state, case.ids[:, fed : fed + size].copy())
        after, old = entries(candidate, state, t), fed
        fed += size
        if before is not None:
            left, right = pair(after, before, info, fed)
            _collect(lefts, {k: x[:, :old] for k, x in left.items()})
            _collect(rights, {k: x[:, :old] for k, x in right.items()})
        for layer, held_BT in after.held.items():
            owed = _owed(info, layer, fed, held_BT)
            _collect(lefts, {f"held.{layer}": held_BT[..., None]})
            _collect(rights, {f"held.{layer}": owed[..., None]})
        lengths = np.broadcast_to(np.asarray(candidate.length(state))[:, None], (batch, 1))
        _collect(lefts, {"length": lengths.astype(np.int64)})
        _collect(rights, {"length": np.full((batch, 1), fed)})
        before = after
    return Sides(
        {k: np.concatenate(x, axis=1) for k, x in lefts.items()},
        {k: np.concatenate(x, axis=1) for k, x in rights.items()},
        words=("after the step", "owed"),
        meta={"sizes": sizes, "windows": info.windows, "axis": "steps, then positions"},
    )


def _owed(info: SubjectInfo, layer: int, fed: int, held_BT: NDArray) -> NDArray:
    """Return what must be held, taking the layer's word for what its window may have dropped."""
    position_T = np.arange(held_BT.shape[1])
    if not info.windows:
        return held_BT & (position_T < fed)
    window = window_of(info, layer)
    needed_T = (position_T < fed) & (position_T > (fed - window if window else -1))
    return np.where(position_T < fed, held_BT | needed_T, False)


def _collect(into: dict[str, list[NDArray]], points: dict[str, NDArray]) -> None:
    for name, array in points.items():
        into.setdefault(name, []).append(array)


def _capacity_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    chunks = partitions(info, t)[0]
    windows = [w for w in info.windows if w]
    # Of the rooms, one lies below every window: a buffer must not shrink it.
    small = min([max(2, t - 6), *(max(2, w - 2) for w in windows)])
    # A compiled subject compiles each room: the one that a text fills exactly is the one that a
    # longer text exceeds, and the larger one is that of all other relations.
    full = max(2, t - 1)
    for sizes in partitions(info, full)[:2]:
        yield Case(ids[:, :full], appends(sizes), capacity=full, seed=seed)
    for room in dict.fromkeys((full, small)):
        for sizes in dict.fromkeys((chunks, _up_to(room, t, info))):
            if sizes[0] <= room:
                yield Case(ids, appends(sizes), capacity=room, seed=seed)


def _up_to(room: int, tokens: int, info: SubjectInfo) -> tuple[int, ...]:
    """Return a partition of which one step begins exactly at the end of the room."""
    rest = tokens - room
    return (*whole(info, room), *whole(info, rest))


def _fixed_room(info: SubjectInfo) -> str | None:
    if "capacity" in info.capabilities:
        return None
    return info.absent.get("capacity") or "its cache has no fixed room"


@relation(
    name="cache.capacity",
    needs={"cache"},
    cases=_capacity_cases,
    applies=_fixed_room,
    catches={"capacity.clamp", "capacity.as_length", "capacity.shrinks_window"},
)
def cache_capacity(candidate: Any, reference: Any, case: Case) -> Sides:
    """Room changes no logits: larger or exactly full; past it comes an error, never wrong logits.

    What raises past the room is right, and then what came before it is compared.
    """
    room, sizes, (batch, t) = case.capacity or case.ids.shape[1], sizes_of(case), case.ids.shape
    encoder = encoder_of(candidate, batch, case.seed)
    generous = room_for(describe(candidate), t)
    if "cache" in describe(reference).capabilities:
        right = run(reference, case.ids, sizes, room=generous, encoder=encoder).logits_BTV
    else:
        right = cached_or_full(reference, case.ids, sizes, encoder=encoder)
    state = start(candidate, batch, t, room=room, encoder=encoder)
    logits, fed, refused = [], 0, None
    for size in sizes:
        try:
            out, state = candidate.step(state, case.ids[:, fed : fed + size].copy())
        except Exception as error:
            if fed + size <= room or not is_refusal(error):
                raise
            refused = str(error)
            break
        logits.append(out)
        fed += size
    sides = Sides(
        {"logits": np.concatenate(logits, axis=1)},
        {"logits": right[:, :fed]},
        chunks=tuple(np.cumsum((0, *sizes))[: len(logits)].tolist()),
        words=(f"capacity {room}", f"capacity {generous}"),
        meta={"capacity": room, "sizes": sizes, "refused": refused, "fed": fed},
    )
    return loose(candidate, reference, sides)
