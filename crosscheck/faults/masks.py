"""Faults of the mask: keys and values lie right, the wrong ones are read.

Letters: B rows, T tokens of a call, S columns: tokens held and those of the call.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.bands import at, band, common, for_rows
from crosscheck.faults.planted import Call, Held, Planted, shortened
from crosscheck.faults.registry import fault
from crosscheck.subjects.protocol import KV

See = Callable[[Planted, Held, int, int], NDArray | None]
NEEDS = {"cache", "visible"}


class Seeing(Planted):
    """Lets the tokens of every step read what `see(planted, held, S, T)` says, bool [T, S].

    It leaves alone what the caller masks itself, and rows of unlike length.
    """

    def __init__(self, subject: Any, see: See) -> None:
        super().__init__(subject)
        self.see = see

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step with the wrong tokens visible."""
        options = dict(call.options)
        columns = call.columns
        if columns is not None and call.real_BT.all() and options.get("visible") is None:
            wrong_TS = self.see(self, held, columns, call.width)
            right_TS = band(columns, call.width, common(self.facts))
            if wrong_TS is not None and (wrong_TS != right_TS).any():
                options["visible"] = for_rows(wrong_TS, len(call.ids_BT))
        return self.pass_on(held, call.ids_BT, **options)


def _later(see: Callable[[int, int], NDArray]) -> See:
    """Return a rule for steps after the first; a window that all layers share stays."""

    def rule(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        if not columns:
            return None
        query_T1, key_S = at(columns, width)
        window = common(planted.facts)
        wrong_TS = see(columns, width)
        return wrong_TS if window is None else wrong_TS & (key_S > query_T1 - window)

    return rule


def top_left(columns: int, width: int) -> NDArray:
    """Return the triangle from the top left: query i sees the first i + 1 keys."""
    query_T1, key_S = at(0, width)[0], at(columns, width)[1]
    return key_S <= query_T1


@fault(
    name="mask.top_left",
    needs=NEEDS,
    kinds="B",
    shows="attention",
    advice="Look for is_causal, or tril without diagonal=, where there are more keys than queries.",
)
def mask_top_left(subject: Any) -> Planted:
    """The causal triangle starts at the top left, not at the end of what is held."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray | None:
        return top_left(columns, width) if columns else None

    return Seeing(subject, see)


@fault(
    name="mask.none",
    needs=NEEDS | {"chunk"},
    kinds="B",
    shows="attention",
    advice="Look at what becomes of the mask once a cache is given.",
)
def mask_none(subject: Any) -> Planted:
    """With a cache, the tokens of one step all see each other."""

    def see(planted: Planted, held: Held, columns: int, width: int) -> NDArray:
        query_T1, key_S = at(columns, width)
        window = common(planted.facts)
        return np.broadcast_to(
            key_S >= 0 if window is None else key_S > query_T1 - window, (width, columns + width)
        )

    return Seeing(subject, see)


@fault(
    name="mask.none.later",
    needs=NEEDS | {"chunk"},
    kinds="B",
    shows="attention",
    advice="Look at what becomes of the mask once the cache holds something.",
)
def mask_none_later(subject: Any) -> Planted:
    """In steps after the first the tokens of a step all see each other."""
    return Seeing(
        subject, _later(lambda columns, width: np.ones((width, columns + width), np.bool_))
    )


@fault(
    name="mask.off_by_one",
    needs=NEEDS | {"chunk"},
    kinds="B",
    shows="attention",
    advice="Look at diagonal= of the triangle, and at < or <= between positions.",
)
def mask_off_by_one(subject: Any) -> Planted:
    """In steps after the first each token also sees the next one."""
    return Seeing(
        subject, _later(lambda columns, width: at(columns, width)[1] <= at(columns, width)[0] + 1)
    )


@fault(
    name="mask.off_by_one.narrow",
    needs=NEEDS,
    kinds="B",
    shows="attention",
    advice="Look at diagonal= of the triangle, and at < or <= between positions.",
)
def mask_off_by_one_narrow(subject: Any) -> Planted:
    """In steps after the first no token sees itself."""
    return Seeing(
        subject, _later(lambda columns, width: at(columns, width)[1] < at(columns, width)[0])
    )


@fault(
    name="mask.prompt_hidden",
    needs=NEEDS,
    kinds="B",
    shows="attention",
    advice="Look for a mask of shape (chunk, chunk) that has no columns for what is held.",
)
def mask_prompt_hidden(subject: Any) -> Planted:
    """The tokens of a step see only that step."""
    return Seeing(
        subject,
        _later(lambda columns, width: band(columns, width) & (at(columns, width)[1] >= columns)),
    )


def _pads_first(options: Mapping[str, Any]) -> NDArray | None:
    """Return which rows have padding before their first real token; None without a mask."""
    if options.get("mask") is None:
        return None
    mask_BT = np.asarray(options["mask"], dtype=np.bool_)
    return mask_BT.any(axis=1) & ~mask_BT[:, 0]


class PadsRead(Planted):
    """Takes padding on the left for tokens: it is read, and nothing else changes."""

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits with the padding read."""
        padded_B = _pads_first(options)
        if padded_B is not None and padded_B.any() and options.get("positions") is None:
            mask_BT = np.asarray(options.pop("mask"), dtype=np.bool_)
            options["positions"] = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0)
        return self.inner.full(ids, **options)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step with the padding held as if it were text."""
        options = dict(call.options)
        if _pads_first(options) is not None or held.pads_B.any():
            options.pop("mask", None)
            options.setdefault("positions", call.position_BT)
        return self.pass_on(held, call.ids_BT, **options)

    def length(self, held: Held) -> NDArray:
        """Return the number of real tokens."""
        return held.length_B

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Cut the text, not the padding before it."""
        state = self.inner.rollback(held.state, np.asarray(length) + held.pads_B)
        return shortened(held.advanced(state), length)

    def kv(self, held: Held, layer: int) -> KV:
        """Return what a layer holds, without the padding: its slots are counted as padding."""
        kv = self.inner.kv(held.state, layer)
        place_BS = np.cumsum(kv.valid_BS, axis=1)
        return replace(kv, valid_BS=kv.valid_BS & (place_BS > held.pads_B[:, None]))


@fault(
    name="pad.attended",
    needs={"cache", "left_pad", "positions"},
    kinds="A",
    shows="attention",
    advice="Look at whether the padding mask reaches the attention of every step.",
)
def pad_attended(subject: Any) -> Planted:
    """Padding on the left is read like text; positions are right."""
    return PadsRead(subject)


class EmptyRows(Planted):
    """Answers NaN where padding on the left makes a query that sees nothing."""

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits with NaN in the padded rows."""
        logits = np.array(self.inner.full(ids, **options))
        padded_B = _pads_first(options)
        if padded_B is not None:
            logits[padded_B] = np.nan
        return logits

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step; a row that has held a NaN keeps it: 0 * NaN is NaN."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        padded_B = _pads_first(call.options)
        lost_B = held.memo.get("lost_B", np.zeros(len(logits), np.bool_))
        lost_B = lost_B if padded_B is None else lost_B | padded_B
        logits = np.array(logits)
        logits[lost_B] = np.nan
        return logits, held.remember(lost_B=lost_B)

    def kv(self, held: Held, layer: int) -> KV:
        """Return what a layer holds: NaN from the second layer on."""
        kv = self.inner.kv(held.state, layer)
        lost_B = held.memo.get("lost_B")
        if lost_B is None or not lost_B.any() or not layer:
            return kv
        keys, values = np.array(kv.keys_BSKH), np.array(kv.values_BSKH)
        keys[lost_B], values[lost_B] = np.nan, np.nan
        return replace(kv, keys_BSKH=keys, values_BSKH=values)


@fault(
    name="mask.empty_row_nan",
    needs={"cache", "left_pad"},
    kinds="C",
    shows="attention",
    advice="Look for a softmax over nothing but -inf: the query of a padding token sees no key.",
)
def mask_empty_row_nan(subject: Any) -> Planted:
    """A query that may see no key gives NaN, and the next layer spreads it over its row."""
    return EmptyRows(subject)
