"""How rotary positions are stretched past the length that a model was trained at.

Each kind says what the numbers mean; the twins hold the formulas. R counts rotary pairs.
Sources: llama-models, llama3/model.py, `apply_scaling`; Chen et al. 2023 (positions divided);
Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE); transformers 5.24, `modeling_rope_utils.py`
(the dynamic base).
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxkv.spec.part import Part, check_keys, require, require_above, require_whole


@dataclass(frozen=True)
class Scaling(Part):
    """What all kinds answer."""

    @property
    def follows_length(self) -> bool:
        """Whether frequencies depend on how many tokens a row holds.

        Then earlier keys keep those of their time, and a text's result depends on its steps.
        """
        return False


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Slower rotary pairs, as Llama 3.1 stretches a context.

    A pair that turns at least high_freq_factor times within the original positions keeps its speed,
    one that turns at most low_freq_factor times gets 1 / factor of it, and between the two it is
    blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int
    kind: Literal["llama3"] = "llama3"

    def __post_init__(self) -> None:
        _check("Llama3Scaling", self.factor, self.original_max_positions)
        low, high = self.low_freq_factor, self.high_freq_factor
        require(
            0 < low < high,
            f"Llama3Scaling: low_freq_factor is {low}, expected above 0 and below "
            f"high_freq_factor {high}.",
        )


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Every pair gets 1 / factor of its speed."""

    factor: float
    kind: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        _check("LinearScaling", self.factor, 1)


@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """A base that grows with the length of the row, once past the original positions.

    With length L after the step, theta is multiplied by
    (factor * L / original - (factor - 1))^(R / (R - 1)).
    """

    factor: float
    original_max_positions: int
    kind: Literal["dynamic"] = "dynamic"

    @property
    def follows_length(self) -> bool:
        """Always: the base grows with the row."""
        return True

    def __post_init__(self) -> None:
        _check("DynamicScaling", self.factor, self.original_max_positions)


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """Speeds blended pair by pair, from as given to 1 / factor, and a factor on cos and sin.

    A pair that turns at least beta_fast times within the original positions keeps its speed, one
    that turns at most beta_slow times gets 1 / factor of it, and between the two it is blended,
    linearly in the pair's number. With truncate, the two ends are whole numbers of pairs. The
    factor on cos and sin is attention_factor, or where that is None the quotient of
    0.1 * m * ln(factor) + 1 for m = mscale and m = mscale_all_dim.
    """

    factor: float
    original_max_positions: int
    attention_factor: float | None = None
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    kind: Literal["yarn"] = "yarn"

    def __post_init__(self) -> None:
        _check("YarnScaling", self.factor, self.original_max_positions)
        if self.attention_factor is not None:
            require_above("YarnScaling", 0, attention_factor=self.attention_factor)
        require(
            0 < self.beta_slow < self.beta_fast,
            f"YarnScaling: beta_slow is {self.beta_slow}, expected above 0 and below beta_fast "
            f"{self.beta_fast}.",
        )


@dataclass(frozen=True)
class LongScaling(Scaling):
    """Each pair's speed divided by a number of its own, and a factor on cos and sin.

    The long factors hold for a row that is longer than the original positions after the step, the
    short ones before. Where both are the same, nothing depends on the length. The factor on cos and
    sin is attention_factor, or where that is None (1 + ln(factor) / ln(original))^(1/2).
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    factor: float
    attention_factor: float | None = None
    kind: Literal["longrope"] = "longrope"

    def __post_init__(self) -> None:
        _check("LongScaling", self.factor, self.original_max_positions)
        if self.attention_factor is not None:
            require_above("LongScaling", 0, attention_factor=self.attention_factor)
        short, long = self.short_factors, self.long_factors
        require(
            len(short) == len(long),
            f"LongScaling: short_factors has {len(short)} numbers, expected {len(long)} as "
            "long_factors.",
        )
        for each in (*short, *long):
            require_above("LongScaling", 0, factor=each)

    @property
    def follows_length(self) -> bool:
        """Whether the long factors are others than the short ones."""
        return self.short_factors != self.long_factors

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        return tuple(value) if name in ("short_factors", "long_factors") else value


_KINDS: dict[str, type[Scaling]] = {
    "dynamic": DynamicScaling,
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "longrope": LongScaling,
    "yarn": YarnScaling,
}


def scaling_from_dict(data: dict[str, Any]) -> Scaling:
    """Return the scaling of the kind that plain data names.

    Raises:
        ConfigError: The kind is unknown, or what `from_dict` refuses.
    """
    kind = data.get("kind")
    check_keys("Rope: scaling kind", {str(kind)}, set(_KINDS))
    return _KINDS[str(kind)].from_dict(data)


def _check(owner: str, factor: float, original_max_positions: int) -> None:
    require_whole(owner, original_max_positions=original_max_positions)
    require(factor >= 1, f"{owner}: factor is {factor}, expected at least 1.")
