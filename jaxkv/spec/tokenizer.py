"""Text to token ids and back: tokenizer.json, byte-level BPE from GGUF metadata, or bare ids.

Source: llama.cpp, src/llama-vocab.cpp, the regular expressions of each `tokenizer.ggml.pre`.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxkv.spec.errors import ConfigError, RequestError

if TYPE_CHECKING:
    import tokenizers

_CONTROL, _USER_DEFINED = 3, 4


def _gpt2_pieces() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_pieces() -> Any:
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2_pieces()])


# "default" (and an absent key) is not gpt-2 to llama.cpp, but four expressions of its own: refused,
# not guessed.
_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {"gpt-2": _gpt2_pieces, "smollm": _smollm_pieces}
_NEUTRAL = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}


class Tokenizer:
    """Token ids of a text, as the model was trained on them.

    Args:
        backend: A tokenizer of the `tokenizers` library, complete with its decoder. What its
            post-processor says is added to a text (a start token, for many models).
    """

    def __init__(self, backend: "tokenizers.Tokenizer"):
        self._backend = backend

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Return the tokenizer that GGUF metadata describes.

        Args:
            metadata: The keys of the file that start with `tokenizer.`.

        Raises:
            ConfigError: A key is missing or contradicts another, or it asks for an unsupported
                tokenizer; each is named.
        """
        _require("tokenizer.ggml.model", metadata.get("tokenizer.ggml.model"), ["gpt2"])
        _require("tokenizer.ggml.pre", metadata.get("tokenizer.ggml.pre"), sorted(_PRE_TOKENIZERS))
        for key, value in _NEUTRAL.items():
            _require(key, metadata.get(key, value), [value])
        return cls(_byte_level_bpe(metadata))

    @classmethod
    def from_huggingface(cls, text: str) -> "Tokenizer":
        """Return the tokenizer that a `tokenizer.json` describes.

        A truncation or padding stored in it, which belongs to a call, is left out.

        Args:
            text: Of the whole file.

        Raises:
            ConfigError: The `tokenizers` library cannot read it.
        """
        import tokenizers

        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no other type
            raise ConfigError(
                f"Tokenizer.from_huggingface: tokenizer.json cannot be read: {str(error)[:200]}. "
                "Download it again."
            ) from None
        backend.no_truncation()
        backend.no_padding()
        return cls(backend)

    @property
    def vocab_size(self) -> int:
        """Number of tokens; the model's may be larger, padded."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Return the ids of a text; control tokens written out in it become their one id.

        Args:
            text: Anything.
            rendered: Whether it comes from `chat.render_chat`, which wrote out all the control
                tokens that belong there: then nothing is added.

        Raises:
            RequestError: The text cannot be written as UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"encode: text holds {text[error.start]!r} at {error.start}, expected UTF-8. "
                "Is the terminal's encoding UTF-8?"
            ) from None
        return self._backend.encode(text, add_special_tokens=not rendered).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens written out; U+FFFD for bytes that are no UTF-8.

        Raises:
            RequestError: An id is outside the vocabulary.
        """
        _check_ids(ids, self.vocab_size)
        return self._backend.decode(list(ids), skip_special_tokens=False)


class IdTokenizer:
    """The tokenizer of a model that has none: a text is decimal ids, separated by white space.

    Args:
        vocab_size: Number of ids; each is below it.
    """

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Return the ids in a text.

        Args:
            text: Decimal ids.
            rendered: Changes nothing; a model without tokenizer has no chat template.

        Raises:
            RequestError: A word is not the decimal number of an id.
        """
        for word in text.split():
            # Digits before int: int() of a word of thousands of digits refuses in its own words.
            small = word.isascii() and word.isdigit() and len(word) <= len(str(self.vocab_size))
            if not small or int(word) >= self.vocab_size:
                raise RequestError(
                    f"encode: text holds {word[:40]!r}, expected ids from 0 to "
                    f"{self.vocab_size - 1}, "
                    "separated by spaces. This model has no tokenizer; give numbers."
                )
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the ids as decimal numbers, separated by single spaces.

        Raises:
            RequestError: An id is outside the vocabulary.
        """
        _check_ids(ids, self.vocab_size)
        return " ".join(str(int(i)) for i in ids)


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    for i in ids:
        if not 0 <= i < vocab_size:
            raise RequestError(
                f"decode: ids holds {i}, expected ids from 0 to {vocab_size - 1}. "
                "Do tokenizer and model belong together?"
            )


def _require(key: str, value: Any, accepted: Sequence[Any]) -> None:
    if value not in accepted:
        raise ConfigError(
            f"Tokenizer.from_gguf: {key} is {reprlib.repr(value)}, expected "
            f"{' or '.join(map(repr, accepted))}. "
            "Take a checkpoint with a supported tokenizer, or work with token ids."
        )


def _byte_level_bpe(metadata: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Backend

    tokens, merges = _texts(metadata, "tokens"), _texts(metadata, "merges")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ConfigError(
            f"Tokenizer.from_gguf: tokenizer.ggml.tokens holds {len(vocab)} different tokens, "
            "expected "
            f"{len(tokens)}. Is the file damaged?"
        )
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for left, right in pairs:
        if not {left, right, left + right} <= vocab.keys():
            raise ConfigError(
                f"Tokenizer.from_gguf: tokenizer.ggml.merges holds {f'{left} {right}'!r}, "
                "expected two tokens "
                "that join to a token. Is the file damaged?"
            )
    backend = Backend(models.BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer = _PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]()
    backend.decoder = decoders.ByteLevel()
    kinds = _kinds(metadata, len(tokens))
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    backend.add_tokens([AddedToken(t, normalized=False) for t in defined])
    return backend


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    texts = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"Tokenizer.from_gguf: tokenizer.ggml.{key} is {type(texts).__name__}, expected a "
            "list of texts. "
            "Is the file complete?"
        )
    return texts


def _kinds(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * num_tokens)
    if not isinstance(kinds, list) or len(kinds) != num_tokens:
        given = len(kinds) if isinstance(kinds, list) else repr(kinds)
        raise ConfigError(
            f"Tokenizer.from_gguf: tokenizer.ggml.token_type has length {given}, expected "
            f"{num_tokens} "
            "(one a token). Is the file damaged?"
        )
    return kinds
