"""Faults of the write: what is stored is not what the step computed.

Letters: T new tokens, K key/value heads, H head width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.faults.bands import band, common, for_rows
from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.registry import fault
from crosscheck.faults.storing import NEEDS, Storing, Written, has_heads
from crosscheck.relations.drive import encoder_of, start

# Small enough to repeat within the smallest ring.
PAGE = 2


def _square(subject: Any) -> None:
    """Refuse a subject whose keys and values cannot lie in each other's place.

    Raises:
        CrosscheckError: Their shapes differ.
    """
    kv = subject.kv(start(subject, 1, 1, encoder=encoder_of(subject, 1, 0)), 0)
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


@fault(
    name="concat.axis",
    needs=NEEDS | {"chunk"},
    kinds="J",
    shows="write",
    applies=has_heads,
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
        if columns:
            lost = (*(column for column in lost if column < columns - 1), columns - 1)
            visible_TS = band(columns, call.width, common(self.facts))
            visible_TS[:, list(lost)] = False
            options["visible"] = for_rows(visible_TS, len(call.ids_BT))
        logits, held = self.pass_on(held, call.ids_BT, **options)
        return logits, held.remember(lost=lost)


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
        for place in range(max(len(w.old), PAGE), len(slots)):
            for side in w.sides:
                side[slots[place - PAGE]] = side[slots[place]]

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
