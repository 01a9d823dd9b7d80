"""Byte-level BPE: merges of a GGUF file, or a tokenizer.json, by the `tokenizers` library.

Source: llama.cpp, src/llama-vocab.cpp, the regular expressions of each `tokenizer.ggml.pre`, and
what each of them implies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxkv.spec.errors import ConfigError
from jaxkv.spec.gguf_vocabulary import CONTROL, USER_DEFINED, Vocabulary, require, texts

if TYPE_CHECKING:
    import tokenizers

# A contraction, letters with one sign before them, digits, signs with line ends, line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Library:
    """A tokenizer of the `tokenizers` library, complete with its decoder.

    Args:
        backend: What its post-processor says is added to a text that is not rendered.
    """

    def __init__(self, backend: "tokenizers.Tokenizer"):
        self._backend = backend

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Return the ids of a text."""
        return self._backend.encode(text, add_special_tokens=not rendered).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._backend.decode(list(ids), skip_special_tokens=False)


@dataclass(frozen=True)
class Pre:
    """What is done before merging, by the name that a file gives it.

    Attributes:
        pieces: Makes the splitter, inside whose pieces alone tokens merge.
        starts: Whether a text starts with the start token where the file does not say.
        whole_words: Whether a piece that is a token is that token, whatever its merges give.
        composed: Whether letters and their accents are composed first.
    """

    pieces: Callable[[], Any]
    starts: bool = False
    whole_words: bool = False
    composed: bool = False


def _gpt2_pieces() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_pieces() -> Any:
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2_pieces()])


def _word_pieces(digits: str) -> Callable[[], Any]:
    def make() -> Any:
        from tokenizers import Regex, pre_tokenizers

        words = pre_tokenizers.Split(Regex(_WORDS.format(digits=digits)), "isolated")
        return pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    return make


_LLAMA3 = Pre(_word_pieces(r"\p{N}{1,3}"), starts=True, whole_words=True)
_QWEN2 = Pre(_word_pieces(r"\p{N}"), composed=True)
# "default" (and an absent key) is not gpt-2 to llama.cpp, but four expressions of its own: refused,
# not guessed.
_PRE_TOKENIZERS = {
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": Pre(_gpt2_pieces),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": Pre(_smollm_pieces),
}


def pre_tokenizer(metadata: Mapping[str, Any]) -> Pre:
    """Return what a file says is done before merging.

    Raises:
        ConfigError: It says something that is not supported, or nothing.
    """
    name = metadata.get("tokenizer.ggml.pre")
    require("tokenizer.ggml.pre", name, sorted(_PRE_TOKENIZERS))
    return _PRE_TOKENIZERS[str(name)]


def build(metadata: Mapping[str, Any], vocabulary: Vocabulary, pre: Pre) -> Library:
    """Return the tokenizer of a file's vocabulary and merges.

    Raises:
        ConfigError: The merges are missing, or one of them does not give a token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = _merges(metadata, vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.whole_words))
    if pre.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre.pieces()
    backend.decoder = decoders.ByteLevel()
    control, defined = vocabulary.of_kinds(CONTROL), vocabulary.of_kinds(USER_DEFINED)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    backend.add_tokens([AddedToken(t, normalized=False) for t in defined])
    return Library(backend)


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = texts(metadata, "merges")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for left, right in pairs:
        if not {left, right, left + right} <= vocab.keys():
            raise ConfigError(
                f"Tokenizer.from_gguf: tokenizer.ggml.merges holds {f'{left} {right}'!r}, "
                "expected two tokens that join to a token. Is the file damaged?"
            )
    return pairs
