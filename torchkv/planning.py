"""What a request needs, decided and checked on the host before anything is run.

Letters: B rows, T prompt tokens with padding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError
from torchkv.sources import Sources, plan_sources, start_prompts

SMALLEST_PROMPT = 16
SMALLEST_REACH = 128
# Up to here a reach is a power of two, beyond it a multiple of an eighth of one, or of STEP.
LARGEST_DOUBLED_REACH = 1024
STEP = 256
# Prompts of a stream longer than this are prefilled in pieces of it.
CHUNK = 512


@dataclass(frozen=True)
class Plan:
    """A checked request: host arrays and sizes.

    Nothing is compiled here, so the buckets save nothing; they stand for the other twin's plan.

    Attributes:
        ids_BT: int32 prompt ids, every row from the left, padded with 0 to the bucket's width T.
        count_B: int32, prompt tokens of each row.
        budget_B: int32, new tokens of each row at most.
        held_B: int32, tokens that the cache holds already.
        reach: Slots that the longest row needs, rounded up to a bucket.
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
        return len(self.count_B)


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
    rows = _unpad(prompts, mask_BT) if mask_BT is not None else _split(prompts)
    for b, row in enumerate(rows):
        _check_row(b, row, config.vocab_size)
    counts = [len(row) for row in rows]
    budgets = _budgets(max_new_tokens, len(rows))
    held = [0] * len(rows) if held_B is None else np.asarray(held_B).tolist()
    if len(held) != len(rows):
        raise ShapeError(
            f"plan: {len(rows)} prompts, the cache has {len(held)} rows. Make one row a prompt."
        )
    limit = config.max_positions if capacity is None else _whole_capacity(capacity)
    if not 0 < limit <= config.max_positions:
        raise CapacityError(
            f"plan: capacity is {limit}, expected 1 to {config.max_positions}, the model's "
            "positions."
        )
    facts = list(zip(held, counts, budgets, strict=True))
    for fact in facts:
        _check_room(*fact, capacity=limit)
    longest = max(before + count + max(budget - 1, 0) for before, count, budget in facts)
    reach = min(_reach(longest), limit)
    ids_BT = np.zeros((len(rows), _bucket(max(counts), SMALLEST_PROMPT)), np.int32)
    for row, ids_T in zip(rows, ids_BT, strict=True):
        ids_T[: len(row)] = row
    return Plan(
        ids_BT=ids_BT,
        count_B=np.array(counts, np.int32),
        budget_B=np.array(budgets, np.int32),
        held_B=np.array(held, np.int32),
        reach=reach,
        capacity=reach if capacity is None else capacity,
        rectangular=len(set(zip(held, counts, strict=True))) == 1 and min(budgets) > 0,
        sources=sources,
    )


def _split(prompts: Any) -> list[np.ndarray]:
    if not hasattr(prompts, "__len__") or len(prompts) == 0:
        raise ShapeError("plan: prompts is empty, expected [batch, time] with at least 1 row.")
    rows = [np.asarray(row) for row in prompts]
    for b, row in enumerate(rows):
        if row.ndim != 1:
            raise ShapeError(
                f"plan: prompts[{b}] has {row.ndim} axes, expected 1: prompts are [batch, time]."
            )
    return rows


def _unpad(prompts: Any, mask_BT: Any) -> list[np.ndarray]:
    ids_BT, real_BT = np.asarray(prompts), np.asarray(mask_BT, bool)
    if ids_BT.ndim != 2 or ids_BT.shape != real_BT.shape:
        raise ShapeError(
            f"plan: mask_BT has shape {real_BT.shape}, prompts {ids_BT.shape}; both must "
            "be [batch, time]."
        )
    rows = []
    for b, (ids_T, real_T) in enumerate(zip(ids_BT, real_BT, strict=True)):
        places = np.flatnonzero(real_T).tolist()
        if places and places[-1] - places[0] >= len(places):
            raise RequestError(
                f"plan: mask_BT[{b}] has a gap after token {places[0]}: {len(places)} real ids in "
                "a "
                f"span of {places[-1] - places[0] + 1}. Padding must stand at the ends."
            )
        rows.append(ids_T[real_T])
    return rows


def _check_row(b: int, row: np.ndarray, vocab_size: int) -> None:
    if len(row) == 0:
        raise RequestError(
            f"plan: prompts[{b}] is empty, expected at least 1 token. Give it a start token."
        )
    if row.dtype.kind not in "iu":
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


def _budgets(max_new_tokens: Any, batch: int) -> list[int]:
    each = max_new_tokens if isinstance(max_new_tokens, Iterable) else [max_new_tokens] * batch
    budgets = list(each)
    if len(budgets) != batch:
        raise ShapeError(
            f"plan: max_new_tokens has {len(budgets)} numbers for {batch} prompts. Give one, "
            "or one a prompt."
        )
    for budget in budgets:
        whole = isinstance(budget, int | np.integer) and not isinstance(budget, bool)
        if not whole or budget < 0:
            raise RequestError(
                f"plan: max_new_tokens is {budget!r}, expected a whole number of at least 0."
            )
    return [int(budget) for budget in budgets]


def _check_room(held: int, prompt: int, budget: int, *, capacity: int) -> None:
    need = held + prompt + budget - 1
    if budget == 0 or need <= capacity:
        return
    before = f"{held} held + " if held else ""
    too_long = held + prompt - capacity
    advice = (
        f"shorten prompt and max_new_tokens by {need - capacity} in all"
        if too_long > 0
        else f"lower max_new_tokens by {need - capacity}"
    )
    raise CapacityError(
        f"plan: {before}prompt {prompt} + max_new_tokens {budget} - 1 = {need} slots "
        f"(the last token is never fed back), capacity {capacity}. Raise capacity or {advice}."
    )


def _reach(longest: int) -> int:
    """Return the slots of a cache made for a text: jaxkv's steps read them all."""
    reach = _bucket(min(longest, LARGEST_DOUBLED_REACH), SMALLEST_REACH)
    while reach < longest:
        # Eighths of the last power of two passed, none below STEP.
        reach += max(1 << (reach.bit_length() - 4), STEP)
    return reach


def _bucket(tokens: int, smallest: int) -> int:
    doublings = max(0, (-(-tokens // smallest) - 1).bit_length())
    return smallest << doublings
