"""A subject that wraps a right one and has one fault; it is driven by the same programs.

Letters: B rows, T tokens of a call, S columns: tokens fed so far, padding included.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.drafting import speculated
from crosscheck.subjects.protocol import KV, SubjectInfo, describe


@dataclass(frozen=True)
class Held:
    """A planted subject's state.

    Attributes:
        state: The right subject's state.
        texts: Real tokens of each row, as the caller believes them to be held.
        columns: S, while all rows are equally long and no padding was fed; else None.
        pads_B: Tokens that stood before the first real one of each row.
        capacity: What the caller asked for.
        options: What the caller gave to `init` besides.
        memo: What the fault remembers.
    """

    state: Any
    texts: tuple[tuple[int, ...], ...]
    columns: int | None
    pads_B: NDArray
    capacity: int | None
    options: Mapping[str, Any] = field(default_factory=dict)
    memo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length_B(self) -> NDArray:
        """How many tokens the caller believes each row to hold."""
        return np.array([len(text) for text in self.texts], dtype=np.int64)

    def advanced(self, state: Any) -> "Held":
        """Return the record around another state of the right subject."""
        return replace(self, state=state)

    def remember(self, **memo: Any) -> "Held":
        """Return the state with some of the fault's memory replaced."""
        return replace(self, memo={**self.memo, **memo})


@dataclass(frozen=True)
class Call:
    """One call of `step`, seen by a fault.

    Attributes:
        ids_BT: Token ids.
        real_BT: Which of them are real.
        length_B: Tokens held before.
        columns: S before, or None (see `Held`).
        options: The caller's.
    """

    ids_BT: NDArray
    real_BT: NDArray
    length_B: NDArray
    columns: int | None
    options: Mapping[str, Any]

    @property
    def width(self) -> int:
        """T."""
        return self.ids_BT.shape[1]

    @property
    def later(self) -> bool:
        """Whether some row holds tokens already."""
        return bool(self.length_B.any())

    @property
    def position_BT(self) -> NDArray:
        """Where the real tokens stand by default."""
        return np.maximum(self.length_B[:, None] + np.cumsum(self.real_BT, axis=1) - 1, 0)


class Planted:
    """A right subject, answering every call as it does; faults override single methods."""

    fault = ""

    def __init__(self, subject: Any) -> None:
        self.inner = subject
        self.facts: SubjectInfo = describe(subject)

    @property
    def info(self) -> SubjectInfo:
        """What the right subject declares, under a name that tells the fault."""
        return replace(self.facts, name=f"{self.facts.name} with {self.fault}")

    def has(self, *capabilities: str) -> bool:
        """Return whether the right subject declares all of these."""
        return self.facts.capabilities.issuperset(capabilities)

    def again(self, subject: Any) -> "Planted":
        """Return the same fault in another subject."""
        other = copy.copy(self)
        Planted.__init__(other, subject)
        return other

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return the logits of whole texts, without a cache."""
        return self.inner.full(ids, **options)

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Any:
        """Return an empty state."""
        state = self.inner.init(batch, self.room(capacity), **options)
        return Held(state, ((),) * batch, 0, np.zeros(batch, np.int64), capacity, options)

    def room(self, capacity: int | None) -> int | None:
        """Return the room that the right subject needs so that the fault meets no refusal."""
        return capacity

    def step(self, held: Any, ids: NDArray, **options: Any) -> tuple[NDArray, Any]:
        """Return the logits of the next tokens, and the next state."""
        call = seen(held, np.asarray(ids), options)
        logits, held = self.forward(held, call)
        return logits, fed(held, call)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Return logits and the state with the right subject's state advanced."""
        return self.pass_on(held, call.ids_BT, **call.options)

    def pass_on(self, held: Held, ids_BT: NDArray, **options: Any) -> tuple[NDArray, Held]:
        """Return what the right subject answers to these options."""
        logits, state = self.inner.step(held.state, ids_BT, **options)
        return logits, replace(held, state=state)

    def length(self, held: Any) -> NDArray:
        """Return how many tokens each row holds."""
        return self.inner.length(held.state)

    def rollback(self, held: Any, length: NDArray) -> Any:
        """Return the state with only the first length[b] tokens of each row."""
        return shortened(replace(held, state=self.inner.rollback(held.state, length)), length)

    def gather(self, held: Any, rows: Sequence[int] | NDArray) -> Any:
        """Return the state with the rows in the order named."""
        return reordered(replace(held, state=self.inner.gather(held.state, np.asarray(rows))), rows)

    def fork(self, held: Any) -> Any:
        """Return a second state that lives on by itself."""
        return replace(held, state=self.inner.fork(held.state))

    def grow(self, held: Any, capacity: int) -> Any:
        """Return the state with more room."""
        grown = self.inner.grow(held.state, self.room(capacity))
        return replace(held, state=grown, capacity=capacity)

    def permute_pages(self, held: Any, seed: int) -> Any:
        """Return the state with its pages in another order."""
        return replace(held, state=self.inner.permute_pages(held.state, seed))

    def speculate(self, ids: NDArray, new: int, draft: Any, k: int) -> NDArray:
        """Return greedy ids [B, T + new] with drafts, over this cache with its fault."""
        return speculated(self, ids, new, draft, k)

    def kv(self, held: Any, layer: int) -> KV:
        """Return what one layer holds."""
        return self.inner.kv(held.state, layer)

    def with_kv(self, held: Any, layer: int, kv: KV) -> Any:
        """Return the state with one layer's keys and values replaced."""
        return replace(held, state=self.inner.with_kv(held.state, layer, kv))

    def cast(self, dtype: str) -> Any:
        """Return the same fault in another dtype."""
        return self.again(self.inner.cast(dtype))

    def variant(self, name: str) -> Any:
        """Return the same fault in another form of the subject."""
        return self.again(self.inner.variant(name))

    def __getattr__(self, name: str) -> Any:
        # Copying asks for attributes before there is an inner subject.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def seen(held: Held, ids_BT: NDArray, options: Mapping[str, Any]) -> Call:
    """Return one call as faults see it."""
    batch, width = ids_BT.shape
    real_BT = np.ones((batch, width), dtype=np.bool_)
    if options.get("mask") is not None:
        real_BT &= np.asarray(options["mask"], dtype=np.bool_)
    if options.get("count") is not None:
        real_BT &= np.arange(width) < np.asarray(options["count"])[:, None]
    return Call(ids_BT, real_BT, held.length_B, held.columns, options)


def fed(held: Held, call: Call) -> Held:
    """Return the state with the caller's tokens added to its record."""
    texts = tuple(
        (*text, *(int(i) for i in ids_T[real_T]))
        for text, ids_T, real_T in zip(held.texts, call.ids_BT, call.real_BT, strict=True)
    )
    leading_B = np.cumprod(~call.real_BT, axis=1).sum(axis=1)
    has_real_B = call.real_BT.any(axis=1)
    pads_B = held.pads_B + np.where((call.length_B == 0) & has_real_B, leading_B, 0)
    plain = held.columns is not None and bool(call.real_BT.all())
    columns = held.columns + call.width if plain and held.columns is not None else None
    return replace(held, texts=texts, pads_B=pads_B, columns=columns)


def shortened(held: Held, length: NDArray) -> Held:
    """Return the state with the record of its texts cut to these lengths."""
    length_B = np.broadcast_to(np.asarray(length, dtype=np.int64), (len(held.texts),))
    texts = tuple(text[:n] for text, n in zip(held.texts, length_B.tolist(), strict=True))
    plain = held.columns is not None and len({*length_B.tolist()}) == 1
    return replace(held, texts=texts, columns=int(length_B[0]) if plain else None)


def reordered(held: Held, rows: Sequence[int] | NDArray) -> Held:
    """Return the state with the record of its rows in the order named."""
    order = np.asarray(rows, dtype=np.int64)
    memo = {
        name: value[order] if name.endswith("_B") else value for name, value in held.memo.items()
    }
    texts = tuple(held.texts[row] for row in order.tolist())
    return replace(held, texts=texts, pads_B=held.pads_B[order], memo=memo)
