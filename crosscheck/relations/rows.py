"""Rows of a batch are strangers: neighbours, padding and unequal lengths change nothing.

Letters: B rows, T columns of a call.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.programs.case import Append, AppendRagged, Case, Pad
from crosscheck.relations.drive import cached_or_full, encoder_of, feed, full, run, sizes_of, start
from crosscheck.relations.entries import loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe
from crosscheck.tolerance import bitwise


def _batch_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed, batch=3)
    parts = some_partitions(info, ids.shape[1])
    for sizes, order in zip(parts[:2], ((2, 0, 1), (1, 2, 0)), strict=False):
        yield Case(ids, appends(sizes), seed=seed, meta={"order": order})


@relation(
    name="batch.rows",
    needs={"cache"},
    cases=_batch_cases,
    catches={"rows.leak", "cross.stale"},
)
def batch_rows(candidate: Any, reference: Any, case: Case) -> Sides:
    """A row gives the same logits alone and in a batch, in any order, with a cache or without."""
    order, sizes = list(case.meta["order"]), sizes_of(case)
    encoder = encoder_of(candidate, len(order), case.seed)
    mixed = None if encoder is None else encoder[order]
    back = np.argsort(order)
    left = {
        "full": full(candidate, case.ids[order], encoder=mixed)[back],
        "logits": run(candidate, case.ids[order], sizes, encoder=mixed).logits_BTV[back],
    }
    alone = [
        (case.ids[b : b + 1], None if encoder is None else encoder[b : b + 1])
        for b in range(len(order))
    ]
    right = {
        "full": np.concatenate([full(reference, ids, encoder=e) for ids, e in alone]),
        "logits": np.concatenate(
            [cached_or_full(reference, ids, sizes, encoder=e) for ids, e in alone]
        ),
    }
    same_bits = reference is candidate and "batch_invariant" in describe(candidate).capabilities
    sides = Sides(
        left,
        right,
        words=(f"in a batch, order {order}", "alone"),
        meta={"order": order, "sizes": sizes},
        level=bitwise() if same_bits else None,
    )
    return loose(candidate, reference, sides)


def _left_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    most = min(4, t - 2)
    low, high = info.first_id, info.vocab_size - 1
    for pads, pad_id, way in (
        ((most, 0), low, 0),
        ((most, 0), high, 1),
        ((most, most), high, 0),
        ((1, most - 1), low, 0),
    ):
        # All padding in one chunk: token by token it moves recurrent states that no loop moves.
        first = min(max(pads) + 2, t - 1)
        sizes = (first, *_rest(info, t - first, way))
        ops = (Pad("left", max(pads)), *appends(sizes))
        yield Case(ids, ops, seed=seed, meta={"pads": pads, "pad_id": int(pad_id)})


def _rest(info: SubjectInfo, tokens: int, way: int) -> tuple[int, ...]:
    """Return a chunk, a token and what is left; or one token at a time."""
    if way or "chunk" not in info.capabilities or tokens < 5:
        return (1,) * tokens
    return (3, 1, tokens - 4)


@relation(
    name="pad.left",
    needs={"cache", "left_pad"},
    cases=_left_cases,
    catches={"pos.pad_shift", "pad.attended", "mask.empty_row_nan"},
)
def pad_left(candidate: Any, reference: Any, case: Case) -> Sides:
    """Tokens that are not real before the others change nothing, whatever their id.

    Models with absolute positions may want to be told positions: if the padded forward without a
    cache differs by its default ones, and the subject takes positions, they are given.
    """
    pads, pad_id = np.asarray(case.meta["pads"]), int(case.meta["pad_id"])
    sizes, (batch, t) = sizes_of(case), case.ids.shape
    mask = np.arange(t) >= pads[:, None]
    ids = np.where(mask, case.ids, pad_id).astype(case.ids.dtype)
    encoder = encoder_of(candidate, batch, case.seed)
    right = _alone(reference, case.ids, pads, sizes, encoder)
    bare = full(candidate, ids, encoder=encoder, mask=mask)
    positions = _told(candidate, mask, bare, right["full"])
    if positions is not None:
        bare = full(candidate, ids, encoder=encoder, mask=mask, positions=positions)
    fed = _padded_run(candidate, ids, sizes, mask, positions, encoder)
    sides = Sides(
        {"full": bare, "logits": fed.logits_BTV},
        right,
        mask,
        chunks=fed.starts,
        words=(f"{'/'.join(map(str, pads))} pads on the left", "rows alone, unpadded"),
        meta={
            "pads": pads.tolist(),
            "pad_id": pad_id,
            "sizes": sizes,
            "positions": "default" if positions is None else "given",
        },
    )
    return loose(candidate, reference, sides)


def _padded_run(
    subject: Any,
    ids: NDArray,
    sizes: Sequence[int],
    mask: NDArray,
    positions: NDArray | None,
    encoder: NDArray | None,
) -> Any:
    """Feed the padding with the first chunk; later steps hold real tokens only, and no mask."""
    first = sizes[0]
    state = start(subject, len(ids), ids.shape[1], encoder=encoder)
    told = None if positions is None else positions[:, :first]
    head = feed(subject, state, ids[:, :first], [first], mask=mask[:, :first], positions=told)
    told = None if positions is None else positions[:, first:]
    rest = feed(subject, head.state, ids[:, first:], sizes[1:], positions=told)
    logits = np.concatenate([head.logits_BTV, rest.logits_BTV], axis=1)
    return type(head)(logits, rest.state, (0, *(first + at for at in rest.starts)))


def _told(candidate: Any, mask: NDArray, bare: NDArray, right: NDArray) -> NDArray | None:
    """Return positions to give where the model's own are another convention, else None."""
    capabilities = describe(candidate).capabilities
    if "positions" not in capabilities or "rope" in capabilities:
        return None
    scale = np.max(np.abs(right[mask]))
    if np.max(np.abs(bare - right)[mask]) <= 1e-3 * scale:
        return None
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0)


def _alone(
    reference: Any, ids: NDArray, pads: NDArray, sizes: Sequence[int], encoder: NDArray | None
) -> dict[str, NDArray]:
    """Return each row's logits run alone without its pads, placed at its padded columns."""
    right: dict[str, NDArray] = {}
    for b, pad in enumerate(int(p) for p in pads):
        one = None if encoder is None else encoder[b : b + 1]
        row, own = ids[b : b + 1, pad:], (sizes[0] - pad, *sizes[1:])
        for name, logits in (
            ("full", full(reference, row, encoder=one)),
            ("logits", cached_or_full(reference, row, own, encoder=one)),
        ):
            shape = (*ids.shape, logits.shape[-1])
            right.setdefault(name, np.zeros(shape, logits.dtype))[b, pad:] = logits[0]
    return right


def _right_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    ways = [way for way in ("mask", "count") if _takes(info, way)]
    for lengths in ((t - 5, t), (t - 1, 1), (max(1, t - 3),) * 2):
        for way in ways:
            pad_id = info.first_id if lengths[1] == t else info.vocab_size - 1
            yield Case(
                ids,
                (Pad("right", t - min(lengths)), AppendRagged(lengths)),
                lengths,
                seed=seed,
                meta={"way": way, "pad_id": int(pad_id)},
            )


def _takes(info: SubjectInfo, way: str) -> bool:
    # "right_pad" is declared for mask= or count=; "count" says which.
    return ("count" in info.capabilities) == (way == "count")


@relation(
    name="pad.right",
    needs={"cache", "chunk", "right_pad"},
    cases=_right_cases,
    catches={"head.slice"},
)
def pad_right(candidate: Any, reference: Any, case: Case) -> Sides:
    """Tokens that are not real after the others change nothing, whatever their id."""
    real = np.arange(case.ids.shape[1]) < np.asarray(case.lengths)[:, None]
    ids = np.where(real, case.ids, int(case.meta["pad_id"])).astype(case.ids.dtype)
    encoder = encoder_of(candidate, len(ids), case.seed)
    option = _real(case.meta["way"], real)
    state = start(candidate, *ids.shape, encoder=encoder)
    logits, _ = candidate.step(state, ids.copy(), **option)
    left = {"full": full(candidate, ids, encoder=encoder, **option), "logits": logits}
    right = _prompts_alone(reference, case.ids, case.lengths, encoder)
    sides = Sides(
        left,
        {"full": right, "logits": right},
        real,
        chunks=(0,),
        words=(f"lengths {'/'.join(map(str, case.lengths))}, padded", "rows alone"),
        meta={"lengths": list(case.lengths), "way": case.meta["way"]},
    )
    return loose(candidate, reference, sides, exact_right=True)


def _real(way: str, real: NDArray) -> dict[str, NDArray]:
    return {"mask": real.copy()} if way == "mask" else {"count": real.sum(axis=1)}


def _prompts_alone(
    reference: Any, ids: NDArray, lengths: Sequence[int], encoder: NDArray | None
) -> NDArray:
    rows = []
    for b, n in enumerate(lengths):
        one = None if encoder is None else encoder[b : b + 1]
        logits = full(reference, ids[b : b + 1, :n], encoder=one)[0]
        rows.append(np.pad(logits, [(0, ids.shape[1] - n), (0, 0)]))
    return np.stack(rows)


def _ragged_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    t = ids.shape[1]
    steps = max(1, min(5, t - 2))
    most = t - steps
    # Without "count", rows padded on the right are not stepped on.
    ways = [
        way
        for way, needs in (("left", {"left_pad"}), ("count", {"count"}))
        if needs <= info.capabilities
    ]
    for way in ways:
        for lengths, rest in (((max(1, most - 5), most), 0), ((most, 1), 1)):
            tail = _rest(info, steps, rest)
            ops = (AppendRagged(lengths), *map(Append, tail))
            yield Case(ids, ops, lengths, seed=seed, meta={"way": way})


def _pads_at_all(info: SubjectInfo) -> str | None:
    if info.capabilities & {"left_pad", "count"}:
        return None
    reasons = [info.absent[c] for c in ("left_pad", "count") if info.absent.get(c)]
    return "; ".join(reasons) or "it takes no rows of unequal length"


@relation(
    name="ragged.continue",
    needs={"cache", "chunk"},
    cases=_ragged_cases,
    applies=_pads_at_all,
    catches={"pos.shared_length", "count.ignored"},
)
def ragged_continue(candidate: Any, reference: Any, case: Case) -> Sides:
    """Rows of unequal length, prefilled together and stepped on, go on as each would alone."""
    lengths, way = np.asarray(case.lengths), case.meta["way"]
    most, batch, info = int(lengths.max()), len(lengths), describe(candidate)
    tail = [op.n for op in case.ops if isinstance(op, Append)]
    steps = sum(tail)
    shift = most - lengths if way == "left" else np.zeros_like(lengths)
    column = np.arange(most)
    real = (column >= shift[:, None]) & (column < (shift + lengths)[:, None])
    prompts = np.full((batch, most), info.first_id, case.ids.dtype)
    for b, n in enumerate(lengths):
        prompts[b, real[b]] = case.ids[b, :n]
    more = np.stack([case.ids[b, n : n + steps] for b, n in enumerate(lengths)])
    encoder = encoder_of(candidate, batch, case.seed)
    right = np.zeros((batch, most + steps, info.vocab_size))
    for b, n in enumerate(int(n) for n in lengths):
        one = None if encoder is None else encoder[b : b + 1]
        alone = cached_or_full(reference, case.ids[b : b + 1, : n + steps], (n, *tail), encoder=one)
        right[b, shift[b] : shift[b] + n], right[b, most:] = alone[0, :n], alone[0, n:]
    option = _real("mask" if way == "left" else way, real)
    told: dict[str, Any] = {}
    if way == "left":
        bare = full(candidate, prompts, encoder=encoder, **option)
        positions = _told(candidate, real, bare, right[:, :most])
        told = {} if positions is None else {"positions": positions}
    state = start(candidate, batch, most + steps, encoder=encoder)
    first, state = candidate.step(state, prompts.copy(), **option, **told)
    after = lengths[:, None] + np.arange(steps) if told else None
    rest = feed(candidate, state, more, tail, positions=after)
    left = np.concatenate([first, rest.logits_BTV], axis=1)
    sides = Sides(
        {"logits": left},
        {"logits": right.astype(left.dtype)},
        np.concatenate([real, np.ones((batch, steps), bool)], axis=1),
        chunks=(0, *(most + at for at in rest.starts)),
        words=(f"lengths {'/'.join(map(str, lengths))} together", "each alone"),
        meta={"lengths": lengths.tolist(), "way": way, "positions": "given" if told else "default"},
    )
    return loose(candidate, reference, sides)
