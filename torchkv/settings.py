"""How the tokens of each row are drawn, checked before anything runs. Letters: B rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchkv.per_row import is_real, is_whole, per_row

SEEDS = 1 << 32
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
        return bool((self.temperature_B == 0).all())


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
    whole_k = f"a whole number from 1 to {vocab_size}, the vocabulary (which keeps all)"
    k = vocab_size if top_k is None else top_k
    heat = _each("temperature", temperature, batch, "a finite number of at least 0 (0 is greedy)")
    kept = _each("top_k", k, batch, whole_k, whole=True, least=1, most=vocab_size)
    mass = _each("top_p", top_p, batch, "a number above 0 and at most 1 (which keeps all)", most=1)
    share = _each("min_p", min_p, batch, "a number from 0 (which keeps all) to 1", most=1)
    below = f"a whole number from 0 to {SEEDS - 1}"
    seed = _each("seeds", seeds, batch, below, whole=True, most=SEEDS - 1)
    return Settings(
        np.asarray([min(float(t), HOTTEST) for t in heat], "float32"),
        np.asarray(kept, "int32"),
        # Subtracted here, in float64: 1 - 1e-8 has no float32 of its own.
        np.asarray([1.0 - float(p) for p in mass], "float32"),
        np.asarray(share, "float32"),
        np.asarray(seed, "uint32"),
    )


def _each(
    name: str,
    given: Any,
    batch: int,
    wanted: str,
    *,
    whole: bool = False,
    least: float = 0,
    most: float = math.inf,
) -> list[Any]:
    def fits(value: Any) -> bool:
        # A NaN fails every comparison, and top_p alone excludes its lower end.
        is_number = is_whole(value) if whole else is_real(value)
        is_end = value == math.inf or (name == "top_p" and value == 0)
        return is_number and least <= value <= most and not is_end

    return per_row("plan_sampling", name, given, batch, wanted=wanted, fits=fits)
