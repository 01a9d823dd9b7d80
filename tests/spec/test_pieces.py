"""Vocabularies without merges: the ids of sentencepiece itself, on vocabularies drawn at random.

A sentencepiece model is a short message in protobuf's wire format, so that a test can write one
with any pieces, scores and kinds: ties, pieces that are never given out, pieces out of anything.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxkv.spec.errors import ConfigError, RequestError
from jaxkv.spec.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES = [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]
LETTERS = "ab▁é\n"
Rows = Sequence[tuple[str, float, int]]


def varint(number: int) -> bytes:
    high = number >> 7
    return bytes([number & 127 | 128]) + varint(high) if high else bytes([number])


def field(number: int, value: str | bytes | float | int) -> bytes:
    """Return one field of a message in protobuf's wire format."""
    match value:
        case float():
            return varint(number << 3 | 5) + struct.pack("<f", value)
        case int():
            return varint(number << 3) + varint(value)
        case str():
            return field(number, value.encode())
        case _:
            return varint(number << 3 | 2) + varint(len(value)) + value


def their(rows: Rows, *, prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """Return sentencepiece's own BPE over these tokens, which normalizes nothing."""
    pieces = (field(1, token) + field(2, score) + field(3, kind) for token, score, kind in rows)
    with_bytes = any(kind == BYTE for _, _, kind in rows)
    trainer = field(3, 2) + field(35, int(with_bytes))
    normalizer = field(1, "identity") + field(3, int(prefix)) + field(4, 0) + field(5, 1)
    message = b"".join(field(1, piece) for piece in pieces)
    return sentencepiece.SentencePieceProcessor(
        model_proto=message + field(2, trainer) + field(3, normalizer)
    )


def data(rows: Rows, **more: Any) -> dict[str, Any]:
    """Return the metadata of a GGUF file with these tokens; None leaves a key out."""
    tokens, scores, kinds = map(list, zip(*rows, strict=True))
    lists = {"tokens": tokens, "scores": scores, "token_type": kinds}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    keys = {"model": "llama", "add_bos_token": False, **lists, **ids, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def ours(rows: Rows, *, prefix: bool = True, **more: Any) -> Tokenizer:
    return Tokenizer.from_gguf(data(rows, add_space_prefix=prefix, **more))


@st.composite
def vocabularies(draw: st.DrawFn, kinds: Sequence[int]) -> Rows:
    """Draw tokens with few different scores, so that many are equal; all letters are tokens."""
    words = st.text(LETTERS, min_size=2, max_size=4)
    drawn = draw(st.lists(words, min_size=3, max_size=24, unique=True))
    rows = [(word, float(draw(st.integers(-4, 0))), draw(st.sampled_from(kinds))) for word in drawn]
    letters = [(letter, -9.0, NORMAL) for letter in LETTERS]
    return [*SPECIAL, *(BYTES if draw(st.booleans()) else ()), *rows, *letters]


MANY = settings(max_examples=200, deadline=None)
TEXTS = st.text([*LETTERS, " ", "x", "€"], max_size=24)


@MANY
@given(rows=vocabularies([NORMAL]), text=TEXTS, prefix=st.booleans())
def test_ids_are_those_of_sentencepiece(rows: Rows, text: str, prefix: bool):
    assert ours(rows, prefix=prefix).encode(text) == their(rows, prefix=prefix).encode(text)


@MANY
@given(rows=vocabularies([NORMAL, UNUSED]), text=TEXTS)
def test_pieces_that_are_never_given_out_are_split_as_they_were_joined(rows: Rows, text: str):
    assert ours(rows).encode(text) == their(rows, prefix=True).encode(text)


@MANY
@given(rows=vocabularies([NORMAL, NORMAL, USER_DEFINED]), text=st.text("abé\nx€", max_size=24))
def test_pieces_that_users_define_are_found_before_anything_merges(rows: Rows, text: str):
    assert ours(rows, prefix=False).encode(text) == their(rows, prefix=False).encode(text)


@MANY
@given(rows=vocabularies([NORMAL]), text=TEXTS)
def test_ids_become_the_text_again_behind_its_space(rows: Rows, text: str):
    tokenizer = ours([*SPECIAL, *BYTES, *rows[len(SPECIAL) :][-len(LETTERS) :]])
    spaced = text.replace("▁", " ")

    assert tokenizer.decode(tokenizer.encode(text)) == (f" {spaced}" if text else "")


PLAIN = [*SPECIAL, *BYTES, ("<user>", 0.0, CONTROL), ("<tool>", 0.0, USER_DEFINED)]
PLAIN += [(letter, -9.0, NORMAL) for letter in "▁ab"] + [("▁a", -1.0, NORMAL)]
USER, TOOL, SPACE, A, B, SPACE_A = range(259, 265)


def test_special_tokens_are_found_in_a_text_and_followed_by_a_space():
    tokenizer = ours(PLAIN)

    assert tokenizer.encode("a<user>a<tool>b") == [SPACE_A, USER, SPACE_A, TOOL, SPACE, B]
    assert tokenizer.decode([SPACE_A, USER, A, TOOL, B]) == " a<user>a<tool>b"


@pytest.mark.parametrize(
    ("arch", "ids"), [("llama", [USER, SPACE, 3 + 10, A]), ("phi3", [USER, SPACE_A])]
)
def test_special_tokens_of_phi3_take_white_space_along(arch: str, ids: list[int]):
    tokenizer = Tokenizer.from_gguf(data(PLAIN) | {"general.architecture": arch})

    assert tokenizer.encode("<user>\na") == ids


def test_a_text_starts_with_the_start_token_unless_the_file_or_the_caller_says_no():
    assert ours(PLAIN, add_bos_token=None).encode("a") == [1, SPACE_A]
    assert ours(PLAIN, add_bos_token=None).encode("a", rendered=True) == [SPACE_A]
    assert ours(PLAIN, add_eos_token=True).encode("a") == [SPACE_A, 2]
    assert ours(PLAIN).encode("a") == [SPACE_A]


def test_ids_that_a_file_leaves_out_are_the_usual_ones():
    left_out = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id"))
    rows = [row for row in PLAIN if row[2] != BYTE]
    tokenizer = ours(rows, add_bos_token=True, add_eos_token=True, **left_out)

    assert tokenizer.encode("a€x") == [1, len(rows) - 1, 0, 2]


def test_bytes_that_are_no_text_yet_are_shown_as_such():
    ids = ours(PLAIN, prefix=False).encode("€")

    assert ids == [3 + byte for byte in "€".encode()]
    assert [ours(PLAIN).decode(ids[:size]) for size in (1, 3)] == ["\N{REPLACEMENT CHARACTER}", "€"]


def test_a_byte_written_out_is_text():
    rows = [*PLAIN, ("<0x41", -1.0, NORMAL)]
    rows += [("<0x41"[:size], -2.0, NORMAL) for size in range(1, 5)]
    rows += [(letter, -9.0, NORMAL) for letter in "0x41>"]

    ids = ours(rows, prefix=False).encode("<0x41>")

    assert [rows[i][0] for i in ids] == ["<0x41", ">"]
    assert ids == their(rows, prefix=False).encode("<0x41>")


def test_half_a_million_characters_take_seconds():
    assert len(ours(PLAIN).encode("ab" * 250_000)) == 500_000


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ({"scores": None}, "scores has length None, expected 265 (one a token). Is the file"),
        ({"scores": [1.0]}, "scores has length 1, expected 265 (one a token). Is the file"),
        ({"unknown_token_id": 265}, "unknown_token_id is 265, expected an id below 265. Is the"),
        ({"token_type": [BYTE] * 265}, "tokens is '<unk>', expected a byte such as '<0x0A>'. Is"),
        ({"add_space_prefix": 1}, "add_space_prefix is 1, expected True or False. Is the file"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is True, expected False"),
    ],
    ids=["no-scores", "scores", "unknown", "byte", "space", "white-space"],
)
def test_a_vocabulary_that_is_damaged_or_different_is_refused(more: dict[str, Any], fact: str):
    with pytest.raises(ConfigError) as error:
        Tokenizer.from_gguf(data(PLAIN, **more))

    assert str(error.value).startswith(f"Tokenizer.from_gguf: tokenizer.ggml.{fact}")


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="decode: ids holds 265, expected ids from 0 to 264"):
        ours(PLAIN).decode([265])
