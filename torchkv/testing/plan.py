"""Given positions and visibility -> one step's plan: slots to write, slots to read.

Letters: B rows, T new tokens, S slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.spec.errors import CapacityError, ShapeError
from torchkv.testing.inputs import Tokens


@dataclass(frozen=True)
class Plan:
    """One step of B * T tokens.

    Attributes:
        ids_BT: int32.
        real_BT: Which are real.
        slot_BT: int32, where each is written; S for those that are not real.
        position_BT: int32, where each stands in its text; 0 for those that are not real.
        visible_BTS: Which slots each may read.
        is_ruled: Whether a layer's window limits that further.
        written_BS: The slots that the step writes.
        length_B: int32, tokens of each row after the step.
        position_BS: int32, the position of the token in each slot after the step.
    """

    ids_BT: np.ndarray
    real_BT: np.ndarray
    slot_BT: np.ndarray
    position_BT: np.ndarray
    visible_BTS: np.ndarray
    is_ruled: bool
    written_BS: np.ndarray
    length_B: np.ndarray
    position_BS: np.ndarray

    def seen(self, held_BS: np.ndarray, *, window: int | None) -> np.ndarray:
        """Return which slots each token reads in a layer with a window, of those that are held."""
        seen_BTS = self.visible_BTS & (held_BS | self.written_BS)[:, None, :]
        if window is None or not self.is_ruled:
            return seen_BTS
        slot_S = np.arange(held_BS.shape[1])
        return seen_BTS & (slot_S > self.slot_BT[:, :, None] - window)


def plan_step(
    function: str,
    tokens: Tokens,
    length_B: np.ndarray,
    position_BS: np.ndarray,
    *,
    positions: Any = None,
    visible: Any = None,
    max_positions: int,
) -> Plan:
    """Return the plan of a step after tokens at given positions.

    Args:
        function: The caller, for messages.
        tokens: The new ones.
        length_B: int32, tokens that each row holds.
        position_BS: int32, the position of the token in each slot.
        positions: int [B, T], where the new tokens stand; by default the real ones are counted on
            from length_B. It does not change who sees whom.
        visible: bool [B, T, L + T] with L the longest row's length: which of the row's tokens, in
            the order in which they were fed, and then which of this step's each token may read,
            instead of those before it (and within its layer's window).
        max_positions: Of the model.

    Raises:
        ShapeError: positions or visible has another shape or dtype.
        CapacityError: A row has no room, or a position is outside of the model's.
    """
    real_BT, capacity = tokens.real_BT, position_BS.shape[1]
    after_B = (length_B + real_BT.sum(axis=1)).astype(np.int32)
    _check_room(function, length_B, after_B, capacity)
    rank_BT = length_B[:, None] + np.cumsum(real_BT, axis=1) - 1
    slot_BT = np.where(real_BT, rank_BT, capacity).astype(np.int32)
    position_BT = rank_BT if positions is None else _positions(function, positions, real_BT)
    position_BT = np.where(real_BT, position_BT, 0).astype(np.int32)
    _check_positions(function, position_BT, max_positions)
    row_P, token_P = np.nonzero(real_BT)
    written_BS, moved_BS = np.zeros((len(length_B), capacity), np.bool_), position_BS.copy()
    written_BS[row_P, slot_BT[row_P, token_P]] = True
    moved_BS[row_P, slot_BT[row_P, token_P]] = position_BT[row_P, token_P]
    slot_S = np.arange(capacity)
    visible_BTS = slot_S <= np.where(real_BT, rank_BT, -1)[:, :, None]
    if visible is not None:
        visible_BTS = _visible(function, visible, length_B, slot_BT, real_BT, capacity)
    return Plan(
        ids_BT=tokens.ids_BT,
        real_BT=real_BT,
        slot_BT=slot_BT,
        position_BT=position_BT,
        visible_BTS=visible_BTS & (slot_S < after_B[:, None])[:, None, :],
        is_ruled=visible is None,
        written_BS=written_BS,
        length_B=after_B,
        position_BS=moved_BS,
    )


def _positions(function: str, positions: Any, real_BT: np.ndarray) -> np.ndarray:
    position_BT = np.asarray(positions)
    if position_BT.shape != real_BT.shape or position_BT.dtype.kind not in "iu":
        raise ShapeError(
            f"{function}: positions is {position_BT.dtype} {position_BT.shape}, expected integers "
            f"{real_BT.shape}, one a token."
        )
    return position_BT


def _visible(
    function: str,
    visible: Any,
    length_B: np.ndarray,
    slot_BT: np.ndarray,
    real_BT: np.ndarray,
    capacity: int,
) -> np.ndarray:
    given, (rows, tokens) = np.asarray(visible), real_BT.shape
    before = int(length_B.max(initial=0))
    expected = (rows, tokens, before + tokens)
    if given.dtype != np.bool_ or given.shape != expected:
        raise ShapeError(
            f"{function}: visible is {given.dtype} {given.shape}, expected bool {expected}: each "
            f"token by the {before} tokens that the longest row holds and these {tokens}."
        )
    # One column more than there are slots takes what is said about tokens that are not real.
    seen = np.zeros((rows, tokens, capacity + 1), np.bool_)
    seen[:, :, :before] = given[:, :, :before] & (np.arange(before) < length_B[:, None])[:, None]
    row_B1 = np.arange(rows)[:, None]
    # The indexed axes come first: [B, T of the columns, T of the queries].
    seen[row_B1, :, slot_BT] = given[:, :, before:].swapaxes(1, 2)
    return seen[:, :, :capacity] & real_BT[:, :, None]


def _check_room(function: str, length_B: np.ndarray, after_B: np.ndarray, capacity: int) -> None:
    for row, (before, after) in enumerate(zip(length_B.tolist(), after_B.tolist(), strict=True)):
        if after > capacity:
            raise CapacityError(
                f"{function}: row {row} was refused, {after - capacity} tokens too many for "
                f"capacity {capacity} with {before} held. Make the state with capacity {after}, or "
                f"feed {after - capacity} fewer."
            )


def _check_positions(function: str, position_BT: np.ndarray, max_positions: int) -> None:
    outside = np.argwhere((position_BT < 0) | (position_BT >= max_positions))
    if len(outside):
        row, place = outside[0].tolist()
        raise CapacityError(
            f"{function}: positions[{row}][{place}] is {position_BT[row, place]}, expected 0 to "
            f"{max_positions - 1} (the model's positions)."
        )
