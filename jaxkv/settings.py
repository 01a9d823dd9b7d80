"""How the tokens of each row are drawn, checked on the host. Letters: B rows, V vocabulary."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.per_row import is_real, is_whole, per_row

SEEDS = 2**32
HOTTEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Settings:
    """Checked sampling settings, one number a row.

    Attributes:
        temperature_B: float32; 0 is greedy.
        top_k_B: int32, how many of the likeliest tokens stay; V drops none.
        tail_B: float32, 1 - top_p: the probability that the dropped tokens may have in all.
        min_p_B: float32, the least probability that stays, as a share of the likeliest token's.
        seed_B: uint32.
    """

    temperature_B: np.ndarray
    top_k_B: np.ndarray
    tail_B: np.ndarray
    min_p_B: np.ndarray
    seed_B: np.ndarray

    @property
    def is_greedy(self) -> bool:
        """Whether no row draws anything."""
        return not self.temperature_B.any()


def plan_sampling(
    vocab_size: int,
    batch: int,
    *,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seeds: int | Sequence[int] = 0,
) -> Settings:
    """Return the checked settings; each is one number for all rows, or one a row.

    Args:
        vocab_size: V.
        batch: Rows.
        temperature: Divides the logits; 0 takes the likeliest token without dividing.
        top_k: Keeps the k likeliest tokens, and all that equal the last of them; None or V keeps
            all.
        top_p: Keeps the likeliest tokens up to this probability in all, at least one; 1 keeps all.
        min_p: Drops tokens less likely than this share of the likeliest one's probability.
        seeds: One for all rows gives each row the text that it gets alone, so equal prompts get
            equal texts; for different ones give a list.

    Raises:
        RequestError: A number is out of range.
        ShapeError: A list has another length than there are rows.
    """
    asked = {
        "temperature": temperature,
        "top_k": vocab_size if top_k is None else top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seeds": seeds,
    }
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "temperature": (
            lambda x: is_real(x) and 0 <= x < math.inf,
            "a finite number of at least 0 (0 is greedy)",
        ),
        "top_k": (
            lambda x: is_whole(x) and 1 <= x <= vocab_size,
            f"a whole number from 1 to {vocab_size}, the vocabulary (which keeps all)",
        ),
        "top_p": (
            lambda x: is_real(x) and 0 < x <= 1,
            "a number above 0 and at most 1 (which keeps all)",
        ),
        "min_p": (
            lambda x: is_real(x) and 0 <= x <= 1,
            "a number from 0 (which keeps all) to 1",
        ),
        "seeds": (
            lambda x: is_whole(x) and 0 <= x < SEEDS,
            f"a whole number from 0 to {SEEDS - 1}",
        ),
    }
    rows = {
        name: per_row("plan_sampling", name, asked[name], batch, fits=fits, wanted=wanted)
        for name, (fits, wanted) in rules.items()
    }
    return Settings(
        temperature_B=np.minimum(rows["temperature"], HOTTEST).astype(np.float32),
        top_k_B=np.array(rows["top_k"], np.int32),
        # Subtracted here, in float64: 1 - 1e-8 has no float32 of its own.
        tail_B=(1.0 - np.array(rows["top_p"], np.float64)).astype(np.float32),
        min_p_B=np.array(rows["min_p"], np.float32),
        seed_B=np.array(rows["seeds"], np.uint32),
    )
