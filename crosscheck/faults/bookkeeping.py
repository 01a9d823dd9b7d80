"""Faults of bookkeeping: how many tokens are held, how often they were fed, what is carried on."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.faults.bands import band, common, for_rows
from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.positions import within
from crosscheck.faults.registry import fault
from crosscheck.relations.drive import ROOM


class Twice(Planted):
    """Feeds what it is fed more than once, as long as there is room."""

    def room(self, capacity: int | None) -> int | None:
        """Return room for the tokens that come twice."""
        return roomy(self, capacity)

    def extra(self, held: Held, call: Call, ids_BN: NDArray) -> Held:
        """Return the state with more tokens fed that the caller knows nothing of."""
        if not ids_BN.shape[1] or not fits(self, held, ids_BN.shape[1] + call.width):
            return held
        _, state = self.inner.step(held.state, ids_BN)
        columns = None if held.columns is None else held.columns + ids_BN.shape[1]
        return replace(held, state=state, columns=columns)


def roomy(planted: Planted, capacity: int | None) -> int | None:
    """Return four times the room, within the model's positions.

    A small one becomes the one that others ask for too, so that a compiled subject compiles little.
    """
    if capacity is None:
        return None
    wanted = ROOM if capacity <= ROOM else 4 * capacity
    return min(wanted, max(capacity, planted.facts.max_positions or wanted))


def fits(planted: Planted, held: Held, more: int) -> bool:
    """Return whether so many tokens more find room and positions."""
    wanted = int(np.max(planted.inner.length(held.state))) + more
    room = planted.room(held.capacity)
    limit = planted.facts.max_positions
    return (room is None or wanted <= room) and (limit is None or wanted <= limit)


class Doubled(Twice):
    """Appends the tokens of every step twice."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Answer, and append once more."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        if call.real_BT.all():
            held = self.extra(held, replace(call, ids_BT=call.ids_BT[:, :0]), call.ids_BT)
        return logits, held


class Copied(Twice):
    """Holds every key and value twice, and counts its positions with or without the copies."""

    def __init__(self, subject: Any, *, counted: bool) -> None:
        super().__init__(subject)
        self.counted = counted

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Answer, and feed the same tokens at the same positions without a view of themselves."""
        copies, columns, width = held.memo.get("copies", 0), held.columns, call.width
        position_BT = call.position_BT + (copies if self.counted else 0)
        if columns is None or not call.real_BT.all() or call.options.get("visible") is not None:
            return self.pass_on(held, call.ids_BT, **call.options)
        options = {"positions": within(position_BT, self.facts.max_positions), **call.options}
        logits, held = self.pass_on(held, call.ids_BT, **options)
        if not fits(self, held, width):
            return logits, held
        visible_TS = band(columns + width, width)
        visible_TS[:, columns : columns + width] = False
        options["visible"] = for_rows(visible_TS, len(call.ids_BT))
        _, held = self.pass_on(held, call.ids_BT, **options)
        return logits, replace(held, columns=columns + width).remember(copies=copies + width)


@fault(
    name="append.double",
    needs={"cache", "chunk"},
    kinds="E",
    shows="bookkeeping",
    advice="Look for a cache that both the model and its caller append to.",
)
def append_double(subject: Any) -> Planted:
    """Every step is appended twice."""
    exact = Planted(subject).has("positions", "visible")
    return Copied(subject, counted=False) if exact else Doubled(subject)


@fault(
    name="append.double.counted",
    needs={"cache", "chunk", "positions", "visible"},
    kinds="E",
    shows="bookkeeping",
    advice="Look for a cache that both the model and its caller append to.",
)
def append_double_counted(subject: Any) -> Planted:
    """Every step is appended twice, and positions follow the doubled length."""
    return Copied(subject, counted=True)


class Reprocessed(Twice):
    """Feeds the whole text again before the new tokens of a step."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Feed what was fed, then the new tokens."""
        if len({*call.length_B.tolist()}) == 1 and call.real_BT.all():
            held = self.extra(held, call, np.array(held.texts, np.int32))
        return self.pass_on(held, call.ids_BT, **call.options)


@fault(
    name="prompt.reprocessed",
    needs={"cache", "chunk"},
    kinds="E",
    shows="bookkeeping",
    advice="Look at what is fed beside a cache: the new tokens, not the text so far.",
)
def prompt_reprocessed(subject: Any) -> Planted:
    """Every step feeds the whole text again on top of what is held."""
    return Reprocessed(subject)


class Forgetting(Planted):
    """Loses what a step leaves for the next beside keys and values."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step; the first token does not see its predecessor."""
        columns, options = call.columns, dict(call.options)
        if columns and options.get("visible") is None:
            visible_TS = band(columns, call.width, common(self.facts))
            visible_TS[0, columns - 1] = False
            options["visible"] = for_rows(visible_TS, len(call.ids_BT))
        return self.pass_on(held, call.ids_BT, **options)


@fault(
    name="state.dropped",
    needs={"cache", "visible"},
    kinds="E",
    shows="attention",
    advice="Look for what a token takes from earlier ones (shift, convolution, recurrence, sum).",
)
def state_dropped(subject: Any) -> Planted:
    """The first token of a step gets nothing from the one before it."""
    return Forgetting(subject)


class CountIgnored(Planted):
    """Takes padding on the right for tokens."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step with every token real."""
        options = dict(call.options)
        options.pop("count", None)
        if options.get("mask") is not None:
            mask_BT = np.asarray(options["mask"], dtype=np.bool_)
            options["mask"] = np.maximum.accumulate(mask_BT, axis=1)
        return self.pass_on(held, call.ids_BT, **options)

    def room(self, capacity: int | None) -> int | None:
        """Return room for the padding."""
        return roomy(self, capacity)


@fault(
    name="count.ignored",
    needs={"cache", "count"},
    kinds="AO",
    shows="bookkeeping",
    advice="Look at whether rows that have ended, or are shorter, still append.",
)
def count_ignored(subject: Any) -> Planted:
    """Padding on the right is held like text, also that of rows that have ended."""
    return CountIgnored(subject)


class Stale(Planted):
    """Keeps the last token of a request in the model, where the next request finds it."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.left: dict[int, NDArray] = {}

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Held:
        """Return a state that is empty only the first time."""
        left = self.left.get(batch)
        room = capacity
        if left is not None and capacity is not None and capacity < ROOM:
            room = min(capacity + 1, self.facts.max_positions or capacity + 1)
        held = super().init(batch, room, **options)
        if left is None:
            return held
        _, state = self.inner.step(held.state, left)
        return replace(held, state=state, columns=None, capacity=capacity)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step, and leave something behind."""
        self.left[len(call.ids_BT)] = np.array(call.ids_BT[:, -1:])
        return self.pass_on(held, call.ids_BT, **call.options)


@fault(
    name="model.stale",
    needs={"cache"},
    kinds="E",
    shows="run",
    advice="Look for a cache, table or counter that lives in the model and is not reset.",
)
def model_stale(subject: Any) -> Planted:
    """A second request finds in the model what the first has left."""
    return Stale(subject)


class Recomputing(Planted):
    """Runs the whole text again at every step, and throws the result away."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step rightly, after needless work."""
        if call.later and call.real_BT.all() and len({*call.length_B.tolist()}) == 1:
            self.inner.full(np.array(held.texts, np.int32), **_read_besides(held))
        return self.pass_on(held, call.ids_BT, **call.options)


def _read_besides(held: Held) -> dict[str, Any]:
    """Return what `full` is owed besides its ids; whose row it is does not matter to the work."""
    encoder = held.options.get("encoder")
    return {} if encoder is None else {"encoder": np.repeat(encoder[:1], len(held.texts), axis=0)}


@fault(
    name="work.recomputed",
    needs={"cache"},
    kinds="E",
    shows="output",
    advice="Look for a forward over the whole text beside the cached one.",
)
def work_recomputed(subject: Any) -> Planted:
    """Every step computes the earlier tokens again; its answers are right.

    Raises:
        CrosscheckError: The subject does not tell how many tokens it has run.
    """
    if not hasattr(subject, "forwarded_positions"):
        raise CrosscheckError("plant: the subject has no forwarded_positions to show it.")
    return Recomputing(subject)
