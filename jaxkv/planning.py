"""What a request needs, decided and checked on the host before anything is compiled or run.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.sources import Sources, plan_sources, start_prompts
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError

SMALLEST_PROMPT = 16
SMALLEST_REACH = 128
# Up to here a reach is a power of two, beyond it a multiple of an eighth of one, or of STEP.
LARGEST_DOUBLED_REACH = 1024
STEP = 256
# Prompts of a stream longer than this are prefilled in pieces of it.
CHUNK = 512


@dataclass(frozen=True)
class Plan:
    """A checked request: host arrays, and the few sizes that a compiled program is made for.

    Attributes:
        ids_BT: int32 prompt ids, every row from the left, padded with 0 to the bucket's width T.
        count_B: int32, prompt tokens of each row.
        budget_B: int32, new tokens of each row at most.
        held_B: int32, tokens that the cache holds already.
        reach: Slots that a step reads; the longest row fits.
        capacity: Tokens that a row of the cache can hold.
        rectangular: Whether all rows have one length now and one count.
        sources: What the encoder reads; None without one, or where a cache holds it.
    """

    ids_BT: np.ndarray
    count_B: np.ndarray
    budget_B: np.ndarray
    held_B: np.ndarray
    reach: int
    capacity: int
    rectangular: bool
    sources: Sources | None

    @property
    def batch(self) -> int:
        """Rows."""
        return self.ids_BT.shape[0]


def plan(
    config: ModelConfig,
    prompts: Any = None,
    *,
    max_new_tokens: int | Sequence[int],
    mask_BT: Any = None,
    capacity: int | None = None,
    held_B: Any = None,
    encoder: Any = None,
    encoder_mask_BE: Any = None,
) -> Plan:
    """Return the checked request.

    Args:
        config: The model's sizes.
        prompts: One sequence of ids a row, of any lengths; or one array [B, T] with `mask_BT`. None
            is the start of a text, for a model with an encoder.
        max_new_tokens: Budget of new tokens, one for all rows or one a row.
        mask_BT: Which ids of an array are real; padding may stand on either side of a row.
        capacity: Tokens that a row can hold; None takes what the request needs.
        held_B: Tokens that each row of a given cache holds already.
        encoder: See `plan_sources`, as for `encoder_mask_BE`.
        encoder_mask_BE: See `plan_sources`.

    Raises:
        ShapeError: Prompts are not [batch, time], or the mask, budgets or cache have another number
            of rows.
        RequestError: A prompt is empty, an id outside the vocabulary, a budget negative.
        CapacityError: prompt + max_new_tokens - 1 exceeds the capacity (the last token is never fed
            back).
    """
    sources = plan_sources(config, encoder, encoder_mask_BE, has_cache=held_B is not None)
    prompts = start_prompts(config, prompts, sources)
    rows = _rows(prompts, mask_BT)
    _check_ids(rows, config.vocab_size)
    count_B = np.array([len(row) for row in rows], np.int32)
    budget_B = _budgets(max_new_tokens, len(rows))
    held_B = np.zeros(len(rows), np.int32) if held_B is None else np.asarray(held_B, np.int32)
    if held_B.shape != count_B.shape:
        raise ShapeError(
            f"plan: {len(rows)} prompts, the cache has {len(held_B)} rows. Make one row a prompt."
        )
    limit = config.max_positions if capacity is None else _whole_capacity(capacity)
    if not 1 <= limit <= config.max_positions:
        raise CapacityError(
            f"plan: capacity is {limit}, expected 1 to {config.max_positions}, the model's "
            "positions."
        )
    _check_room(held_B, count_B, budget_B, limit)
    need = int((held_B + count_B + np.maximum(budget_B, 1) - 1).max())
    reach = min(_reach(need), limit)
    width = _bucket(int(count_B.max()), SMALLEST_PROMPT)
    return Plan(
        ids_BT=_align(rows, width),
        count_B=count_B,
        budget_B=budget_B.astype(np.int32),
        held_B=held_B,
        reach=reach,
        capacity=reach if capacity is None else capacity,
        rectangular=len({*zip(count_B.tolist(), held_B.tolist(), strict=True)}) == 1
        and bool((budget_B > 0).all()),
        sources=sources,
    )


def _rows(prompts: Any, mask_BT: Any) -> list[np.ndarray]:
    if mask_BT is not None:
        return _unpad(np.asarray(prompts), np.asarray(mask_BT, bool))
    if not hasattr(prompts, "__len__") or len(prompts) == 0:
        raise ShapeError("plan: prompts is empty, expected [batch, time] with at least 1 row.")
    rows = [np.asarray(row) for row in prompts]
    for b, row in enumerate(rows):
        if row.ndim != 1:
            raise ShapeError(
                f"plan: prompts[{b}] has {row.ndim} axes, expected 1: prompts are [batch, time]."
            )
    return rows


def _unpad(ids_BT: np.ndarray, mask_BT: np.ndarray) -> list[np.ndarray]:
    if ids_BT.ndim != 2 or ids_BT.shape != mask_BT.shape:
        raise ShapeError(
            f"plan: mask_BT has shape {mask_BT.shape}, prompts {ids_BT.shape}; both must "
            "be [batch, time]."
        )
    for b, row in enumerate(mask_BT):
        real = np.flatnonzero(row)
        if len(real) and real[-1] - real[0] + 1 != len(real):
            raise RequestError(
                f"plan: mask_BT[{b}] has a gap after token {int(real[0])}: {len(real)} "
                "real ids in a span of "
                f"{int(real[-1] - real[0] + 1)}. Padding must stand at the ends."
            )
    return [ids[real] for ids, real in zip(ids_BT, mask_BT, strict=True)]


def _check_ids(rows: list[np.ndarray], vocab_size: int) -> None:
    for b, row in enumerate(rows):
        if len(row) == 0:
            raise RequestError(
                f"plan: prompts[{b}] is empty, expected at least 1 token. Give it a start token."
            )
        if not np.issubdtype(row.dtype, np.integer):
            raise RequestError(
                f"plan: prompts[{b}] has dtype {row.dtype}, expected whole numbers (token ids)."
            )
        outside = np.flatnonzero((row < 0) | (row >= vocab_size))
        if len(outside):
            t = int(outside[0])
            raise RequestError(
                f"plan: prompts[{b}][{t}] is {int(row[t])}, expected 0 to {vocab_size - 1} "
                "(the model's vocabulary). Was the text encoded with this model's tokenizer?"
            )


def _whole_capacity(capacity: Any) -> int:
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer):
        raise RequestError(f"plan: capacity is {capacity!r}, expected a whole number or None.")
    return int(capacity)


def _budgets(max_new_tokens: int | Sequence[int], batch: int) -> np.ndarray:
    is_list = hasattr(max_new_tokens, "__len__")
    each: list[Any] = list(max_new_tokens) if is_list else [max_new_tokens] * batch  # pyright: ignore[reportArgumentType] a list by the line above
    if len(each) != batch:
        raise ShapeError(
            f"plan: max_new_tokens has {len(each)} numbers for {batch} prompts. Give one, "
            "or one a prompt."
        )
    for budget in each:
        if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 0:
            raise RequestError(
                f"plan: max_new_tokens is {budget!r}, expected a whole number of at least 0."
            )
    return np.array(each, np.int64)  # more than int32 holds is refused by `_check_room`


def _check_room(
    held_B: np.ndarray, count_B: np.ndarray, budget_B: np.ndarray, capacity: int
) -> None:
    for held, prompt, budget in zip(
        held_B.tolist(), count_B.tolist(), budget_B.tolist(), strict=True
    ):
        if budget == 0:
            continue
        need = held + prompt + budget - 1
        if need > capacity:
            before = f"{held} held + " if held else ""
            least = held + prompt - capacity
            advice = (
                f"lower max_new_tokens by {need - capacity}"
                if least <= 0
                else f"shorten prompt and max_new_tokens by {need - capacity} in all"
            )
            raise CapacityError(
                f"plan: {before}prompt {prompt} + max_new_tokens {budget} - 1 = {need} slots "
                f"(the last token is never fed back), capacity {capacity}. Raise capacity "
                f"or {advice}."
            )


def _reach(need: int) -> int:
    """Return the slots that a step reads of a text: finer where too many cost more than programs.

    Of a long text each slot is megabytes a step; of a short one, reading the weights is most.
    """
    if need <= LARGEST_DOUBLED_REACH:
        return _bucket(need, SMALLEST_REACH)
    doubled = 1 << (need.bit_length() - 1)
    step = max(doubled // 8, STEP)
    return -(-need // step) * step


def _bucket(tokens: int, smallest: int) -> int:
    width = smallest
    while width < tokens:
        width *= 2
    return width


def _align(rows: list[np.ndarray], width: int) -> np.ndarray:
    ids_BT = np.zeros((len(rows), width), np.int32)
    for b, row in enumerate(rows):
        ids_BT[b, : len(row)] = row
    return ids_BT
