"""A Hugging Face `config.json`: every key is read, ignored for a reason, or refused.

A key whose value is null asks for nothing: it counts as absent.
"""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from jaxkv.spec.config import Activation
from jaxkv.spec.errors import ConfigError

C = TypeVar("C")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Name in config.json -> name in `Mlp.activation`."""
ACTIVATION_NAMES: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""Name in `Mlp.activation` -> the name in config.json that is written."""

_TRAINING = "training only"
_CALLER = "what to return is the caller's choice"
_GENERATION = "an old place of generation settings, which the caller gives"
_LABELS = "labels of a classifier"
_BACKEND = "how attention is computed is the caller's choice"
_TUNER = "which program prepared it"
COMMON_IGNORED = {
    "_attn_implementation": _BACKEND,
    "_attn_implementation_autoset": _BACKEND,
    "_name_or_path": "where it came from",
    "architectures": "the names of the tensors tell",
    "bos_token_id": "the tokenizer adds it, or nobody",
    "cache_implementation": "the caller's choice",
    "dtype": "the tensors tell",
    "eos_token_id": "read with the generation config",
    "finetuning_task": _TRAINING,
    "gradient_checkpointing": _TRAINING,
    "id2label": _LABELS,
    "initializer_range": _TRAINING,
    "label2id": _LABELS,
    "length_penalty": _GENERATION,
    "max_length": _GENERATION,
    "min_length": _GENERATION,
    "model_type": "it chose the family",
    "num_beams": _GENERATION,
    "output_attentions": _CALLER,
    "output_hidden_states": _CALLER,
    "pad_token_id": "padding is counted, not looked for",
    "return_dict": _CALLER,
    "task_specific_params": _GENERATION,
    "temperature": _GENERATION,
    "tokenizer_class": "tokenizer.json is read",
    "top_k": _GENERATION,
    "top_p": _GENERATION,
    "torch_dtype": "the tensors tell",
    "transformers.js_config": "settings of another runtime",
    "transformers_version": "which library wrote it",
    "unsloth_fixed": _TUNER,
    "unsloth_version": _TUNER,
    "use_cache": "the caller's choice",
}
"""Key that any family may have -> why it changes nothing here."""
COMMON_NEUTRAL = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "pruned_heads": {},
}
"""Key that changes the function unless it holds this value."""


class ConfigJson:
    """Typed access to the keys of one JSON object.

    Args:
        data: The object.
        owner: Its name in messages.
    """

    def __init__(self, data: Mapping[str, Any], owner: str = "config.json"):
        self.data = {key: value for key, value in data.items() if value is not None}
        self.nulls = {key for key, value in data.items() if value is None}
        self.owner = owner

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            ConfigError: It is missing without a default, or something else.
        """
        value = self._value(key, default, "a whole number of at least 1")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(key, "a whole number of at least 1", "Is the file complete?")
        return value

    def whole_or_off(self, key: str, default: int | None) -> int | None:
        """Return a whole number of at least 1, or None where the key is null.

        For a family in whose library an absent key means the default, but null means off.

        Raises:
            ConfigError: It is something else.
        """
        value = None if key in self.nulls else self.data.get(key, default)
        return None if value is None else self.whole(key, default)

    def number_or_off(self, key: str, default: float | None) -> float | None:
        """Return a number above 0, or None where the key is null or 0; absent is the default.

        Raises:
            ConfigError: It is something else.
        """
        value = None if key in self.nulls else self.data.get(key, default)
        off = value is None or (value == 0 and not isinstance(value, bool))
        return None if off else self.number(key, default)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return so many numbers above 0.

        Raises:
            ConfigError: It is missing, or something else.
        """
        values = self.data.get(key)
        right = isinstance(values, list) and all(
            isinstance(each, int | float) and not isinstance(each, bool) and each > 0
            for each in values
        )
        if not right or len(values or ()) != count:
            raise self.fault(key, f"{count} numbers above 0", "Is the file complete?")
        return tuple(float(each) for each in values or ())

    def names(self, key: str, known: Iterable[str], count: int) -> tuple[str, ...] | None:
        """Return so many of the known names, one a layer; None where the key is absent.

        Raises:
            ConfigError: It is something else.
        """
        values, known = self.data.get(key), sorted(known)
        if values is None:
            return None
        if not isinstance(values, list) or [each for each in values if each not in known]:
            raise self.fault(key, f"a list of {' and '.join(known)}", "No other is computed here.")
        if len(values) != count:
            raise self.fault(key, f"{count} names, one a layer", "Is the file complete?")
        return tuple(values)

    def layers(self, key: str) -> int:
        """Return a number of layers, at most 10,000: a damaged one must not fill the memory.

        Raises:
            ConfigError: It is missing, or something else.
        """
        value = self.whole(key)
        if value > 10_000:
            raise self.fault(key, "at most 10000 layers", "Is the file complete?")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above 0.

        Raises:
            ConfigError: It is missing without a default, or something else.
        """
        value = self._value(key, default, "a number above 0")
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.fault(key, "a number above 0", "Is the file complete?")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Raises:
            ConfigError: It is something else.
        """
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, "true or false", "Is the file complete?")
        return value

    def start_ids(self, *, default: int) -> tuple[int, ...]:
        """Return what a text of the decoder starts with, and what generation forces to follow.

        Raises:
            ConfigError: One is no token id.
        """
        keys = ("decoder_start_token_id", "forced_bos_token_id")
        ids = [self.data.get(keys[0], default), self.data.get(keys[1])]
        for key, id_ in zip(keys, ids, strict=True):
            is_whole = isinstance(id_, int) and not isinstance(id_, bool)
            if id_ is not None and not (is_whole and id_ >= 0):
                raise self.fault(key, "a token id", "Is the file complete?")
        return tuple(id_ for id_ in ids if id_ is not None)

    def choice(self, key: str, table: Mapping[str, C], default: str) -> C:
        """Return what the table has for a name.

        Raises:
            ConfigError: The name is none of the table's.
        """
        value = self.data.get(key, default)
        if not isinstance(value, str) or value not in table:
            one_of = f"one of {', '.join(sorted(table))}"
            raise self.fault(key, one_of, "No other is computed here; take another checkpoint.")
        return table[value]

    def check_keys(
        self, read: Iterable[str], ignored: Mapping[str, str], neutral: Mapping[str, Any]
    ) -> None:
        """Refuse every key that nobody reads, and values that change the function.

        Args:
            read: Keys that the family reads.
            ignored: Keys that change nothing, each with why.
            neutral: Keys that change the function unless they have this value.

        Raises:
            ConfigError: A key is unknown (the nearest known name is offered), or holds another
                value than the neutral one.
        """
        known = {*read, *ignored, *neutral}
        for key, value in sorted(self.data.items()):
            if key not in known:
                near = [
                    match
                    for names in (read, known)
                    for match in difflib.get_close_matches(key, sorted(names), n=1)
                ]
                hint = f"Did you mean {near[0]!r}?" if near else "Take a checkpoint without it."
                raise ConfigError(
                    f"{self.owner}: {key} is {reprlib.repr(value)}, expected no such key (it may "
                    f"change the function). {hint}"
                )
            if key in neutral and value != neutral[key]:
                raise self.fault(
                    key,
                    f"{neutral[key]!r} (the only supported value)",
                    "Take a checkpoint without it.",
                )

    def fault(self, key: str, wanted: str, advice: str) -> ConfigError:
        """Return the error for a value, to be raised."""
        given = reprlib.repr(self.data.get(key))
        return ConfigError(f"{self.owner}: {key} is {given}, expected {wanted}. {advice}")

    def _value(self, key: str, default: float | None, wanted: str) -> Any:
        value = self.data.get(key, default)
        if value is None:
            raise ConfigError(
                f"{self.owner}: {key} is missing, expected {wanted}. Is the file complete?"
            )
        return value
