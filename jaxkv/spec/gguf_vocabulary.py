"""The vocabulary in GGUF metadata: each key `tokenizer.*` is read, without effect, or refused.

Source: the keys of `gguf.constants` (gguf 0.19), and what llama.cpp, src/llama-vocab.cpp, makes of
those that are absent.
"""

import difflib
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.errors import ConfigError

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
"""Kinds of tokens that are no ordinary ones (1)."""
READ = {
    "chat_template",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.add_space_prefix",
    "ggml.bos_token_id",
    "ggml.eom_token_id",
    "ggml.eos_token_id",
    "ggml.eot_token_id",
    "ggml.merges",
    "ggml.model",
    "ggml.padding_token_id",
    "ggml.pre",
    "ggml.scores",
    "ggml.token_type",
    "ggml.tokens",
    "ggml.unknown_token_id",
}
"""Keys, without `tokenizer.`, that a tokenizer, `chat` or a checkpoint's ends are made of."""
IGNORED = {
    "chat_templates": "names of the templates, each of which has a key of its own",
    "ggml.add_mask_token": "of an encoder",
    "ggml.add_sep_token": "of an encoder",
    "ggml.cls_token_id": "of an encoder",
    "ggml.fim_mid_token_id": "of texts with a gap, which the caller writes",
    "ggml.fim_pad_token_id": "of texts with a gap, which the caller writes",
    "ggml.fim_pre_token_id": "of texts with a gap, which the caller writes",
    "ggml.fim_rep_token_id": "of texts with a gap, which the caller writes",
    "ggml.fim_sep_token_id": "of texts with a gap, which the caller writes",
    "ggml.fim_suf_token_id": "of texts with a gap, which the caller writes",
    "ggml.mask_token_id": "of an encoder",
    "ggml.middle_token_id": "of texts with a gap, which the caller writes",
    "ggml.prefix_token_id": "of texts with a gap, which the caller writes",
    "ggml.seperator_token_id": "of an encoder",
    "ggml.suffix_token_id": "of texts with a gap, which the caller writes",
    "ggml.token_type_count": "of an encoder",
    "huggingface.json": "another form of the same tokenizer",
}
"""Key, without `tokenizer.`, that changes nothing, and why."""
NEUTRAL: dict[str, Any] = {
    "ggml.precompiled_charsmap": [],
    "ggml.remove_extra_whitespaces": False,
}
"""Key, without `tokenizer.`, that changes ids unless it holds this value."""
_TEMPLATE = "tokenizer.chat_template."


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, and which of them open and close a text.

    Attributes:
        tokens: Text of each id; pairwise different.
        kinds: 1 for an ordinary token, else one of the kinds above.
        before: Ids that every text starts with.
        after: Ids that every text ends with.
    """

    tokens: list[str]
    kinds: list[int]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def of_kinds(self, *kinds: int) -> list[str]:
        """Return the texts of all tokens of these kinds that have one."""
        pairs = zip(self.tokens, self.kinds, strict=True)
        return [token for token, kind in pairs if kind in kinds and token]


def read_vocabulary(metadata: Mapping[str, Any], *, starts: bool) -> Vocabulary:
    """Return the vocabulary that metadata describes.

    Args:
        metadata: The keys of the file that start with `tokenizer.`.
        starts: Whether a text starts with the start token where the file does not say.

    Raises:
        ConfigError: A key is unknown, missing, or contradicts another; each is named.
    """
    check_keys(metadata)
    tokens = texts(metadata, "tokens")
    if len(set(tokens)) != len(tokens):
        raise ConfigError(
            f"Tokenizer.from_gguf: tokenizer.ggml.tokens holds {len(set(tokens))} different "
            f"tokens, expected {len(tokens)}. Is the file damaged?"
        )
    before, after = (
        (special_id(metadata, name, len(tokens)),)
        if flag(metadata, f"add_{name}_token", default)
        else ()
        for name, default in (("bos", starts), ("eos", False))
    )
    return Vocabulary(tokens, numbers(metadata, "token_type", len(tokens), 1), before, after)


def check_keys(metadata: Mapping[str, Any]) -> None:
    """Refuse every key of a tokenizer that nobody reads, and what would change its ids.

    Raises:
        ConfigError: A key is unknown, or holds another value than the only supported one.
    """
    for key in metadata:
        short = key.removeprefix("tokenizer.")
        if short == key or short in READ or short in IGNORED or key.startswith(_TEMPLATE):
            continue
        if short not in NEUTRAL:
            near = nearest(short, READ)
            hint = f"Did you mean {near!r}?" if near else "Take a checkpoint without it."
            raise fault(key, metadata[key], "no such key (it may change ids)", hint)
        require(key, metadata[key], [NEUTRAL[short]])


def nearest(given: str, known: Collection[str]) -> str | None:
    """Return the known name that a given one resembles most, or None."""
    near = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.6)
    return near[0] if near else None


def require(key: str, value: Any, accepted: Collection[Any]) -> None:
    """Refuse a value that is not supported; the nearest supported one is named.

    Raises:
        ConfigError: It is none of those accepted.
    """
    if value in accepted:
        return
    near = nearest(value, accepted) if isinstance(value, str) else None
    hint = f"Did you mean {near!r}? Else t" if near else "T"
    raise fault(
        key,
        value,
        " or ".join(map(repr, accepted)),
        f"{hint}ake a checkpoint with a supported tokenizer, or work with token ids.",
    )


def fault(key: str, value: Any, wanted: str, advice: str) -> ConfigError:
    """Return the error for a value, to be raised."""
    return ConfigError(
        f"Tokenizer.from_gguf: {key} is {reprlib.repr(value)}, expected {wanted}. {advice}"
    )


def texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts.

    Raises:
        ConfigError: It is missing or something else.
    """
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(
            f"Tokenizer.from_gguf: tokenizer.ggml.{name} is {type(found).__name__}, expected a "
            "list of texts. Is the file complete?"
        )
    return found


def numbers(
    metadata: Mapping[str, Any], name: str, size: int, default: int | None = None
) -> list[Any]:
    """Return a list of one number a token.

    Args:
        metadata: Of the file.
        name: Of the key.
        size: Number of tokens.
        default: Of every token where the list is missing; None refuses that.

    Raises:
        ConfigError: It is missing without a default, or has another length.
    """
    key = f"tokenizer.ggml.{name}"
    found = metadata.get(key, None if default is None else [default] * size)
    if not isinstance(found, list) or len(found) != size:
        given = len(found) if isinstance(found, list) else repr(found)
        raise ConfigError(
            f"Tokenizer.from_gguf: {key} has length {given}, expected {size} (one a token). "
            "Is the file damaged?"
        )
    return found


def flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a truth value.

    Raises:
        ConfigError: It is something else.
    """
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise fault(key, value, "True or False", "Is the file damaged?")
    return value


def special_id(
    metadata: Mapping[str, Any],
    name: str,
    size: int,
    default: int | None = None,
) -> int:
    """Return the id of a token with a part of its own: "bos", "eos" or "unknown".

    Raises:
        ConfigError: It is missing without a default, or outside the vocabulary.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key, default)
    if not isinstance(value, int) or not 0 <= value < size:
        raise fault(key, value, f"an id below {size}", "Is the file complete?")
    return value
