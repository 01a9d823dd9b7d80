"""The same vocabularies in llama.cpp, once: the ids that it gave are those here.

`llama_cpp_ids.json` holds, for each vocabulary of `vocabularies` and each of its texts, what
llama.cpp's Node binding gave for a GGUF file with this metadata; the versions stand in it. The
ids of sentencepiece itself are compared in test_pieces.py.
"""

import json
from pathlib import Path

import pytest
from transformers import Qwen2Tokenizer

from jaxkv.spec.tokenizer import Tokenizer
from tests.spec.vocabularies import TEXTS, VOCABULARIES

THEIRS = json.loads((Path(__file__).parent / "llama_cpp_ids.json").read_text("utf-8"))["ids"]
APART = "cafe\N{COMBINING ACUTE ACCENT}"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_those_of_llama_cpp(name: str):
    tokenizer = Tokenizer.from_gguf(VOCABULARIES[name])

    ours = {text: tokenizer.encode(text, rendered=True) for text in TEXTS}

    theirs = dict(zip(TEXTS, THEIRS[name], strict=True))
    if name == "qwen2":
        # The tokenizer of the model itself composes accents, which llama.cpp leaves out.
        assert theirs.pop(APART) != ours.pop(APART)
    assert ours == theirs


def test_the_pre_tokenizers_cut_differently():
    ids = {name: str(rows) for name, rows in THEIRS.items()}

    assert len(set(ids.values())) == len(ids)


def test_qwen2_cuts_and_composes_as_its_own_tokenizer():
    metadata = VOCABULARIES["qwen2"]
    tokens, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = Qwen2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    ours = Tokenizer.from_gguf(metadata)
    plain = [text for text in TEXTS if not any(mark in text for mark in ("<", "\n\n\n"))]

    assert APART in plain
    for text in plain:
        assert ours.encode(text) == theirs.encode(text), text
