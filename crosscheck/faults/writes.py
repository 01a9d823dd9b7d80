"""Faults of the write: what is stored is not what the step computed.

Letters: B rows, T new tokens, S slots, K key/value heads, H head width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.registry import fault
from crosscheck.subjects.protocol import KV, SubjectInfo

NEEDS = {"cache", "kv", "kv_write"}


@dataclass(frozen=True)
class Written:
    """One row of one layer after a step; `keys_SKH` and `values_SKH` may be changed in place.

    Attributes:
        row: Of the batch.
        later: Whether the row held tokens before.
        keys_SKH: What is stored.
        values_SKH: What is stored.
        old: Slots that held tokens before, in the order of their positions.
        new: Slots of the step's tokens, in the order of their positions.
        before: The row's slots before the step, as far as there were so many.
    """

    row: int
    later: bool
    keys_SKH: NDArray
    values_SKH: NDArray
    old: NDArray
    new: NDArray
    before: tuple[NDArray, NDArray]

    @property
    def sides(self) -> tuple[NDArray, NDArray]:
        """Keys and values."""
        return self.keys_SKH, self.values_SKH


Write = Callable[[Written], None]


class Storing(Planted):
    """Changes what every step has stored, in all layers; `write(written)` edits one row."""

    def __init__(self, subject: Any, write: Write) -> None:
        super().__init__(subject)
        self.write = write

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step rightly, and store wrongly."""
        layers = range(self.facts.num_layers)
        before = [copied(self.inner.kv(held.state, layer)) for layer in layers]
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        state = held.state
        for layer in layers:
            after = copied(self.inner.kv(state, layer))
            for row in range(len(call.ids_BT)):
                self.write(written(row, before[layer], after))
            state = self.inner.with_kv(state, layer, after)
        return logits, held.advanced(state)


def copied(kv: KV) -> KV:
    """Return the same entries in arrays that may be written to."""
    return KV(*(np.array(x) for x in (kv.keys_BSKH, kv.values_BSKH, kv.position_BS, kv.valid_BS)))


def written(row: int, before: KV, after: KV) -> Written:
    """Return one row's slots, told apart by position: a ring may have moved them."""
    old, valid_S = before.position_BS[row][before.valid_BS[row]], after.valid_BS[row]
    last = old.max(initial=-1)
    slots = np.flatnonzero(valid_S)
    slots = slots[np.argsort(after.position_BS[row, slots], kind="stable")]
    is_new = after.position_BS[row, slots] > last
    blank = [np.zeros_like(x[row]) for x in (after.keys_BSKH, after.values_BSKH)]
    sides = zip(blank, (before.keys_BSKH, before.values_BSKH), strict=True)
    for side, was in sides:
        n = min(len(side), was.shape[1])
        side[:n] = np.where(before.valid_BS[row, :n, None, None], was[row, :n], 0)
    return Written(
        row,
        bool(old.size),
        after.keys_BSKH[row],
        after.values_BSKH[row],
        slots[~is_new],
        slots[is_new],
        (blank[0], blank[1]),
    )


def _square(subject: Any) -> None:
    """Refuse a subject whose keys and values cannot lie in each other's place.

    Raises:
        CrosscheckError: Their shapes differ.
    """
    kv = subject.kv(subject.init(1, 1), 0)
    if kv.keys_BSKH.shape != kv.values_BSKH.shape:
        raise CrosscheckError(
            f"plant: keys are {kv.keys_BSKH.shape}, values {kv.values_BSKH.shape}, and cannot "
            "be stored in each other's place."
        )


@fault(
    name="append.stale",
    needs=NEEDS,
    kinds="E",
    shows="write",
    advice="Look at whether the arrays that the write returns are the ones that are kept.",
)
def append_stale(subject: Any) -> Planted:
    """Steps after the first raise the length and leave the slots as they were."""

    def write(w: Written) -> None:
        if w.later:
            for side, was in zip(w.sides, w.before, strict=True):
                side[w.new] = was[w.new]

    return Storing(subject, write)


@fault(
    name="append.stale.values",
    needs=NEEDS,
    kinds="E",
    shows="write",
    advice="Look at whether keys and values are both written.",
)
def append_stale_values(subject: Any) -> Planted:
    """Steps after the first store their keys and leave the values as they were."""

    def write(w: Written) -> None:
        if w.later:
            w.values_SKH[w.new] = w.before[1][w.new]

    return Storing(subject, write)


@fault(
    name="append.swap_kv",
    needs=NEEDS,
    kinds="E",
    shows="write",
    advice="Look at the order of keys and values where the cache is written and returned.",
)
def append_swap_kv(subject: Any) -> Planted:
    """Steps after the first store keys as values and values as keys."""
    _square(subject)

    def write(w: Written) -> None:
        if w.later:
            keys = w.keys_SKH[w.new].copy()
            w.keys_SKH[w.new] = w.values_SKH[w.new]
            w.values_SKH[w.new] = keys

    return Storing(subject, write)


def narrowed(x: NDArray, bits: int) -> NDArray:
    """Return the numbers with so many bits of mantissa, ties to even."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent).astype(x.dtype)


@fault(
    name="append.dtype",
    needs=NEEDS,
    kinds="EN",
    shows="write",
    advice="Look for a cache made with its own dtype, or a cast before the write.",
)
def append_dtype(subject: Any) -> Planted:
    """What is stored was rounded to bfloat16."""

    def write(w: Written) -> None:
        for side in w.sides:
            side[w.new] = narrowed(side[w.new], 8)

    return Storing(subject, write)


@fault(
    name="append.dtype.float16",
    needs=NEEDS,
    kinds="EN",
    shows="write",
    advice="Look for a cache made with its own dtype, or a cast before the write.",
)
def append_dtype_float16(subject: Any) -> Planted:
    """What is stored was rounded to float16."""

    def write(w: Written) -> None:
        for side in w.sides:
            side[w.new] = narrowed(side[w.new], 11)

    return Storing(subject, write)


def _has_heads(info: SubjectInfo) -> str:
    return "one head of keys has no other to be mixed with" if info.kv_heads == 1 else ""


@fault(
    name="concat.axis",
    needs=NEEDS | {"chunk"},
    kinds="J",
    shows="write",
    applies=_has_heads,
    advice="Look for a reshape or view where heads and tokens should be transposed.",
)
def concat_axis(subject: Any) -> Planted:
    """A chunk is stored with its tokens and heads read in the wrong order."""

    def write(w: Written) -> None:
        for side in w.sides:
            chunk_TKH = side[w.new]
            t, k, h = chunk_TKH.shape
            side[w.new] = chunk_TKH.reshape(k, t, h).swapaxes(0, 1)

    return Storing(subject, write)


class Overlapping(Planted):
    """Hides the token before every step from that step and from all later ones."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step without the tokens that were written over."""
        lost, columns, options = held.memo.get("lost", ()), call.columns, dict(call.options)
        if columns is None or options.get("visible") is not None:
            return self.pass_on(held, call.ids_BT, **options)
        lost = (*(column for column in lost if column < columns - 1), columns - 1)[-columns:]
        if columns:
            query_T1 = columns + np.arange(call.width)[:, None]
            visible_TS = np.arange(columns + call.width) <= query_T1
            visible_TS[:, list(lost)] = False
            options["visible"] = np.broadcast_to(
                visible_TS, (len(call.ids_BT), *visible_TS.shape)
            ).copy()
        logits, held = self.pass_on(held, call.ids_BT, **options)
        return logits, held.remember(lost=lost if columns else ())


@fault(
    name="write.overlap",
    needs={"cache"},
    ways=({"kv", "kv_write"}, {"visible"}),
    kinds="E",
    shows="overwrite",
    advice="Look at the slot at which a step begins to write: the length before it, not one less.",
)
def write_overlap(subject: Any) -> Planted:
    """Steps after the first are written one slot too early, over the last token."""

    def write(w: Written) -> None:
        if w.later and w.old.size:
            for side in w.sides:
                tokens = side[w.new].copy()
                side[np.append(w.old[-1:], w.new[:-1])] = tokens
                side[w.new[-1:]] = 0

    return Storing(subject, write) if _stores(subject) else Overlapping(subject)


def _stores(subject: Any) -> bool:
    return Planted(subject).has("kv", "kv_write")


@fault(
    name="page.alias",
    needs=NEEDS,
    kinds="G",
    shows="overwrite",
    advice="Look for two entries of a page table, or of an index, that name the same page.",
)
def page_alias(subject: Any) -> Planted:
    """Two pages share one place: what is written to the second appears in the first."""

    def write(w: Written) -> None:
        slots = np.append(w.old, w.new)
        for place in range(max(len(w.old), 4), len(slots)):
            for side in w.sides:
                side[slots[place - 4]] = side[slots[place]]

    return Storing(subject, write)


@fault(
    name="rows.leak",
    needs=NEEDS,
    kinds="J",
    shows="write",
    advice="Look for a buffer or index that rows of a batch share.",
)
def rows_leak(subject: Any) -> Planted:
    """A row's newest key and value are those of the row before it."""
    return Leaking(subject)


class Leaking(Storing):
    """Stores the newest entry of every row as that of the row before it."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject, self.leak)
        self.last: tuple[NDArray, NDArray] | None = None

    def leak(self, w: Written) -> None:
        """Replace the newest entry by the one of the row written before."""
        if not w.row:
            self.last = None
        own = w.keys_SKH[w.new[-1:]].copy(), w.values_SKH[w.new[-1:]].copy()
        if self.last is not None and w.new.size and self.last[0].size:
            w.keys_SKH[w.new[-1:]], w.values_SKH[w.new[-1:]] = self.last
        self.last = own


def _rolled(w: Written) -> None:
    for side in w.sides:
        side[w.new] = np.roll(side[w.new], 1, axis=1)


class MainOnly(Storing):
    """Has its fault in the subject itself; its variants are right."""

    def variant(self, name: str) -> Any:
        """Return the right variant."""
        return self.inner.variant(name)


@fault(
    name="gqa.tile",
    needs=NEEDS | {"gqa"},
    kinds="MJ",
    shows="write",
    applies=_has_heads,
    advice="Look for tile where key/value heads must be repeated, and for the order of groups.",
)
def gqa_tile(subject: Any) -> Planted:
    """Groups of queries read the key/value heads of another group."""
    return MainOnly(subject, _rolled)


@fault(
    name="layout.transposed",
    needs=NEEDS | {"layouts", "chunk"},
    kinds="J",
    shows="write",
    applies=_has_heads,
    advice="Look for a transpose that one layout needs and another does not.",
)
def layout_transposed(subject: Any) -> Planted:
    """One layout stores chunks with tokens and heads in the wrong order."""

    def write(w: Written) -> None:
        for side in w.sides:
            t, k, h = (chunk_TKH := side[w.new]).shape
            side[w.new] = chunk_TKH.reshape(k, t, h).swapaxes(0, 1)

    return MainOnly(subject, write)


@fault(
    name="mla.scale",
    needs=NEEDS | {"mla"},
    kinds="L",
    shows="write",
    advice="Look for the squared factor of scaled rotary positions in the softmax scale.",
)
def mla_scale(subject: Any) -> Planted:
    """The absorbed form scales its scores by another factor than the expanded one."""

    def write(w: Written) -> None:
        w.keys_SKH[w.new] *= 1.26

    return MainOnly(subject, write)


def with_layers(kv: KV, keys_BSKH: NDArray, values_BSKH: NDArray) -> KV:
    """Return the entries with other keys and values."""
    return replace(kv, keys_BSKH=keys_BSKH, values_BSKH=values_BSKH)
