"""GGUF files (versions 2 and 3, little-endian) as checkpoints: `gguf` reads and dequantizes.

Source of the format: ggml's docs/gguf.md.
"""

import os
import struct
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkv.spec import families
from jaxkv.spec.checkpoint import (
    Checkpoint,
    Stored,
    Weights,
    check_finite,
    stored_shapes,
    unpack,
    weight_fault,
)
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import ConfigError, JaxkvError, SourceError, WeightError
from jaxkv.spec.file_start import other_format
from jaxkv.spec.gguf_arrays import string_parts
from jaxkv.spec.gguf_blocks import dequantize
from jaxkv.spec.gguf_keys import ROPE_TENSORS
from jaxkv.spec.weight_shapes import weight_shapes

if TYPE_CHECKING:
    import gguf


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
    1 s (the reader makes two arrays of each token) and, all 272 weights together, 1.2 s.
    """
    path = Path(path)
    try:
        _check_start(path)
        metadata, tensors = _read_header(path)
        return _checkpoint(metadata, tensors, path)
    except JaxkvError as error:
        fact = " ".join(str(error).removeprefix("config_from_gguf: ").splitlines())
        raise type(error)(f"read_gguf: {path}: {fact}") from None


def _check_start(path: Path) -> None:
    """Check what the first bytes tell, in words that the reader does not have."""
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise SourceError(f"the path {what}, expected a GGUF file. Check the path.")
    with path.open("rb") as file:
        start = file.read(32)
    if not start:
        raise SourceError("the file holds 0 bytes, expected a GGUF file. Download it again.")
    if looks := other_format(start, ".gguf"):
        raise SourceError(f"the file is {looks}")
    if start[:4] != b"GGUF":
        raise SourceError(
            f"the file starts with {start[:4]!r}, expected b'GGUF'. Give a file in GGUF format."
        )
    if len(start) < 8:
        raise _cut(len(start), 8)
    (version,) = struct.unpack("<I", start[4:8])
    if version not in (2, 3):
        raise WeightError(
            f"its GGUF version is {version}, expected 2 or 3, little-endian. Convert it with "
            "llama.cpp's tools."
        )


def _cut(size_bytes: int, needed_bytes: int) -> WeightError:
    return WeightError(
        f"the file is cut or damaged: it holds {size_bytes:,} bytes, expected at least "
        f"{needed_bytes:,}. Download it again."
    )


def _read_header(path: Path) -> tuple[dict[str, Any], "dict[str, gguf.ReaderTensor]"]:
    """Return the metadata and the tensors; every byte that belongs to them lies in the file."""
    import gguf

    class Reader(gguf.GGUFReader):
        # All that it reads, tensors too, passes here. Its own method returns fewer items past the
        # end (a damaged count of an array makes it loop for ever) and takes four times as long.
        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            little = np.dtype(dtype).newbyteorder("<")
            end = int(offset) + int(count) * little.itemsize
            if end > self.data.size:
                raise _cut(self.data.size, end)
            return np.ndarray(int(count), little, self.data, int(offset))

        # Its own method makes arrays of every element: two thirds of the time of reading a header.
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, Any, Any, Any]:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            kind, count, start = int(head[0][0]), int(head[1][0]), orig_offs + 12
            types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
            if kind == gguf.GGUFValueType.STRING and count:
                end, strings = string_parts(self.data.data, start, count, _cut)
                indices = range(2, 2 + count)
                return end - orig_offs, [*head, *strings], indices, types
            numbers = self.gguf_scalar_to_np.get(types[1])
            if numbers is None or not count:
                return super()._get_field_parts(orig_offs, raw_type)
            values = self._get(start, numbers, count)
            return 12 + values.nbytes, [*head, values], [2], types

    try:
        with np.errstate(over="raise"):
            reader = Reader(path)
        fields = {name: each for name, each in reader.fields.items() if name[:5] != "GGUF."}
        metadata = {name: each.contents() for name, each in fields.items()}
    except JaxkvError:
        raise
    # It has no errors of its own: these are what numpy and Python raise on damaged bytes.
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as e:
        raise WeightError(
            f"the file is cut or damaged: it holds {path.stat().st_size:,} bytes, and gguf says "
            f"{type(e).__name__}: {str(e)[:200]}. Download it again."
        ) from None
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _checkpoint(
    metadata: dict[str, Any], tensors: "Mapping[str, gguf.ReaderTensor]", path: Path
) -> Checkpoint:
    num_parts = metadata.get("split.count", 1)
    if num_parts != 1:
        raise SourceError(
            f"the file is one of {num_parts} parts, expected the whole model. "
            "Merge them with `llama-gguf-split --merge`."
        )
    family = families.gguf_family(str(metadata.get("general.architecture")))
    readers = {given: partial(_read_whole, path, tensor) for given, tensor in tensors.items()}
    config: ModelConfig = family.config_from_gguf(metadata, readers)
    shapes, places = weight_shapes(config), _places(family, config, tensors)
    # The reader keeps the order of GGML, innermost first.
    found = {
        given: tuple(tensor.shape.tolist()[::-1])
        for given, tensor in tensors.items()
        if given not in ROPE_TENSORS
    }
    # Compared under the file's own names, so that an error names what its reader can look up there.
    kv_names = [places[each].name for each in shapes if ".attn.k." in each or ".attn.v." in each]
    if fault := weight_fault(stored_shapes(shapes, places), found, config.family, kv_names):
        raise WeightError(fault)
    entries = {
        canonical: (shape, _reader(path, tensors[places[canonical].name], places[canonical]))
        for canonical, shape in shapes.items()
    }
    return Checkpoint(
        config=config,
        weights=Weights(entries),
        interleaved_qk=family.GGUF_INTERLEAVED_QK,
        end_ids=_end_ids(metadata, config.vocab_size),
        tokenizer_data=_tokenizer_data(metadata),
        name=path.stem,
    )


def _tokenizer_data(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    if metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return None
    data = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    return data | {"general.architecture": metadata["general.architecture"]}


def _end_ids(metadata: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a text, a turn of a chat, or a message of one, each once."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    found = {key: metadata[key] for key in keys if key in metadata}
    for key, end_id in found.items():
        if not isinstance(end_id, int) or not 0 <= end_id < vocab_size:
            raise ConfigError(
                f"{key} is {end_id!r}, expected an id below {vocab_size}. Download it again."
            )
    return tuple(dict.fromkeys(found.values()))


def _places(family: Any, config: ModelConfig, tensor_names: Collection[str]) -> dict[str, Stored]:
    places: dict[str, Stored] = family.places_from_gguf(config)
    if not hasattr(family, "older_places_from_gguf"):
        return places
    older: dict[str, Stored] = family.older_places_from_gguf(config)
    newer_names = {place.name for place in places.values()}
    is_older = any(
        place.name in tensor_names for place in older.values() if place.name not in newer_names
    )
    return older if is_older else places


def _reader(path: Path, tensor: "gguf.ReaderTensor", place: Stored) -> Callable[[], np.ndarray]:
    """Return a function that reads one tensor, whose type is checked now."""
    import gguf

    kind = tensor.tensor_type
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros(block_bytes, np.uint8), kind)
    except NotImplementedError:
        raise WeightError(
            f"tensor {tensor.name!r} has type {kind.name}, expected one that gguf can dequantize. "
            "Take a file of another quantization."
        ) from None
    return partial(_read, path, tensor, place)


def _read(path: Path, tensor: "gguf.ReaderTensor", place: Stored) -> np.ndarray:
    array = _read_whole(path, tensor)
    is_whole = place.outputs is None and not place.matrices
    part = array if is_whole else unpack(array, place, axes=array.ndim)
    # float32 comes back as a read-only view of the file, a part as one of the whole; a twin may
    # want to own or write it.
    return part if part is array and array.flags.writeable else part.copy()


def _read_whole(path: Path, tensor: "gguf.ReaderTensor") -> np.ndarray:
    # Mapped for this reading alone: pages of a mapping that stays count as memory of the process.
    blocks = tensor.data
    mapped = np.memmap(path, blocks.dtype, "r", int(tensor.data_offset), blocks.shape)
    with np.errstate(all="ignore"):
        array = dequantize(np.asarray(mapped), tensor.tensor_type)
    check_finite("read_gguf", tensor.name, array)
    return array
