"""The trained checkpoint of our own: its bytes, its tokenizer, and what transformers makes of it.

`bench/train_tiny.py` made it; jaxkv/spec/data/README.md says from what.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import jaxkv.spec

DATA = Path(jaxkv.spec.__file__).parent / "data"
VERSE = "In the beginning God created the heaven and the earth."
SHA256 = {
    "config.json": "df73bdaf6207ca408650454089195a07d855d07e23d7abe47c03c37a07732617",
    "generation_config.json": "87b2946e21ba79dc0b281bf4b229dc985b630c6a477036ed0807f9daa611b8da",
    "model.safetensors": "afa8741cee9383904557996eef7d281a3a1cddca5040c8bfeb07c65a72d8108d",
    "tokenizer.json": "25c679c37d4a3db7337b95b1ddb391d879651f61f1ab657e7bf182cd926aaf52",
    "tokenizer_config.json": "e1a88b2a25e085e600920e49f1b03e4652e47278b4cd3d2f94220ffb7939dab4",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DATA / "tokenizer.json"))


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        DATA, dtype=torch.float32, attn_implementation="eager"
    )
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def readme() -> str:
    return (DATA / "README.md").read_text("utf-8")


def test_folder_is_smaller_than_two_megabytes():
    sizes = {path.name: path.stat().st_size for path in DATA.iterdir()}

    assert sum(sizes.values()) < 2_000_000, sizes


def test_folder_holds_nothing_unlisted():
    names = {path.name for path in DATA.iterdir()}

    assert names == {*SHA256, "README.md"}


@pytest.mark.parametrize("name", sorted(SHA256))
def test_file_is_the_one_that_was_trained(name: str):
    assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == SHA256[name]


def test_readme_lists_every_file_with_its_hash(readme: str):
    listed = dict(re.findall(r"^\| (\S+\.\w+) \| .*`([0-9a-f]{64})` \|$", readme, re.MULTILINE))

    assert listed == SHA256


@given(st.text())
def test_every_text_comes_back(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@given(st.text())
def test_ids_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str):
    assert tokenizer.encode(text).ids == list(text.encode())


def test_script_makes_the_same_tokenizer(tokenizer: Tokenizer):
    from bench import train_tiny

    made = train_tiny.byte_tokenizer()

    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.encode(VERSE).ids == tokenizer.encode(VERSE).ids


def test_transformers_has_the_same_tokenizer():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DATA)

    assert len(tokenizer) == 256
    assert tokenizer(VERSE)["input_ids"] == list(VERSE.encode())
    assert tokenizer.decode(tokenizer(VERSE)["input_ids"]) == VERSE


def test_end_token_is_the_newline():
    for name in ("config.json", "generation_config.json"):
        assert json.loads((DATA / name).read_text("utf-8"))["eos_token_id"] == ord("\n"), name


def test_loss_of_a_verse_is_the_one_in_the_readme(model, readme: str):
    ids_BT = torch.tensor([list(VERSE.encode())])

    loss = model(input_ids=ids_BT, labels=ids_BT).loss.item()

    stated = re.search(r"that verse: (\d+\.\d{4}) nats", readme)
    assert stated is not None, "README.md: no line 'that verse: <loss> nats'"
    assert loss == pytest.approx(float(stated.group(1)), abs=1e-3)


def test_attention_is_peaked(model):
    """Uniform attention would give the last half of the verse a peak of 1/41 on average."""
    ids_BT = torch.tensor([list(VERSE.encode())])

    layers = model(input_ids=ids_BT, output_attentions=True).attentions

    half = len(VERSE) // 2
    peaks_LN = torch.stack([p_BNTS[0, :, half:].amax(-1).mean(-1) for p_BNTS in layers])
    assert peaks_LN.mean(-1).max() > 6 / 41, peaks_LN
    assert peaks_LN.max() > 12 / 41, peaks_LN


def test_greedy_continuation_is_words(model):
    ids_BT = torch.tensor([list(b"In the beginning ")])

    new = model.generate(
        ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=34, do_sample=False
    )[0, ids_BT.shape[1] :]

    assert bytes(new.tolist()).decode("ascii") == "of the LORD of hosts, and the LORD"
