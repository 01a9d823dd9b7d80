"""What a text does to its own logits, checked at once. Letters: B rows, V vocabulary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.spec.errors import RequestError, ShapeError
from torchkv.per_row import is_real, is_whole, per_row

Bias = Mapping[int, float]
# Past it nothing is left of a logit beside it, and sums of many come near the end of float32.
MOST = 1e6


@dataclass(frozen=True)
class ProcessorSettings:
    """Checked settings, one number or mapping a row.

    Attributes:
        vocab_size: V.
        repetition_B: float32; 1 changes nothing.
        presence_B: float32; 0 changes nothing.
        frequency_B: float32; 0 changes nothing.
        min_new_B: int32, new tokens before any end token.
        bias: Of each row, ids and what is added to their logits.
    """

    vocab_size: int
    repetition_B: np.ndarray
    presence_B: np.ndarray
    frequency_B: np.ndarray
    min_new_B: np.ndarray
    bias: tuple[dict[int, float], ...]

    @property
    def is_neutral(self) -> bool:
        """Whether no row's logits change."""
        is_one = bool((self.repetition_B == 1).all())
        rest = np.stack([self.presence_B, self.frequency_B, self.min_new_B])
        return is_one and not rest.any() and not any(self.bias)

    def repeated(self, times: int) -> "ProcessorSettings":
        """Return each row's settings so many times, one after the other."""
        return ProcessorSettings(
            self.vocab_size,
            np.repeat(self.repetition_B, times),
            np.repeat(self.presence_B, times),
            np.repeat(self.frequency_B, times),
            np.repeat(self.min_new_B, times),
            tuple(row for row in self.bias for _ in range(times)),
        )


def plan_processors(
    vocab_size: int,
    batch: int,
    end_ids: Sequence[int],
    *,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    logit_bias: Bias | Sequence[Bias | None] | None = None,
    min_new_tokens: int | Sequence[int] = 0,
) -> ProcessorSettings | None:
    """Return the checked settings; each is one for all rows, or one a row. None if all are neutral.

    Args:
        vocab_size: V.
        batch: Rows.
        end_ids: Tokens that end a row.
        repetition_penalty: Of tokens of the text so far, prompt and new: a positive logit is
            divided by it, a negative one multiplied.
        presence_penalty: Taken from the logit of each token that is among the new ones.
        frequency_penalty: Taken from it as often as the token is among the new ones.
        logit_bias: Added to the logits of the ids named; -inf bars a token.
        min_new_tokens: New tokens before any end token; above the budget, there is none.

    Raises:
        RequestError: A number is out of range, or no token is left.
        ShapeError: A list has another length than there are rows.
    """
    real = f"a number from {-MOST:g} to {MOST:g}"
    factor = f"a number from {1 / MOST:g} to {MOST:g} (1 changes nothing)"
    count = "a whole number of at least 0, below 2147483648"
    wanted = {
        "repetition_penalty": (repetition_penalty, factor, _Range(1 / MOST, MOST)),
        "presence_penalty": (presence_penalty, real, _Range(-MOST, MOST)),
        "frequency_penalty": (frequency_penalty, real, _Range(-MOST, MOST)),
        "min_new_tokens": (min_new_tokens, count, _Range(0, 2**31 - 1, whole=True)),
    }
    rows = [
        per_row("plan_processors", name, given, batch, wanted=words, fits=span.holds)
        for name, (given, words, span) in wanted.items()
    ]
    penalties = [np.asarray(row, "float32") for row in rows[:3]]
    least_new = np.asarray(rows[3], "int32")
    biases = _biases(logit_bias, batch, vocab_size)
    repetition_B, presence_B, frequency_B = penalties
    found = ProcessorSettings(vocab_size, repetition_B, presence_B, frequency_B, least_new, biases)
    for row in range(batch):
        _check_left(found, row, end_ids)
    return None if found.is_neutral else found


@dataclass(frozen=True)
class _Range:
    least: float
    most: float
    whole: bool = False

    def holds(self, x: Any) -> bool:
        return (is_whole if self.whole else is_real)(x) and self.least <= x <= self.most


def _biases(given: Any, batch: int, vocab_size: int) -> tuple[dict[int, float], ...]:
    each = [*given] if isinstance(given, Sequence) else [given] * batch
    if len(each) != batch:
        raise ShapeError(
            f"plan_processors: logit_bias has {len(each)} mappings for {batch} prompts. Give one, "
            "or one a prompt."
        )
    return tuple(_bias(dict(row or {}), vocab_size) for row in each)


def _bias(row: dict[Any, Any], vocab_size: int) -> dict[int, float]:
    span = _Range(-MOST, MOST)
    for token, bias in row.items():
        if not (is_whole(token) and 0 <= token < vocab_size):
            raise RequestError(
                f"plan_processors: logit_bias names the id {token!r}, expected 0 to "
                f"{vocab_size - 1}."
            )
        if bias != -math.inf and not span.holds(bias):
            raise RequestError(
                f"plan_processors: logit_bias of the id {token} is {bias!r}, expected a number "
                f"from {-MOST:g} to {MOST:g}, or -inf (which bars it)."
            )
    return {int(token): float(bias) for token, bias in row.items()}


def _check_left(found: ProcessorSettings, row: int, end_ids: Sequence[int]) -> None:
    barred = [token for token, bias in found.bias[row].items() if bias == -math.inf]
    ends = [*{*end_ids}.difference(barred)] if found.min_new_B[row] > 0 else []
    if len(barred) + len(ends) >= found.vocab_size:
        raise RequestError(
            f"plan_processors: of {found.vocab_size} tokens, logit_bias bars {len(barred)} of "
            f"row {row} and min_new_tokens {len(ends)} more, expected at least one to be "
            "left. Bar fewer."
        )
