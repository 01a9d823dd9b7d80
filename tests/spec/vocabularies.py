"""Vocabularies of GGUF files, made of the commonest strings of a text, and texts to try them on.

Strings run across words, digits and line ends, so that it shows where a tokenizer cuts.
"""

from collections import Counter
from typing import Any

from tokenizers import pre_tokenizers

SOURCE = (
    "We'll say it's 1234 o'clock on 12.5.2024:  the theatre opens at 19:30!\n\n"
    "\tfor i in range(1000):\n\t\tprint(i, 'the end')  # don't stop\r\n"
    "the other theatre's 007 seats... they'RE theirs, the others' too; naïve café, Straße.   \n"
)
CONTROL = ["<s>", "</s>", "<|user|>", "<|end|>"]
DEFINED = ["<tool>", "<tool>x", "\n\n\n"]
TEXTS = [
    "",
    " ",
    "the theatre",
    " the theatre ",
    "  two   three    four",
    "it's they'RE WE'LL o'clock",
    "1 12 123 1234 12345",
    "range(1000):\n\t\tprint(i)",
    "tabs\t\tand\r\n\r\nends \n \n\n  x",
    "!!!...?!\n--",
    "naïve café Straße",
    # The same with its accents apart.
    "cafe\N{COMBINING ACUTE ACCENT}",
    "日本語と English と emoji 😀🎉",
    "\N{LOWER ONE EIGHTH BLOCK}the",
    "<s>the end</s>",
    "<|user|> the other <|end|>\nthe",
    "the<tool>the <tool>x the<tool>",
    "a\n\n\n\nb\n\n\n\n\n\nc",
    "<0x41><unk>",
    "\N{ZERO WIDTH JOINER}\x00\x7f",
]
PRE = ("gpt-2", "llama-bpe", "qwen2", "smollm")


def common(text: str, count: int) -> list[str]:
    """Return the commonest strings of 2 to 5 characters, in a fixed order."""
    found: Counter[str] = Counter()
    for size in range(2, 6):
        found.update(text[i : i + size] for i in range(len(text) - size + 1))
    return sorted(found, key=lambda string: (-found[string], len(string), string))[:count]


def sentencepiece(**more: Any) -> dict[str, Any]:
    """Return the metadata of a vocabulary with scores: bytes, letters, strings, some unused."""
    text = SOURCE.replace(" ", "▁")
    strings = common(text, 300)
    tokens = ["<unk>", *CONTROL, *DEFINED, *(f"<0x{i:02X}>" for i in range(256)), *strings]
    letters = sorted(set(text) - set(tokens))
    kinds = [2] + [3] * len(CONTROL) + [4] * len(DEFINED) + [6] * 256 + [1] * len(strings)
    # Strings of one count are of one score.
    scores = [0.0] * (len(tokens) - len(strings)) + [-float(i // 3) for i in range(len(strings))]
    return keys(
        {
            "model": "llama",
            "pre": "default",
            "tokens": tokens + letters,
            "token_type": kinds + [1] * len(letters),
            "scores": scores + [-1000.0] * len(letters),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            "add_bos_token": True,
        }
        | more
    )


def byte_level(pre: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a vocabulary with merges, each string from its first characters."""
    ((text, _),) = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(SOURCE)
    tokens = [*CONTROL, *DEFINED, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for string in common(text, 300):
        if string[:-1] in tokens:
            tokens.append(string)
            merges.append(f"{string[:-1]} {string[-1]}")
    return keys(
        {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": [3] * len(CONTROL) + [4] * len(DEFINED) + [1] * (len(tokens) - 7),
            "merges": merges,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
        | more
    )


def keys(short: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata under its whole names; None leaves a key out."""
    return {f"tokenizer.ggml.{key}": each for key, each in short.items() if each is not None}


VOCABULARIES = {
    "sentencepiece": sentencepiece(),
    "sentencepiece-no-space": sentencepiece(add_space_prefix=False),
    **{pre: byte_level(pre) for pre in PRE},
}
"""Name -> metadata."""
