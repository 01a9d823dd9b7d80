"""Files of weights: every one that is cut, something else or not there is refused by name.

Covers KV-60 (shards that the index names) and KV-62 (no weights).
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxkv.spec.errors import JaxkvError
from jaxkv.spec.huggingface import read_huggingface

Write = Callable[..., Path]
EMBED = "model.embed_tokens.weight"


def refusal(path: Path) -> str:
    with pytest.raises(JaxkvError) as error:
        read_huggingface(path)
    message = str(error.value)
    assert message.startswith(f"read_huggingface: {path}: ")
    assert "\n" not in message
    return message.removeprefix(f"read_huggingface: {path}: ")


def test_missing_weights_say_what_is_there_instead(hf_directory: Write):
    path = hf_directory()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")

    assert refusal(path) == (
        "neither model.safetensors nor model.safetensors.index.json is there, expected one of "
        "them. It holds pickled weights only, which are not read. "
        "Save the model with save_pretrained."
    )


WEIGHTS = [
    pytest.param(
        b"",
        "model.safetensors holds 0 bytes, expected a safetensors file. Download it again.",
        id="empty",
    ),
    pytest.param(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".ljust(130, b"\n"),
        "model.safetensors is a Git LFS pointer. Run `git lfs pull` where it was cloned.",
        id="git-lfs-pointer",
    ),
    pytest.param(
        b"PK\x03\x04 and more",
        "model.safetensors is a zip archive. Unpack it and give the .safetensors file inside.",
        id="zip",
    ),
    pytest.param(
        b"\x00" * 8,
        "model.safetensors is cut or damaged: it holds 8 bytes, expected at least 10. "
        "Download it again.",
        id="8-bytes",
    ),
    pytest.param(
        b"\x93NUMPY and more",
        "model.safetensors starts with b'\\x93NUMPY an', expected 8 bytes of length and then '{'. "
        "Give a file in safetensors format.",
        id="another-format",
    ),
    pytest.param(
        struct.pack("<Q", 1 << 40) + b"{}",
        "model.safetensors is cut or damaged: it holds 10 bytes, and safetensors says 'Error while "
        "deserializing header: header too large'. Download it again.",
        id="header-over-the-limit",
    ),
]


@pytest.mark.parametrize(("content", "fact"), WEIGHTS)
def test_file_that_is_not_safetensors_is_told_for_what_it_is(
    hf_directory: Write, content: bytes, fact: str
):
    """KV-62."""
    path = hf_directory()
    (path / "model.safetensors").write_bytes(content)

    assert refusal(path) == fact


def test_truncated_file_says_both_sizes(hf_directory: Write):
    path = hf_directory()
    file = path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])

    assert refusal(path) == (
        f"model.safetensors is cut or damaged: it holds {len(whole) - 7:,} bytes, expected "
        f"{len(whole):,}, and safetensors says 'Error while deserializing header: incomplete "
        "metadata, file not fully covered'. Download it again."
    )


@pytest.mark.parametrize("kept", [0, 5, 8, 9, 40, 400, 2000])
def test_file_cut_anywhere_is_refused_in_one_line(hf_directory: Write, kept: int):
    path = hf_directory()
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])

    assert refusal(path).startswith("model.safetensors ")


def test_shards_hold_the_same_weights_as_one_file(hf_directory: Write):
    one, several = (read_huggingface(hf_directory(shards=n)) for n in (0, 3))

    assert several.config == one.config
    for name, array in one.weights.items():
        np.testing.assert_array_equal(several.weights[name], array, strict=True)


def test_missing_shards_are_listed_before_any_file_is_opened(hf_directory: Write):
    """KV-60."""
    path = hf_directory(shards=3)
    (path / "model-00001-of-00003.safetensors").write_bytes(b"damaged")
    for i in (2, 3):
        (path / f"model-0000{i}-of-00003.safetensors").unlink()

    assert refusal(path) == (
        "model.safetensors.index.json names model-00002-of-00003.safetensors, "
        "model-00003-of-00003.safetensors, which are missing (2 of 3 files, 14 tensors). "
        "Download what is missing."
    )


def change_index(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        pytest.param(
            lambda names: names.update({"a.b": "model-00001-of-00002.safetensors"}),
            "model.safetensors.index.json names 'a.b' in model-00001-of-00002.safetensors, which "
            "lacks it (1 of 12 are lacking). Download both again.",
            id="lacking",
        ),
        pytest.param(
            lambda names: names.pop(EMBED),
            "model-00001-of-00002.safetensors holds 'model.embed_tokens.weight', which "
            "model.safetensors.index.json does not name there (1 are extra). Download both again.",
            id="extra",
        ),
        pytest.param(
            lambda names: names.update({EMBED: "../model.safetensors"}),
            "model.safetensors.index.json names '../model.safetensors' for "
            "'model.embed_tokens.weight', expected the name of a file beside it. "
            "Do not trust this checkpoint.",
            id="outside",
        ),
        pytest.param(
            dict.clear,
            "model.safetensors.index.json has no weight_map, expected file names. "
            "Download it again.",
            id="empty",
        ),
    ],
)
def test_index_that_does_not_fit_its_shards_is_refused(
    hf_directory: Write, change: Callable[[dict[str, Any]], Any], fact: str
):
    path = hf_directory(shards=2)
    change_index(path, change)

    assert refusal(path) == fact


def test_truncated_shard_is_named(hf_directory: Write):
    path = hf_directory(shards=2)
    file = path / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])

    assert refusal(path).startswith("model-00002-of-00002.safetensors is cut or damaged: it holds ")


def outcome(path: Path) -> str:
    """Return the message of a typed error, or '' when every weight can be read."""
    try:
        arrays = list(read_huggingface(path).weights.values())
    except JaxkvError as error:
        return str(error)
    assert len(arrays) == 21
    return ""


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 2600), byte=st.integers(0, 255))
def test_byte_changed_in_the_header_never_gives_an_untyped_error(
    hf_whole: bytes, hf_target: Path, at: int, byte: int
):
    changed = bytearray(hf_whole)
    changed[at] = byte
    # A new file each time: an open one stays mapped.
    (hf_target / "model.safetensors").unlink(missing_ok=True)
    (hf_target / "model.safetensors").write_bytes(changed)

    assert "\n" not in outcome(hf_target)


@pytest.fixture
def hf_target(hf_directory: Write) -> Path:
    return hf_directory()


@pytest.fixture
def hf_whole(hf_target: Path) -> bytes:
    return (hf_target / "model.safetensors").read_bytes()
