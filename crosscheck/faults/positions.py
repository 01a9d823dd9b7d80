"""Faults of positions: the tokens are right, the places at which they are computed are not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.bands import has_window, ring_size
from crosscheck.faults.planted import Call, Held, Planted, shortened
from crosscheck.faults.registry import fault
from crosscheck.subjects.protocol import KV

Place = Callable[[Planted, Held, Call], NDArray]
NEEDS = {"cache", "positions"}


class Positioned(Planted):
    """Computes the tokens of every step at the positions that `place` gives."""

    def __init__(self, subject: Any, place: Place) -> None:
        super().__init__(subject)
        self.place = place

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step at the wrong positions, unless the caller gives positions."""
        wrong_BT = within(self.place(self, held, call), self.facts.max_positions)
        options = dict(call.options)
        moved = (wrong_BT != call.position_BT) & call.real_BT
        if options.get("positions") is None and moved.any():
            options["positions"] = wrong_BT
        return self.pass_on(held, call.ids_BT, **options)


def within(position_BT: NDArray, max_positions: int | None) -> NDArray:
    """Return the positions inside what the model has: the fault is not to raise."""
    top = None if max_positions is None else max_positions - 1
    return np.clip(position_BT, 0, top).astype(np.int64)


def _from_zero(call: Call) -> NDArray:
    return call.position_BT - call.length_B[:, None]


@fault(
    name="pos.reset",
    needs=NEEDS,
    kinds="A",
    shows="positions",
    advice="Look for arange(T) without the cached length where position ids are made.",
)
def pos_reset(subject: Any) -> Planted:
    """Every step counts positions from 0 again."""
    return Positioned(subject, lambda planted, held, call: _from_zero(call))


class QueriesReset(Positioned):
    """Computes every step at positions from 0, and stores the first layer's keys rightly."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject, lambda planted, held, call: _from_zero(call))

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step at the wrong positions; the first layer's keys are those of a right step."""
        if not call.later or call.options.get("positions") is not None:
            return self.pass_on(held, call.ids_BT, **call.options)
        apart = held.state if self.has("persistent") else self.inner.fork(held.state)
        _, right = self.inner.step(apart, call.ids_BT, **call.options)
        logits, held = super().forward(held, call)
        wrong, keys = self.inner.kv(held.state, 0), self.inner.kv(right, 0)
        kv = replace(wrong, keys_BSKH=_laid(keys, wrong))
        return logits, held.advanced(self.inner.with_kv(held.state, 0, kv))


def _laid(kv: KV, like: KV) -> NDArray:
    """Return the keys in as many slots as another state has.

    That one has left a ring and holds each token in the slot of its number.
    """
    if kv.keys_BSKH.shape == like.keys_BSKH.shape:
        return kv.keys_BSKH
    laid_BSKH = np.array(like.keys_BSKH)
    row_P, slot_P = np.nonzero(kv.valid_BS)
    laid_BSKH[row_P, kv.position_BS[row_P, slot_P]] = kv.keys_BSKH[row_P, slot_P]
    return laid_BSKH


@fault(
    name="pos.reset.queries",
    needs=NEEDS | {"rope", "kv", "kv_write"},
    ways=({"persistent"}, {"fork"}),
    kinds="A",
    shows="attention",
    advice="Look for a rotation of the queries that is not told where the chunk starts.",
)
def pos_reset_queries(subject: Any) -> Planted:
    """Every step rotates its queries from position 0; stored keys are right."""
    return QueriesReset(subject)


@fault(
    name="pos.off_by_one",
    needs=NEEDS,
    kinds="A",
    shows="positions",
    advice="Look at whether the position is taken before or after the length is raised.",
)
def pos_off_by_one(subject: Any) -> Planted:
    """Every step after the first stands one position too far."""
    return Positioned(subject, lambda planted, held, call: call.position_BT + int(call.later))


@fault(
    name="pos.off_by_one.early",
    needs=NEEDS,
    kinds="A",
    shows="positions",
    advice="Look at whether the position is taken before or after the length is raised.",
)
def pos_off_by_one_early(subject: Any) -> Planted:
    """Every step after the first stands one position too early."""
    return Positioned(subject, lambda planted, held, call: call.position_BT - int(call.later))


@fault(
    name="pos.single_reset",
    needs=NEEDS,
    kinds="A",
    shows="positions",
    advice="Look for a branch on a length of 1 around the position embedding or rotation.",
)
def pos_single_reset(subject: Any) -> Planted:
    """A step of a single token is computed at position 0."""
    return Positioned(
        subject,
        lambda planted, held, call: _from_zero(call) if call.width == 1 else call.position_BT,
    )


@fault(
    name="pos.pad_shift",
    needs=NEEDS | {"left_pad"},
    kinds="A",
    shows="positions",
    advice="Look for a cached length that counts padding where positions are made.",
)
def pos_pad_shift(subject: Any) -> Planted:
    """Steps after a padded one count the padding on the left in their positions."""
    return Positioned(subject, _past_the_pads)


def _past_the_pads(planted: Planted, held: Held, call: Call) -> NDArray:
    return call.position_BT + np.where(call.length_B > 0, held.pads_B, 0)[:, None]


@fault(
    name="pos.shared_length",
    needs=NEEDS,
    ways=({"count"}, {"left_pad"}),
    kinds="A",
    shows="positions",
    advice="Look for one length, counter or cache position that all rows of a batch share.",
)
def pos_shared_length(subject: Any) -> Planted:
    """All rows continue at the position of the longest one."""
    return Positioned(
        subject,
        lambda planted, held, call: _from_zero(call) + int(call.length_B.max()),
    )


@fault(
    name="rope.twice",
    needs=NEEDS | {"rope"},
    kinds="K",
    shows="positions",
    advice="Look for a second rotation of keys or queries on the cached path.",
)
def rope_twice(subject: Any) -> Planted:
    """Every step after the first rotates queries and keys twice."""
    return Positioned(
        subject, lambda planted, held, call: call.position_BT * (2 if call.later else 1)
    )


@fault(
    name="rope.dynamic",
    needs=NEEDS | {"rope"},
    kinds="K",
    shows="positions",
    advice="Look for a rotary base or factor that follows the current length.",
)
def rope_dynamic(subject: Any) -> Planted:
    """Scaling of the rotation depends on the length at that step; older keys keep another one."""
    return Positioned(
        subject, lambda planted, held, call: call.position_BT // (2 if call.later else 1)
    )


class RingLength(Positioned):
    """Reports no more tokens than the window of its first layer holds."""

    def length(self, held: Held) -> NDArray:
        """Return the number of slots of the ring that are filled."""
        return np.minimum(self.inner.length(held.state), ring_size(self.facts))


@fault(
    name="length.from_ring",
    needs=NEEDS,
    kinds="D",
    shows="bookkeeping",
    applies=has_window,
    advice="Look at which layer answers for the length: one with a window holds only its window.",
)
def length_from_ring(subject: Any) -> Planted:
    """The length is asked of a layer that keeps only its window, and positions follow from it."""
    return RingLength(
        subject,
        lambda planted, held, call: (
            _from_zero(call) + np.minimum(call.length_B, ring_size(planted.facts))[:, None]
        ),
    )


@fault(
    name="window.slot_position",
    needs=NEEDS,
    kinds="D",
    shows="positions",
    applies=has_window,
    advice="Look for the slot of a ring (position modulo window) used as a position.",
)
def window_slot_position(subject: Any) -> Planted:
    """After the ring has wrapped, the slot is taken for the position."""
    return Positioned(
        subject,
        lambda planted, held, call: (
            call.position_BT % ring_size(planted.facts) if call.later else call.position_BT
        ),
    )


class Unrewound(Positioned):
    """Forgets to turn the positions back with the cache."""

    def rollback(self, held: Held, length: NDArray) -> Held:
        """Cut the cache and keep counting where the text was."""
        dropped_B = held.length_B - np.asarray(length)
        back = shortened(held.remember(ahead_B=held.memo.get("ahead_B", 0) + dropped_B), length)
        return back.advanced(self.inner.rollback(held.state, length))


@fault(
    name="rollback.positions",
    needs=NEEDS | {"rollback"},
    kinds="F",
    shows="positions",
    advice="Look for a position counter beside the cache that a rollback leaves where it was.",
)
def rollback_positions(subject: Any) -> Planted:
    """A rollback cuts the cache, and positions go on from the old length."""
    return Unrewound(
        subject,
        lambda planted, held, call: (
            call.position_BT + np.reshape(held.memo.get("ahead_B", 0), (-1, 1))
        ),
    )
