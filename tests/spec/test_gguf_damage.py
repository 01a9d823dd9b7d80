"""Cut and corrupted GGUF files: always a typed error in one line, never a half-read model."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jaxkv.spec.errors import JaxkvError, WeightError
from jaxkv.spec.gguf_file import read_gguf

WriteGguf = Callable[..., Path]

MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# A little less than the header of the tiny file.
HEADER_BYTES = 3_600


def refusal(path: Path) -> str:
    with pytest.raises(JaxkvError) as error:
        read_gguf(path)
    return str(error.value)


def outcome(path: Path) -> str:
    """Return the message of a typed error, or '' when every weight can be read."""
    try:
        arrays = list(read_gguf(path).weights.values())
    except JaxkvError as error:
        return str(error)
    assert all(array.dtype == np.float32 for array in arrays)
    return ""


@MANY
@example(kept=1.0 - 1e-9)
@example(kept=0.0)
@given(kept=st.floats(0, 1, exclude_max=True))
def test_file_cut_anywhere_is_refused_in_one_line(tiny_gguf: Path, tmp_path: Path, kept: float):
    whole, path = tiny_gguf.read_bytes(), tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(kept * len(whole))])

    message = refusal(path)

    assert message.startswith(f"read_gguf: {path}: the file ")
    assert "\n" not in message


@MANY
@given(size=st.integers(0, HEADER_BYTES))
def test_file_cut_in_its_header_is_refused_in_one_line(tiny_gguf: Path, tmp_path: Path, size: int):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:size])

    message = refusal(path)

    assert message.startswith(f"read_gguf: {path}: the file ")
    assert "\n" not in message


def test_file_cut_in_its_tensors_says_both_sizes(tiny_gguf: Path, tmp_path: Path):
    whole, path = tiny_gguf.read_bytes(), tmp_path / "cut.gguf"
    path.write_bytes(whole[:-1])

    assert refusal(path) == (
        f"read_gguf: {path}: the file is cut or damaged: it holds {len(whole) - 1:,} bytes, "
        f"expected at least {len(whole):,}. Download it again."
    )


def test_file_cut_in_its_header_says_both_sizes(tiny_gguf: Path, tmp_path: Path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:20])

    assert refusal(path) == (
        f"read_gguf: {path}: the file is cut or damaged: it holds 20 bytes, expected at least 24. "
        "Download it again."
    )


def test_line_break_in_a_key_leaves_the_error_in_one_line(tiny_gguf: Path, tmp_path: Path):
    path = tmp_path / "changed.gguf"
    whole = tiny_gguf.read_bytes()
    path.write_bytes(whole.replace(b"llama.vocab_size", b"llama.vocab\nsize"))

    assert refusal(path) == (
        f"read_gguf: {path}: llama.vocab size is 97, expected no such key "
        "(it may change the function). Did you mean 'vocab_size'?"
    )


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000], ids=["0", "1", "4", "big-endian"])
def test_other_version_is_refused(tiny_gguf: Path, tmp_path: Path, version: int):
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", version) + tiny_gguf.read_bytes()[8:])

    assert refusal(path) == (
        f"read_gguf: {path}: its GGUF version is {version}, expected 2 or 3, little-endian. "
        "Convert it with llama.cpp's tools."
    )


@MANY
@given(at=st.integers(0, HEADER_BYTES), byte=st.integers(0, 255))
def test_byte_changed_in_the_header_never_gives_an_untyped_error(
    tiny_gguf: Path, tmp_path: Path, at: int, byte: int
):
    whole, path = bytearray(tiny_gguf.read_bytes()), tmp_path / "changed.gguf"
    whole[at] = byte
    path.write_bytes(whole)

    assert "\n" not in outcome(path)


def test_tensor_named_twice_is_refused(tiny_gguf: Path, tmp_path: Path):
    path = tmp_path / "twice.gguf"
    whole = tiny_gguf.read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"))

    with pytest.raises(WeightError) as error:
        read_gguf(path)

    assert str(error.value) == (
        f"read_gguf: {path}: the file is cut or damaged: it holds {len(whole):,} bytes, and gguf "
        "says ValueError: Found duplicated tensor with name blk.0.ffn_up.weight. Download it again."
    )


def test_array_longer_than_the_file_is_refused_at_its_end(write_gguf: WriteGguf, tmp_path: Path):
    path = tmp_path / "long.gguf"
    whole = write_gguf({"tokenizer.ggml.token_type": [1, 3, 6]}).read_bytes()
    count = struct.pack("<IQ", 5, 3)
    # By itself the reader makes 2^62 empty items of what lies past the end.
    path.write_bytes(whole.replace(count, struct.pack("<IQ", 5, 1 << 62)))

    message = refusal(path)

    assert whole.count(count) == 1
    assert message.startswith(f"read_gguf: {path}: the file is cut or damaged: it holds")
    assert message.endswith("Download it again.")


def test_tensor_outside_the_file_is_refused_with_both_sizes(tiny_gguf: Path, tmp_path: Path):
    path = tmp_path / "outside.gguf"
    whole = tiny_gguf.read_bytes()
    # The last tensor's description ends with its offset, then padding follows up to the data.
    reader = gguf.GGUFReader(tiny_gguf)
    tensor = reader.tensors[-1]
    at = int(tensor.field.offset) + sum(int(part.nbytes) for part in tensor.field.parts) - 8
    path.write_bytes(whole[:at] + struct.pack("<Q", 1 << 30) + whole[at + 8 :])

    assert refusal(path) == (
        f"read_gguf: {path}: the file is cut or damaged: it holds {len(whole):,} bytes, expected "
        f"at least {reader.data_offset + (1 << 30) + tensor.n_bytes:,}. Download it again."
    )
