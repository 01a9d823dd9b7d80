"""Tokenizers: the real one's tests are in test_smollm2.py; here a small one, and bare ids."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxkv.spec.errors import ConfigError, RequestError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.source import open_source, open_tokenizer
from jaxkv.spec.tokenizer import IdTokenizer, Tokenizer

WriteHf = Callable[..., Path]
TOKENS = ["<end>", "<tool>", "a", "b", "1", "2", "Ġ", "12", "Ġa", "ab", "ĠĠ"]
DATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 4] + [1] * 9,
    "tokenizer.ggml.merges": ["1 2", "Ġ a", "a b", "Ġ Ġ"],
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.eos_token_id": 0,
}


@pytest.mark.parametrize(
    ("pre", "ids"),
    [
        pytest.param("smollm", [8, 3, 4, 5], id="smollm-splits-digits"),
        pytest.param("gpt-2", [8, 3, 7], id="gpt-2-keeps-numbers"),
    ],
)
def test_pre_tokenizer_decides_what_may_merge(pre: str, ids: list[int]):
    tokenizer = Tokenizer.from_gguf(DATA | {"tokenizer.ggml.pre": pre})

    assert tokenizer.encode(" ab12") == ids


def test_control_and_user_defined_tokens_are_recognized_inside_text():
    tokenizer = Tokenizer.from_gguf(DATA)

    assert tokenizer.encode("a<end>b<tool>") == [2, 0, 3, 1]
    assert tokenizer.decode([2, 0, 3, 1]) == "a<end>b<tool>"


def test_start_and_end_are_added_where_the_file_says_so_but_not_to_a_rendered_chat():
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_gguf(DATA | both | {"tokenizer.ggml.bos_token_id": 1})

    assert tokenizer.encode("ab") == [1, 9, 0]
    assert tokenizer.encode("ab", rendered=True) == [9]


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [1, 9]), ("gpt-2", [9])])
def test_some_pre_tokenizers_start_a_text_where_the_file_is_silent(pre: str, ids: list[int]):
    more = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 1}
    data = {k: v for k, v in (DATA | more).items() if k != "tokenizer.ggml.add_bos_token"}

    assert Tokenizer.from_gguf(data).encode("ab") == ids


@pytest.mark.parametrize("model", ["none", "no_vocab", None])
def test_a_file_without_vocabulary_speaks_in_ids(
    model: str | None, write_gguf: Callable[..., Path]
):
    checkpoint = read_gguf(write_gguf({"tokenizer.ggml.model": model}))

    assert open_tokenizer(checkpoint).encode("7 96") == [7, 96]


def test_vocab_size_counts_every_token_once():
    assert Tokenizer.from_gguf(DATA).vocab_size == 11


@pytest.mark.parametrize("ids", [[2, 11], [-1]], ids=["past-the-end", "negative"])
def test_id_outside_the_vocabulary_is_refused(ids: list[int]):
    with pytest.raises(RequestError) as error:
        Tokenizer.from_gguf(DATA).decode(ids)

    assert str(error.value) == (
        f"decode: ids holds {ids[-1]}, expected ids from 0 to 10. "
        "Do tokenizer and model belong together?"
    )


OTHERS = "Take a checkpoint with a supported tokenizer, or work with token ids."
PRE = (
    "'deepseek-r1-qwen' or 'gpt-2' or 'llama-bpe' or 'llama-v3' or 'llama3' or 'qwen2' or 'smollm'"
)
REFUSED = [
    pytest.param(
        {"tokenizer.ggml.model": "t5"},
        f"tokenizer.ggml.model is 't5', expected 'gpt2' or 'llama'. {OTHERS}",
        id="model",
    ),
    pytest.param(
        {"tokenizer.ggml.pre": "qwen35"},
        f"tokenizer.ggml.pre is 'qwen35', expected {PRE}. Did you mean 'qwen2'? Else take a "
        "checkpoint with a supported tokenizer, or work with token ids.",
        id="pre",
    ),
    pytest.param(
        {"tokenizer.ggml.pre": None},
        f"tokenizer.ggml.pre is None, expected {PRE}. {OTHERS}",
        id="no-pre",
    ),
    pytest.param(
        {"tokenizer.ggml.add_bos_token": True},
        "tokenizer.ggml.bos_token_id is None, expected an id below 11. Is the file complete?",
        id="bos",
    ),
    pytest.param(
        {"tokenizer.ggml.add_eos_token": 1},
        "tokenizer.ggml.add_eos_token is 1, expected True or False. Is the file damaged?",
        id="flag",
    ),
    pytest.param(
        {"tokenizer.ggml.add_bos_tokens": True},
        "tokenizer.ggml.add_bos_tokens is True, expected no such key (it may change ids). "
        "Did you mean 'ggml.add_bos_token'?",
        id="unknown-key",
    ),
    pytest.param(
        {"tokenizer.ggml.precompiled_charsmap": [1]},
        f"tokenizer.ggml.precompiled_charsmap is [1], expected []. {OTHERS}",
        id="normalizes",
    ),
    pytest.param(
        {"tokenizer.ggml.merges": None},
        "tokenizer.ggml.merges is NoneType, expected a list of texts. Is the file complete?",
        id="no-merges",
    ),
    pytest.param(
        {"tokenizer.ggml.merges": ["a 1"]},
        "tokenizer.ggml.merges holds 'a 1', expected two tokens that join to a token. "
        "Is the file damaged?",
        id="merge",
    ),
    pytest.param(
        {"tokenizer.ggml.tokens": [*TOKENS[:-1], "a"]},
        "tokenizer.ggml.tokens holds 10 different tokens, expected 11. Is the file damaged?",
        id="twice",
    ),
    pytest.param(
        {"tokenizer.ggml.token_type": [1, 1]},
        "tokenizer.ggml.token_type has length 2, expected 11 (one a token). Is the file damaged?",
        id="types",
    ),
]


@pytest.mark.parametrize(("change", "fact"), REFUSED)
def test_unsupported_tokenizer_is_refused_by_name(change: Mapping[str, Any], fact: str):
    with pytest.raises(ConfigError) as error:
        Tokenizer.from_gguf(DATA | dict(change))

    assert str(error.value) == f"Tokenizer.from_gguf: {fact}"


def test_tokenizer_travels_through_a_file(write_gguf: Callable[..., Path]):
    checkpoint = read_gguf(write_gguf(DATA))

    assert checkpoint.tokenizer_data == DATA | {"general.architecture": "llama"}
    assert open_tokenizer(checkpoint).encode(" ab12") == [8, 3, 4, 5]


def test_tokenizer_larger_than_the_model_is_refused(write_gguf: Callable[..., Path]):
    more = DATA | {"tokenizer.ggml.tokens": [*TOKENS, *(f"t{i}" for i in range(87))]}
    checkpoint = read_gguf(write_gguf(more | {"tokenizer.ggml.token_type": [1] * 98}))

    with pytest.raises(ConfigError) as error:
        open_tokenizer(checkpoint)

    assert str(error.value) == (
        "open_tokenizer: the tokenizer has 98 tokens, expected at most the model's 97 "
        "(config.vocab_size). "
        "Do tokenizer and model belong together?"
    )


def test_preset_speaks_in_ids():
    tokenizer = open_tokenizer(open_source("reference"))

    assert isinstance(tokenizer, IdTokenizer)
    assert tokenizer.vocab_size == 19


@given(ids=st.lists(st.integers(0, 18)))
def test_ids_survive_their_text(ids: list[int]):
    tokenizer = IdTokenizer(19)

    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_any_white_space_separates_ids():
    assert IdTokenizer(19).encode(" 3\t07\n18 ") == [3, 7, 18]


@pytest.mark.parametrize("word", ["hello", "-1", "1.5", "19", "٣", "1_0", "²", "9" * 5000])
def test_word_that_is_no_id_is_refused(word: str):
    with pytest.raises(RequestError) as error:
        IdTokenizer(19).encode(f"3 {word}")

    assert str(error.value) == (
        f"encode: text holds {word[:40]!r}, expected ids from 0 to 18, separated by spaces. "
        "This model has no tokenizer; give numbers."
    )


def test_id_tokenizer_refuses_an_id_outside_its_vocabulary():
    with pytest.raises(RequestError) as error:
        IdTokenizer(19).decode([3, 19])

    assert str(error.value) == (
        "decode: ids holds 19, expected ids from 0 to 18. Do tokenizer and model belong together?"
    )


def tokenizer_json(*, start: bool = False) -> str:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    backend = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    if start:
        backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    return backend.to_str()


def test_tokenizer_json_is_read_without_its_truncation_and_padding(
    hf_directory: WriteHf,
):
    checkpoint = read_huggingface(hf_directory(files={"tokenizer.json": tokenizer_json()}))

    assert open_tokenizer(checkpoint).encode("a b b <s> c") == [1, 2, 2, 0, 3]


def test_start_token_of_tokenizer_json_is_added_but_not_to_a_rendered_chat(
    hf_directory: WriteHf,
):
    files = {"tokenizer.json": tokenizer_json(start=True)}
    tokenizer = open_tokenizer(read_huggingface(hf_directory(files=files)))

    assert tokenizer.encode("a b") == [0, 1, 2]
    assert tokenizer.encode("<s> a b", rendered=True) == [0, 1, 2]


def test_damaged_tokenizer_json_is_refused(hf_directory: WriteHf):
    checkpoint = read_huggingface(hf_directory(files={"tokenizer.json": "{}"}))

    with pytest.raises(ConfigError, match=r"tokenizer.json cannot be read: .* Download it again\."):
        open_tokenizer(checkpoint)
