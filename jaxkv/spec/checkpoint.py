"""Checkpoints: a config, and lazy weights under canonical names; from memory-mapped GGUF files.

Source of the format: ggml's docs/gguf.md (versions 2 and 3). The header is parsed here, not by
`gguf.GGUFReader`, which takes 2 s for a vocabulary of 49,152 and fails on cut files with whatever
numpy raises; `gguf` dequantizes.
"""

import difflib
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxkv.spec import families
from jaxkv.spec.config import ModelConfig, weight_shapes
from jaxkv.spec.errors import ConfigError, JaxkvError, SourceError, WeightError


class Weights(Mapping[str, np.ndarray]):
    """Arrays by name; each access reads (and dequantizes) a new one, `shape` reads none.

    Args:
        entries: Name -> (shape, function that returns the array).
    """

    def __init__(self, entries: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]):
        self._entries = dict(entries)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Weights":
        """Return weights that are held in memory already; their dtypes stay."""
        return cls(
            {name: (array.shape, partial(np.array, array)) for name, array in arrays.items()}
        )

    def __getitem__(self, name: str) -> np.ndarray:
        return self._entries[name][1]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one array without reading it."""
        return self._entries[name][0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every array's shape, reading none."""
        return {name: self.shape(name) for name in self}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model as its file holds it: nothing transposed, nothing fused.

    Attributes:
        config: The decoder.
        weights: Canonical name -> array, matrices (out, in); float32 from files.
        interleaved_qk: Whether the rows of q and k are permuted for interleaved rotary; the twins
            undo it.
        end_ids: Token ids that end a text; empty when the file names none.
        tokenizer_data: What `tokenizer.open_tokenizer` needs; None for a model of bare token ids.
        name: For people: of the file, the preset or the known model.
    """

    config: ModelConfig
    weights: Weights
    interleaved_qk: bool
    end_ids: tuple[int, ...]
    tokenizer_data: Mapping[str, Any] | None = field(repr=False)
    name: str


def check_weights(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the arrays found are those of the config, by name and shape, before any is built.

    Raises:
        WeightError: One is missing (the nearest found is offered), misshapen (both shapes) or
            extra.
    """
    if fault := _weight_fault(weight_shapes(config), shapes, config.family):
        raise WeightError(f"check_weights: {fault}")


def read_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in a GGUF file, its config, names, shapes and sizes checked.

    The file stays memory-mapped: do not overwrite it while the checkpoint is in use.

    Args:
        path: One GGUF file, little-endian, with every tensor.

    Raises:
        SourceError: There is no such file, or it is not a GGUF file.
        WeightError: The file is cut or damaged, or its tensors are not those of its config.
        ConfigError: Its architecture is unknown, or its metadata asks for something unsupported.

    Not checked here: the values; a weight that is not finite is a WeightError when it is accessed.
    Cost: the header at once, each weight anew at each access; for SmolLM2-135M in Q4_1 on two cores
    0.1 s and, all 272 weights together, 1.2 s.
    """
    path = Path(path)
    try:
        header = _parse(_map(path))
        return _checkpoint(header, path.stem)
    except (_Damage, JaxkvError) as error:
        kind = WeightError if isinstance(error, _Damage) else type(error)
        fact = " ".join(str(error).removeprefix("config_from_gguf: ").splitlines())
        raise kind(f"read_gguf: {path}: {fact}") from None


def _weight_fault(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], family: str
) -> str | None:
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    bent = [name for name in wanted if name in found and found[name] != wanted[name]]
    if missing:
        near = difflib.get_close_matches(missing[0], extra, n=1)
        hint = f"The nearest found is {near[0]!r}" if near else f"Found: {len(found)} weights"
        return (
            f"weight {missing[0]!r} is missing ({len(missing)} of {len(wanted)} are), expected "
            "shape "
            f"{wanted[missing[0]]}. {hint}; is the file complete, and of family {family!r}?"
        )
    if bent:
        given, right = found[bent[0]], wanted[bent[0]]
        turned = given == right[::-1]
        hint = "Is it stored (in, out)?" if turned else "Do config and weights belong together?"
        return f"weight {bent[0]!r} has shape {given}, expected {right}. {hint}"
    if extra:
        return (
            f"weight {extra[0]!r} is extra ({len(extra)} are), expected only the {len(wanted)} of "
            "family "
            f"{family!r} with this config. Leaving it out would change the function; take another "
            "file."
        )
    return None


class _Damage(Exception):
    """A fact about a file that is cut or damaged; `read_gguf` adds which file."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class _Header:
    data: mmap.mmap
    metadata: dict[str, Any]
    tensors: dict[str, _Tensor]


_OTHER_FORMATS = {
    b"version https://git-lfs": "a Git LFS pointer. Run `git lfs pull` where it was cloned.",
    b"PK\x03\x04": "a zip archive. Unpack it and give the .gguf file inside.",
}


def _map(path: Path) -> mmap.mmap:
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise SourceError(f"the path {what}, expected a GGUF file. Check the path.")
    if path.stat().st_size == 0:
        raise SourceError("the file holds 0 bytes, expected a GGUF file. Download it again.")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for start, name in _OTHER_FORMATS.items():
        if data[: len(start)] == start:
            raise SourceError(f"the file is {name}")
    if data[:4] != b"GGUF":
        raise SourceError(
            f"the file starts with {data[:4]!r}, expected b'GGUF'. Give a file in GGUF format."
        )
    return data


_SCALARS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Reads a header front to back; whatever would lie past the end of the file is a `_Damage`."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def take(self, num_bytes: int) -> bytes:
        end, size = self.at + num_bytes, len(self.data)
        if end > size:
            raise _Damage(
                f"the file is cut in its header: it holds {size:,} bytes, expected at least "
                f"{end:,}. "
                "Download it again."
            )
        taken, self.at = self.data[self.at : end], end
        return taken

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        raw = self.take(self.scalar("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise _Damage(
                f"a name in its header is {raw[:40]!r}, expected UTF-8. Download it again."
            ) from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(self._code(kind))
        item_kind, count = self.scalar("<I"), self.scalar("<Q")
        if item_kind == _STRING:
            return [self.string() for _ in range(count)]
        dtype = np.dtype(self._code(item_kind))
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise _Damage(
                f"a value in its header has type {kind}, expected one of 0 to 12 (no array of "
                "arrays). "
                "Download it again."
            )
        return _SCALARS[kind]


def _parse(data: mmap.mmap) -> _Header:
    cursor = _Cursor(data)
    cursor.take(4)
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise _Damage(
            f"its GGUF version is {version}, expected 2 or 3, little-endian. Convert it with "
            "llama.cpp's tools."
        )
    num_tensors, num_keys = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        _add(metadata, cursor.string(), cursor.value(cursor.scalar("<I")))
    tensors: dict[str, _Tensor] = {}
    for _ in range(num_tensors):
        name, num_axes = cursor.string(), cursor.scalar("<I")
        shape = tuple(cursor.scalar("<Q") for _ in range(num_axes))[::-1]
        _add(tensors, name, _Tensor(shape, cursor.scalar("<I"), cursor.scalar("<Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damage(
            f"its general.alignment is {alignment!r}, expected at least 1. Download it again."
        )
    base = -(-cursor.at // alignment) * alignment
    moved = {name: _Tensor(t.shape, t.kind, base + t.start) for name, t in tensors.items()}
    return _Header(data, metadata, moved)


def _add(table: dict[str, Any], name: str, value: Any) -> None:
    if name in table:
        raise _Damage(f"its header names {name!r} twice, expected once. Download it again.")
    table[name] = value


def _checkpoint(header: _Header, name: str) -> Checkpoint:
    metadata, tensors = header.metadata, header.tensors
    num_parts = metadata.get("split.count", 1)
    if num_parts != 1:
        raise SourceError(
            f"the file is one of {num_parts} parts, expected the whole model. "
            "Merge them with `llama-gguf-split --merge`."
        )
    family = families.gguf_family(str(metadata.get("general.architecture")))
    config: ModelConfig = family.config_from_gguf(metadata, tensors.keys())
    # Compared under the file's own names, so that an error names what its reader can look up there.
    stored = {canonical: given for given, canonical in family.names_from_gguf(config).items()}
    wanted = {stored[canonical]: shape for canonical, shape in weight_shapes(config).items()}
    found = {given: tensor.shape for given, tensor in tensors.items()}
    if fault := _weight_fault(wanted, found, config.family):
        raise WeightError(fault)
    entries = {
        canonical: (shape, _reader(header.data, stored[canonical], tensors[stored[canonical]]))
        for canonical, shape in weight_shapes(config).items()
    }
    tokenizer = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    return Checkpoint(
        config=config,
        weights=Weights(entries),
        interleaved_qk=family.GGUF_INTERLEAVED_QK,
        end_ids=_end_ids(metadata.get("tokenizer.ggml.eos_token_id"), config.vocab_size),
        tokenizer_data=tokenizer if "tokenizer.ggml.model" in tokenizer else None,
        name=name,
    )


def _end_ids(end_id: Any, vocab_size: int) -> tuple[int, ...]:
    if end_id is None:
        return ()
    if not isinstance(end_id, int) or not 0 <= end_id < vocab_size:
        raise ConfigError(
            f"tokenizer.ggml.eos_token_id is {end_id!r}, expected an id below {vocab_size}. "
            "Download it again."
        )
    return (end_id,)


def _reader(data: mmap.mmap, name: str, tensor: _Tensor) -> Callable[[], np.ndarray]:
    """Return a function that reads one tensor; its type and its bytes are checked now."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        gguf.dequantize(np.zeros(block_bytes, np.uint8), kind)
    except (ValueError, NotImplementedError):
        raise _Damage(
            f"tensor {name!r} has type {tensor.kind}, expected one that gguf can dequantize. "
            "Take a file of another quantization."
        ) from None
    if tensor.shape[-1] % block:
        raise _Damage(
            f"tensor {name!r} has rows of {tensor.shape[-1]}, expected a multiple of {block} "
            f"({kind.name}). "
            "Download it again."
        )
    rows, row_bytes = tensor.shape[:-1], tensor.shape[-1] // block * block_bytes
    num_bytes = math.prod(rows) * row_bytes
    if tensor.start + num_bytes > len(data):
        raise _Damage(
            f"the file is cut: it holds {len(data):,} bytes, expected at least "
            f"{tensor.start + num_bytes:,} for tensor {name!r}. Download it again."
        )
    return partial(_read, data, name, tensor.start, (*rows, row_bytes), kind)


def _read(
    data: mmap.mmap, name: str, start: int, stored_shape: tuple[int, ...], kind: Any
) -> np.ndarray:
    import gguf

    stored = np.frombuffer(data, np.uint8, math.prod(stored_shape), start).reshape(stored_shape)
    with np.errstate(all="ignore"):
        array = gguf.dequantize(stored, kind)
    num_bad = array.size - np.count_nonzero(np.isfinite(array))
    if num_bad:
        raise WeightError(
            f"read_gguf: tensor {name!r} holds {num_bad} of {array.size} values that are not "
            "finite, expected none. Download the file again."
        )
    # float32 comes back as a read-only view of the file; a twin may want to own or write it.
    return array if array.flags.writeable else array.copy()
