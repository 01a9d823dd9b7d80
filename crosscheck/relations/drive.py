"""Feed a subject in steps, and what every call owes it: room, an encoder's result, fresh ids.

Letters: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import Refused, SubjectError, SubjectRaised
from crosscheck.programs.case import Append, Case
from crosscheck.subjects.protocol import SubjectInfo, describe

# Few different capacities, so that a compiled subject compiles little.
ROOM = 128


@dataclass(frozen=True)
class Fed:
    """What some steps gave.

    Attributes:
        logits_BTV: All their logits, one after the other.
        state: The last state.
        starts: Where each step began, counted from the first of them.
    """

    logits_BTV: NDArray
    state: Any
    starts: tuple[int, ...]


def sizes_of(case: Case) -> tuple[int, ...]:
    """Return the chunk sizes of a case whose program is appends only."""
    return tuple(op.n for op in case.ops if isinstance(op, Append)) or (case.ids.shape[1],)


def room_for(info: SubjectInfo, tokens: int) -> int:
    """Return a capacity with some room beyond the tokens, within the subject's positions."""
    room = -(-(tokens + 1) // ROOM) * ROOM
    return min(room, info.max_positions or room)


def encoder_of(subject: Any, batch: int, seed: int) -> NDArray | None:
    """Return inputs for a subject's cross-attention, or None where it has none."""
    if "cross" not in describe(subject).capabilities:
        return None
    return np.asarray(subject.encoder_inputs(batch, seed))


def start(
    subject: Any, batch: int, tokens: int, *, room: int | None = None, encoder: Any = None
) -> Any:
    """Return an empty state with room for the tokens."""
    room = room_for(describe(subject), tokens) if room is None else room
    return subject.init(batch, room, **_given(encoder=encoder))


def whole(info: SubjectInfo, tokens: int) -> tuple[int, ...]:
    """Return the sizes that feed these tokens in as few steps as the subject takes."""
    return (tokens,) if tokens and "chunk" in info.capabilities else (1,) * tokens


def parted(sizes: Sequence[int], tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of the first tokens, and those of the rest.

    >>> parted((3, 1, 4, 2), 4)
    ((3, 1), (4, 2))
    """
    ends = list(accumulate(sizes))
    at = ends.index(tokens) + 1 if tokens else 0
    return tuple(sizes[:at]), tuple(sizes[at:])


def feed(
    subject: Any, state: Any, ids_BT: NDArray, sizes: Sequence[int], **per_token: NDArray | None
) -> Fed:
    """Return the logits of chunks of these sizes, one step each, and the last state.

    A subject without "chunk" is given one token at a time, whatever the sizes.

    Args:
        subject: With `step`.
        state: From `start`, or of earlier steps.
        ids_BT: All their tokens.
        sizes: Of the chunks; they add up to T.
        per_token: mask=, positions=: [B, T], cut as the ids are; None is left out.
    """
    if "chunk" not in describe(subject).capabilities:
        sizes = (1,) * sum(sizes)
    logits, starts = [], (0, *accumulate(sizes))[:-1]
    for at, size in zip(starts, sizes, strict=True):
        cut = {k: x[:, at : at + size].copy() for k, x in _given(**per_token).items()}
        out, state = subject.step(state, ids_BT[:, at : at + size].copy(), **cut)
        logits.append(out)
    return Fed(np.concatenate(logits, axis=1), state, tuple(starts))


def run(
    subject: Any,
    ids_BT: NDArray,
    sizes: Sequence[int],
    *,
    room: int | None = None,
    encoder: Any = None,
    **per_token: NDArray | None,
) -> Fed:
    """Return what these steps give from an empty state."""
    state = start(subject, len(ids_BT), ids_BT.shape[1], room=room, encoder=encoder)
    return feed(subject, state, ids_BT, sizes, **per_token)


def full(subject: Any, ids_BT: NDArray, *, encoder: Any = None, **options: Any) -> NDArray:
    """Return the logits of one forward without a cache."""
    return subject.full(ids_BT.copy(), **_given(encoder=encoder, **options))


def cached_or_full(
    subject: Any, ids_BT: NDArray, sizes: Sequence[int], *, encoder: Any = None
) -> NDArray:
    """Return the logits by the same steps, or by one forward where the subject has no cache."""
    if "cache" in describe(subject).capabilities:
        return run(subject, ids_BT, sizes, encoder=encoder).logits_BTV
    return full(subject, ids_BT, encoder=encoder)


def refusing(info: SubjectInfo, what: str, call: Callable[[], Any]) -> Any:
    """Return what a call gives; its exception is a refusal where tokens may be gone as they were.

    Raises:
        Refused: The subject has windows or codes, or does not say whether, and raised.
    """
    try:
        return call()
    except Exception as error:
        keeps_all = bool(info.windows) and not any(info.windows)
        keeps_all &= "quant" not in info.capabilities
        if isinstance(error, Refused) or keeps_all or not is_refusal(error):
            raise
        raise Refused(f"{info.name} refused {what}: {error}") from error


def is_refusal(error: Exception) -> bool:
    """Return whether an exception may be a no: not a time-out, a wrong result, a changed input."""
    return isinstance(error, Refused | SubjectRaised) or not isinstance(error, SubjectError)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
