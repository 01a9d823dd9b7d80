"""Faults of pages, and of stores that share prefixes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.planted import Held, Planted
from crosscheck.faults.registry import fault
from crosscheck.faults.storing import copied

PAGE = 4


class StaleTable(Planted):
    """Moves its pages and goes on reading by the old table."""

    def permute_pages(self, held: Held, seed: int) -> Held:
        """Exchange the contents of the first two pages of every row."""
        held = super().permute_pages(held, seed)
        state = held.state
        for layer in range(self.facts.num_layers):
            kv = copied(self.inner.kv(state, layer))
            for row in range(len(held.texts)):
                slots = np.flatnonzero(kv.valid_BS[row])
                page = min(PAGE, len(slots) // 2)
                moved = np.concatenate([slots[page : 2 * page], slots[:page]])
                for side in (kv.keys_BSKH, kv.values_BSKH):
                    side[row, slots[: 2 * page]] = side[row, moved]
            state = self.inner.with_kv(state, layer, kv)
        return held.advanced(state)


@fault(
    name="page.table",
    needs={"cache", "paged", "kv", "kv_write"},
    kinds="G",
    shows="overwrite",
    advice="Look for a page table, or a copy of it on the device, that is not renewed.",
)
def page_table(subject: Any) -> Planted:
    """Pages are moved and the table still names their old places."""
    return StaleTable(subject)


class WrongPrefix:
    """A prefix store that serves a text with some tokens of an earlier text in their place."""

    def __init__(self, store: Any, taken: Any) -> None:
        self.store, self.taken = store, taken
        self.texts: list[NDArray] = []

    def step(self, ids: NDArray) -> Any:
        """Return the logits of the texts, and how many tokens were reused."""
        served = np.array(ids)
        for row, text in enumerate(np.asarray(ids)):
            for earlier in self.texts:
                served[row] = self.taken(earlier, text)
        self.texts.extend(np.array(text) for text in ids)
        return self.store.step(served)

    def __getattr__(self, name: str) -> Any:
        if name == "store" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.store, name)


class WrongStore(Planted):
    """Hands out a prefix store that reuses what it must not."""

    def __init__(self, subject: Any, taken: Any) -> None:
        super().__init__(subject)
        self.taken = taken

    def prefix_store(self, *args: Any, **options: Any) -> WrongPrefix:
        """Return the store."""
        return WrongPrefix(self.inner.prefix_store(*args, **options), self.taken)


def agreeing(earlier_T: NDArray, text_T: NDArray) -> int:
    """Return how many tokens two texts have in common."""
    n = min(len(earlier_T), len(text_T))
    differ = np.flatnonzero(earlier_T[:n] != text_T[:n])
    return int(differ[0]) if differ.size else n


@fault(
    name="prefix.off_by_one",
    needs={"prefix"},
    kinds="H",
    shows="overwrite",
    advice="Look at how the common prefix is rounded to whole blocks: down, never up.",
)
def prefix_off_by_one(subject: Any) -> Planted:
    """The block in which two texts part is reused."""

    def taken(earlier_T: NDArray, text_T: NDArray) -> NDArray:
        n = agreeing(earlier_T, text_T)
        end = min(-(-n // PAGE) * PAGE, len(earlier_T), len(text_T) - 1) if n else 0
        return np.concatenate([earlier_T[:end], text_T[end:]])

    return WrongStore(subject, taken)


@fault(
    name="prefix.by_length",
    needs={"prefix"},
    kinds="HP",
    shows="overwrite",
    advice="Look at what names a block: its tokens and all before them, model, adapter and source.",
)
def prefix_by_length(subject: Any) -> Planted:
    """A block is taken for another one whose tokens were never compared."""

    def taken(earlier_T: NDArray, text_T: NDArray) -> NDArray:
        end = min(PAGE, len(earlier_T), len(text_T) - 1)
        return np.concatenate([earlier_T[:end], text_T[end:]])

    return WrongStore(subject, taken)
