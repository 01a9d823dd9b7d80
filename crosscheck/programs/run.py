"""Run a case's operations on any subject, and keep every step's logits beside what was fed.

Letters: B rows, T tokens of a step, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Grow,
    Op,
    Pad,
    PermutePages,
    Rollback,
    Speculate,
)
from crosscheck.programs.model import Rows, Text, room
from crosscheck.relations.drive import encoder_of, room_for
from crosscheck.subjects.protocol import describe


@dataclass(frozen=True)
class Fed:
    """One step of the cache.

    Attributes:
        op: Its place in the case's operations.
        texts: What each row held after it.
        count_B: How many tokens of each row it fed.
        logits_BTV: Row b's answers to its count_B[b] tokens come first; the rest is zeros.
        length_B: What the subject says its rows hold afterwards; None where it can't.
    """

    op: int
    texts: tuple[Text, ...]
    count_B: NDArray
    logits_BTV: NDArray
    length_B: NDArray | None


@dataclass
class Trace:
    """What a program did.

    Attributes:
        steps: In order, those of forks included.
        starts: Where in row 0's text each step began.
        texts: What each row holds at the end, as the model has it.
        state: The last state; None after an error, for a cache may then be half advanced.
        error: What the subject raised.
        failed_at: The operation that raised it.
        fed: Rows x tokens given to the subject, those not real included.
        forwarded: Rows x tokens that it says it ran; None where it doesn't tell.
    """

    steps: list[Fed] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    texts: tuple[Text, ...] = ()
    state: Any = None
    error: Exception | None = None
    failed_at: int | None = None
    fed: int = 0
    forwarded: int | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each row holds."""
        return tuple(map(len, self.texts))

    def require(self) -> "Trace":
        """Return the trace, or raise what the subject raised."""
        if self.error is not None:
            raise self.error
        return self


def run_program(subject: Any, case: Case) -> Trace:
    """Return what a case's operations gave on a subject; nothing runs after an exception.

    Raises:
        CrosscheckError: An operation needs a capability that the subject doesn't declare, or names
            rows or lengths that aren't there.
    """
    check_ops(case, describe(subject).capabilities)
    rows, trace = Rows.start(case), Trace()
    before = forwarded(subject)
    place = 0
    # What the subject raises is a result; the state that it left behind is never used again.
    try:
        encoder = encoder_of(subject, 1, case.seed)
        options = {} if encoder is None else {"encoder": np.repeat(encoder, len(case.ids), axis=0)}
        needed = room(case)
        capacity = case.capacity or max(needed, room_for(describe(subject), needed - 1))
        trace.state = subject.init(len(rows.texts), capacity, **options)
        for place, op in enumerate(case.ops):
            rows = _apply(subject, trace, place, op, rows)
    except Exception as error:
        trace.error, trace.failed_at, trace.state = error, place, None
    after = forwarded(subject)
    trace.texts = rows.texts
    trace.forwarded = None if before is None or after is None else after - before
    return trace


def check_ops(case: Case, capabilities: frozenset[str]) -> None:
    """Refuse a program that the subject can't run or that the token model has no meaning for.

    Raises:
        CrosscheckError: Said which operation, and why.
    """
    rows = Rows.start(case)
    for place, op in enumerate(case.ops):
        missing = sorted(_needs(op, rows) - capabilities)
        if missing:
            raise CrosscheckError(
                f"run_program: ops[{place}] is {op}, which needs {', '.join(missing)}; the subject "
                f"declares {', '.join(sorted(capabilities)) or 'nothing'}."
            )
        why = _meaningless(op, rows)
        if why:
            raise CrosscheckError(f"run_program: ops[{place}] is {op}, {why}.")
        rows = rows.after(op)


def forwarded(subject: Any) -> int | None:
    """Return how many positions a subject has run so far; None where it doesn't tell."""
    count = getattr(subject, "forwarded_positions", None)
    count = count() if callable(count) else count
    return None if count is None else int(count)


def _needs(op: Op, rows: Rows) -> set[str]:
    started = any(rows.lengths)
    match op:
        case Append(n):
            return {"chunk"} if n > 1 and started else {"cache"}
        case AppendRagged(counts):
            return {"count"} | ({"chunk"} if max(counts) > 1 and started else set())
        case Pad(side):
            return {f"{side}_pad"}
        case Rollback():
            return {"rollback"}
        case Speculate():
            return {"rollback", "chunk"}
        case Gather():
            return {"gather"}
        case Fork():
            return {"fork"}
        case Grow():
            return {"grow"}
        case PermutePages():
            return {"paged"}


def _meaningless(op: Op, rows: Rows) -> str:
    count = len(rows.texts)
    match op:
        case Append(n) | Fork(n) if n < 1:
            return "which feeds nothing"
        case AppendRagged(counts) if len(counts) != count or min(counts) < 0 or max(counts) < 1:
            return f"expected {count} counts of at least 0, one of them at least 1"
        case Gather(order) if not order or min(order) < 0 or max(order) >= count:
            return f"expected rows 0 to {count - 1}"
        case Rollback(to):
            kept = (to,) * count if isinstance(to, int) else to
            if len(kept) != count or any(
                not 0 <= n <= held for n, held in zip(kept, rows.lengths, strict=True)
            ):
                return f"expected at most the lengths {rows.lengths}"
        case Speculate(k, accepted) if not 0 <= accepted <= k or k < 1:
            return "expected 0 <= accepted <= k"
    return ""


def _apply(subject: Any, trace: Trace, place: int, op: Op, rows: Rows) -> Rows:
    after = rows.after(op)
    match op:
        case Append() | AppendRagged():
            trace.state = _feed(subject, trace, place, rows, after, trace.state)
        case Speculate(k):
            drafted = rows.after(Append(k))
            state = _feed(subject, trace, place, rows, drafted, trace.state)
            trace.state = subject.rollback(state, np.asarray(after.lengths, np.int32))
        case Fork(n):
            other = subject.fork(trace.state)
            _feed(subject, trace, place, rows, rows.after(Append(n)), other)
        case Rollback():
            trace.state = subject.rollback(trace.state, np.asarray(after.lengths, np.int32))
        case Gather(order):
            trace.state = subject.gather(trace.state, np.asarray(order, np.int32))
        case Grow(capacity):
            trace.state = subject.grow(trace.state, capacity)
        case PermutePages(seed):
            trace.state = subject.permute_pages(trace.state, seed)
    return after


def _feed(subject: Any, trace: Trace, place: int, rows: Rows, after: Rows, state: Any) -> Any:
    """Step on a state from the texts in rows to those in after; return the next state."""
    count_B = np.asarray(after.lengths) - np.asarray(rows.lengths)
    ids_BT, options, first = _arguments(rows, after, count_B)
    logits_BTV, state = subject.step(state, ids_BT, **options)
    width = int(count_B.max())
    real_BTV = np.asarray(logits_BTV)[:, first : first + width]
    beyond_BT = np.arange(width) >= count_B[:, None]
    if beyond_BT.any():
        real_BTV = np.where(beyond_BT[..., None], np.zeros((), real_BTV.dtype), real_BTV)
    length_B = np.asarray(subject.length(state)) if hasattr(subject, "length") else None
    trace.steps.append(Fed(place, after.texts, count_B, real_BTV, length_B))
    trace.starts.append(rows.lengths[0])
    trace.fed += ids_BT.size
    return state


def _arguments(
    rows: Rows, after: Rows, count_B: NDArray
) -> tuple[NDArray, dict[str, NDArray], int]:
    """Return ids [B, T], the options that say which are real, and where the real ones start."""
    filler = int(rows.case.meta.get("pad_id", 0))
    width, pad = int(count_B.max()), rows.pad
    real_BT = np.full((len(count_B), width), filler, np.int32)
    for row, (text, count) in enumerate(zip(after.texts, count_B, strict=True)):
        real_BT[row, :count] = text[len(text) - count :]
    if pad is None:
        options = {} if (count_B == width).all() else {"count": count_B.astype(np.int32)}
        return real_BT, options, 0
    padding_BT = np.full((len(count_B), pad.n), filler, np.int32)
    is_real_BT = np.arange(width) < count_B[:, None]
    not_real_BT = np.zeros(padding_BT.shape, np.bool_)
    left = pad.side == "left"
    ids = (padding_BT, real_BT) if left else (real_BT, padding_BT)
    mask = (not_real_BT, is_real_BT) if left else (is_real_BT, not_real_BT)
    return np.concatenate(ids, 1), {"mask": np.concatenate(mask, 1)}, pad.n if left else 0
