"""The metadata of a GGUF file: each key of its architecture is read, without effect, or refused."""

import difflib
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from jaxkv.spec.errors import ConfigError

WITHOUT_EFFECT = {"rope.scaling.finetuned": "how the model was trained"}
"""Key that changes nothing, and why."""
NEUTRAL: dict[str, Any] = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Key that changes the function unless it holds this value."""
ROPE_TENSORS = ("rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight")
"""Tensors of factors on rotary speeds, which belong to the config."""


class GgufKeys:
    """Typed access to the keys of one architecture.

    Args:
        metadata: Key -> value of the whole file.
        architecture: Whose keys start with its name and a dot.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str):
        self.metadata, self.architecture = metadata, architecture

    def has(self, key: str) -> bool:
        """Return whether the file states it."""
        return f"{self.architecture}.{key}" in self.metadata

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            ConfigError: It is missing without a default, or something else.
        """
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(key, "a whole number of at least 1", "Is the file complete?")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above 0.

        Raises:
            ConfigError: It is missing without a default, or something else.
        """
        value = self._value(key, default)
        if not isinstance(value, float) or not value > 0:
            raise self.fault(key, "a number above 0", "Is the file complete?")
        return value

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        """Return one of the names that are known.

        Raises:
            ConfigError: It is another; the nearest known one is offered.
        """
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value not in known:
            near = difflib.get_close_matches(str(value), known, n=1)
            advice = f"Did you mean {near[0]!r}?" if near else "Take another checkpoint."
            raise self.fault(key, " or ".join(map(repr, known)), advice)
        return value

    def check(
        self,
        read: Collection[str],
        neutral: Mapping[str, Any],
        tensor_names: Collection[str],
        *,
        rope_tensors: Collection[str] = (),
    ) -> None:
        """Refuse every key that nobody reads, and keys and tensors that change the function.

        Args:
            read: Keys that the family reads.
            neutral: Keys that change the function unless they have this value.
            tensor_names: Of the tensors in the file.
            rope_tensors: Those of `ROPE_TENSORS` that the family reads.

        Raises:
            ConfigError: A key is unknown or holds another value than the neutral one, or a tensor
                asks for what is not supported; each is named.
        """
        for key in self.metadata:
            short = key.removeprefix(f"{self.architecture}.")
            if short == key or short in read or short in WITHOUT_EFFECT:
                continue
            if short not in neutral:
                known = sorted({*read, *WITHOUT_EFFECT, *neutral})
                near = difflib.get_close_matches(short, known, n=1, cutoff=0.8)
                hint = f"Did you mean {near[0]!r}?" if near else "Take a checkpoint without it."
                raise self.fault(short, "no such key (it may change the function)", hint)
            if self.metadata[key] != neutral[short]:
                wanted = f"{neutral[short]!r} (the only supported value)"
                raise self.fault(short, wanted, "Take a checkpoint without it.")
        for name in ROPE_TENSORS:
            if name in tensor_names and name not in rope_tensors:
                raise ConfigError(
                    f"config_from_gguf: tensor {name!r} is present, expected none (factors on "
                    f"rotary speeds, not supported in {self.architecture}). Take a checkpoint "
                    "without it."
                )

    def fault(self, key: str, wanted: str, advice: str) -> ConfigError:
        """Return the error for a value, to be raised."""
        name = f"{self.architecture}.{key}"
        given = reprlib.repr(self.metadata.get(name))
        return ConfigError(f"config_from_gguf: {name} is {given}, expected {wanted}. {advice}")

    def _value(self, key: str, default: float | None) -> Any:
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise ConfigError(
                f"config_from_gguf: {name} is missing, expected a number. Is the file complete?"
            )
        return value
