"""What a text does to its own logits, checked on the host. Letters: B rows, V vocabulary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.per_row import is_real, is_whole, per_row
from jaxkv.spec.errors import RequestError, ShapeError

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
        penalties = (self.repetition_B - 1, self.presence_B, self.frequency_B, self.min_new_B)
        return not any(each_B.any() for each_B in penalties) and not any(self.bias)

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
    both = f"a number from {-MOST:g} to {MOST:g}"

    def numbers(name: str, given: Any, wanted: str, least: float) -> np.ndarray:
        found = per_row(
            "plan_processors",
            name,
            given,
            batch,
            wanted=wanted,
            fits=lambda x: is_real(x) and least <= x <= MOST,
        )
        return np.array(found, np.float32)

    above_0 = f"a number from {1 / MOST:g} to {MOST:g} (1 changes nothing)"
    least_new = per_row(
        "plan_processors",
        "min_new_tokens",
        min_new_tokens,
        batch,
        wanted="a whole number of at least 0, below 2147483648",
        fits=lambda x: is_whole(x) and 0 <= x < 2**31,
    )
    found = ProcessorSettings(
        vocab_size=vocab_size,
        repetition_B=numbers("repetition_penalty", repetition_penalty, above_0, 1 / MOST),
        presence_B=numbers("presence_penalty", presence_penalty, both, -MOST),
        frequency_B=numbers("frequency_penalty", frequency_penalty, both, -MOST),
        min_new_B=np.array(least_new, np.int32),
        bias=_biases(logit_bias, batch, vocab_size),
    )
    _check_left(found, end_ids)
    return None if found.is_neutral else found


def _biases(given: Any, batch: int, vocab_size: int) -> tuple[dict[int, float], ...]:
    rows = [given] * batch if given is None or isinstance(given, Mapping) else list(given)
    if len(rows) != batch:
        raise ShapeError(
            f"plan_processors: logit_bias has {len(rows)} mappings for {batch} prompts. Give one, "
            "or one a prompt."
        )
    for row in rows:
        for token, bias in (row or {}).items():
            if not is_whole(token) or not 0 <= token < vocab_size:
                raise RequestError(
                    f"plan_processors: logit_bias names the id {token!r}, expected 0 to "
                    f"{vocab_size - 1}."
                )
            if not is_real(bias) or not (-MOST <= bias <= MOST or bias == -math.inf):
                raise RequestError(
                    f"plan_processors: logit_bias of the id {token} is {bias!r}, expected a number "
                    f"from {-MOST:g} to {MOST:g}, or -inf (which bars it)."
                )
    return tuple({int(i): float(x) for i, x in (row or {}).items()} for row in rows)


def _check_left(found: ProcessorSettings, end_ids: Sequence[int]) -> None:
    for row, bias in enumerate(found.bias):
        barred = {token for token, x in bias.items() if x == -math.inf}
        ends = set(end_ids) - barred if found.min_new_B[row] else set()
        if len(barred) + len(ends) >= found.vocab_size:
            raise RequestError(
                f"plan_processors: of {found.vocab_size} tokens, logit_bias bars {len(barred)} of "
                f"row {row} and min_new_tokens {len(ends)} more, expected at least one to "
                "be left. Bar fewer."
            )
