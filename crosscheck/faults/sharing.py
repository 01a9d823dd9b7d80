"""Faults of states that share what they should own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from crosscheck.faults.bookkeeping import roomy
from crosscheck.faults.planted import Held, Planted
from crosscheck.faults.registry import fault
from crosscheck.subjects.protocol import KV


@dataclass
class Cell:
    """A state that several handles share."""

    inside: Held
    shared: bool


class Shared(Planted):
    """Hands out states that are changed in place: all of them, or those that were forked."""

    def __init__(self, subject: Any, *, always: bool) -> None:
        super().__init__(subject)
        self.always = always

    def room(self, capacity: int | None) -> int | None:
        """Return room for the steps of all handles."""
        return roomy(self, capacity)

    def init(self, batch: int, capacity: int | None = None, **options: Any) -> Cell:
        """Return an empty state."""
        return Cell(super().init(batch, capacity, **options), self.always)

    def step(self, held: Any, ids: NDArray, **options: Any) -> tuple[NDArray, Cell]:
        """Step, in place where the state is shared."""
        logits, after = super().step(held.inside, ids, **options)
        return logits, self.put(held, after)

    def put(self, held: Any, after: Held) -> Cell:
        """Return the handle of the new contents."""
        if not held.shared:
            return Cell(after, False)
        held.inside = after
        return held

    def fork(self, held: Any) -> Cell:
        """Return the same handle."""
        held.shared = True
        return held

    def rollback(self, held: Any, length: NDArray) -> Cell:
        """Take tokens back."""
        return self.put(held, super().rollback(held.inside, length))

    def gather(self, held: Any, rows: Sequence[int] | NDArray) -> Cell:
        """Return other rows, in a handle of their own."""
        return Cell(super().gather(held.inside, rows), self.always)

    def grow(self, held: Any, capacity: int) -> Cell:
        """Return more room."""
        return self.put(held, super().grow(held.inside, capacity))

    def permute_pages(self, held: Any, seed: int) -> Cell:
        """Move the pages."""
        return self.put(held, super().permute_pages(held.inside, seed))

    def length(self, held: Any) -> NDArray:
        """Return how many tokens each row holds."""
        return super().length(held.inside)

    def kv(self, held: Any, layer: int) -> KV:
        """Return what one layer holds."""
        return super().kv(held.inside, layer)

    def with_kv(self, held: Any, layer: int, kv: KV) -> Cell:
        """Replace what one layer holds."""
        return self.put(held, super().with_kv(held.inside, layer, kv))


@fault(
    name="fork.alias",
    needs={"cache", "fork"},
    kinds="EG",
    shows="overwrite",
    advice="Look at whether a fork copies its buffers, or only the object around them.",
)
def fork_alias(subject: Any) -> Planted:
    """A fork and its origin share one state: a step on either moves both."""
    return Shared(subject, always=False)


@fault(
    name="state.in_place",
    needs={"cache", "persistent"},
    kinds="EH",
    shows="overwrite",
    advice="Look for buffers that are written in place or donated while an old handle lives on.",
)
def state_in_place(subject: Any) -> Planted:
    """A step changes the state that it was given."""
    return Shared(subject, always=True)
