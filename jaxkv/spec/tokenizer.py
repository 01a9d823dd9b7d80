"""Text to token ids and back: tokenizer.json, the vocabulary of a GGUF file, or bare ids.

Source: llama.cpp, src/llama-vocab.cpp, for ids that a file does not state and phi3's white space.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxkv.spec import byte_level
from jaxkv.spec.errors import ConfigError, RequestError
from jaxkv.spec.gguf_vocabulary import (
    CONTROL,
    USER_DEFINED,
    Vocabulary,
    flag,
    numbers,
    read_vocabulary,
    require,
    special_id,
)
from jaxkv.spec.pieces import Pieces


class Backend(Protocol):
    """What a tokenizer is built on."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        ...

    def encode(self, text: str, *, rendered: bool) -> list[int]:
        """Return the ids of a text; a rendered one gets no tokens that it does not write out."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        ...


class Tokenizer:
    """Token ids of a text, as the model was trained on them.

    Args:
        backend: Of the model.
        before: Ids that a text starts with unless it is rendered.
        after: Ids that a text ends with unless it is rendered.
    """

    def __init__(self, backend: Backend, *, before: Sequence[int] = (), after: Sequence[int] = ()):
        self._backend, self._before, self._after = backend, tuple(before), tuple(after)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Return the tokenizer that GGUF metadata describes.

        Args:
            metadata: The keys of the file that start with `tokenizer.`, and
                `general.architecture` if it is known.

        Raises:
            ConfigError: A key is missing or contradicts another, or it asks for an unsupported
                tokenizer; each is named.
        """
        model = metadata.get("tokenizer.ggml.model")
        require("tokenizer.ggml.model", model, sorted(_GGUF_MODELS))
        return _GGUF_MODELS[str(model)](metadata)

    @classmethod
    def from_huggingface(cls, text: str) -> "Tokenizer":
        """Return the tokenizer that a `tokenizer.json` describes.

        A truncation or padding stored in it, which belongs to a call, is left out. What its
        post-processor says is added to a text (a start token, for many models).

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
        return cls(byte_level.Library(backend))

    @property
    def vocab_size(self) -> int:
        """Number of tokens; the model's may be larger, padded."""
        return self._backend.vocab_size

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
        ids = self._backend.encode(text, rendered=rendered)
        return ids if rendered else [*self._before, *ids, *self._after]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens written out; U+FFFD for bytes that are no UTF-8.

        Raises:
            RequestError: An id is outside the vocabulary.
        """
        _check_ids(ids, self.vocab_size)
        return self._backend.decode([int(i) for i in ids])


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


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    pre = byte_level.pre_tokenizer(metadata)
    vocabulary = read_vocabulary(metadata, starts=pre.starts)
    backend = byte_level.build(metadata, vocabulary, pre)
    return Tokenizer(backend, before=vocabulary.before, after=vocabulary.after)


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    # The ids that llama.cpp assumes of a file that does not state them.
    usual = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    vocabulary = read_vocabulary(usual | dict(metadata), starts=True)
    size = len(vocabulary.tokens)
    backend = Pieces(
        vocabulary,
        numbers(metadata, "scores", size),
        unknown_id=special_id(metadata, "unknown", size, 0),
        space_prefix=flag(metadata, "add_space_prefix", True),
        swallowing=_swallowing(metadata, vocabulary),
    )
    return Tokenizer(backend, before=vocabulary.before, after=vocabulary.after)


def _swallowing(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[str]:
    """Return the special tokens that take white space along: phi3's, which no key says."""
    if metadata.get("general.architecture") != "phi3":
        return []
    special = vocabulary.of_kinds(CONTROL, USER_DEFINED)
    return [token for token in special if token not in ("<s>", "<|endoftext|>")]


_GGUF_MODELS = {"gpt2": _byte_level, "llama": _sentencepiece}
