"""Tensors in safetensors files, one or several with an index, opened lazily and memory-mapped.

Source of the format: the README of huggingface/safetensors. An index is
`model.safetensors.index.json`, its `weight_map` names the file of every tensor.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxkv.spec.checkpoint import Stored, check_finite, unpack
from jaxkv.spec.errors import JaxkvError, SourceError, WeightError
from jaxkv.spec.file_start import other_format

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not read yet.

    Attributes:
        name: In the file.
        shape: As the file's header has it.
        dtype: Of its numbers.
        path: The file.
        start_bytes: Where in it the numbers begin.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    path: Path
    start_bytes: int

    def read(self, place: Stored) -> np.ndarray:
        """Return the weight that stands at `place` in it, in the dtype of the file.

        Raises:
            WeightError: A value is not finite.

        Cost: no copy, but pages of the file, which count as memory of the process until the array
        is dropped; what is written to it goes to pages of its own.
        """
        mapped = np.memmap(self.path, self.dtype, "c", self.start_bytes, self.shape)
        array = unpack(np.asarray(mapped), place, axes=len(self.shape))
        check_finite("read_huggingface", self.name, array)
        return array


def open_tensors(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a directory by name; only headers are read.

    `model.safetensors` is taken where it stands, else the files that `model.safetensors.index.json`
    names.

    Raises:
        SourceError: There is neither, or a file is something else.
        WeightError: Files or tensors that the index names are missing, or a file is damaged.
    """
    if (directory / ONE_FILE).exists():
        return open_file(directory / ONE_FILE)
    if not (directory / INDEX).exists():
        pickled = "It holds pickled weights only, which are not read. " * any(
            directory.glob("*.bin")
        )
        raise SourceError(
            f"neither {ONE_FILE} nor {INDEX} is there, expected one of them. {pickled}"
            "Save the model with save_pretrained."
        )
    names_of = _files_of_index(read_json(directory / INDEX))
    missing = {file: names for file, names in names_of.items() if not (directory / file).exists()}
    if missing:
        num_tensors = sum(map(len, missing.values()))
        raise WeightError(
            f"{INDEX} names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"missing ({len(missing)} of {len(names_of)} files, {num_tensors} tensors). Download "
            "what is missing."
        )
    tensors: dict[str, Tensor] = {}
    for file, names in names_of.items():
        found = open_file(directory / file)
        _check_against_index(file, names, found)
        tensors |= found
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        SourceError: It is no JSON object; what it looks like is said.
    """
    start = path.read_bytes()[:32]
    if looks := other_format(start, path.suffix):
        raise SourceError(f"{path.name} is {looks}")
    try:
        data = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{path.name} is no JSON: {str(error)[:100]}. Download it again."
        ) from None
    if not isinstance(data, dict):
        raise SourceError(
            f"{path.name} holds a {type(data).__name__}, expected an object. Download it again."
        )
    return data


def open_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file by name.

    Raises:
        SourceError: The file is something else.
        WeightError: It is cut or damaged, or a dtype is not supported.
    """
    import safetensors

    with path.open("rb") as file:
        start = file.read(32)
    _check_start(path, start)
    try:
        with safetensors.safe_open(path, framework="numpy") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 no dict
            _check_dtypes(path, slices)
            # The library gives numpy's dtype, also of those that numpy has not, with an array.
            dtypes = {name: each[:0].dtype for name, each in slices.items() if each.get_shape()}
    except safetensors.SafetensorError as error:
        size_bytes, header = path.stat().st_size, _header(path)
        wanted = "" if header is None else f", expected {header[1] + _data_bytes(header[0]):,}"
        raise WeightError(
            f"{path.name} is cut or damaged: it holds {size_bytes:,} bytes{wanted}, and "
            f"safetensors says {str(error)[:100]!r}. Download it again."
        ) from None
    header = _header(path)
    assert header is not None  # the library has read it
    return {
        name: Tensor(
            name,
            tuple(entry["shape"]),
            dtypes.get(name, np.dtype(np.float32)),
            path,
            header[1] + entry["data_offsets"][0],
        )
        for name, entry in header[0].items()
    }


def _check_dtypes(path: Path, slices: Mapping[str, Any]) -> None:
    for name, each in slices.items():
        if each.get_dtype() not in _DTYPES:
            raise WeightError(
                f"tensor {name!r} of {path.name} has dtype {each.get_dtype()}, expected one of "
                f"{', '.join(_DTYPES)}. Take a checkpoint that is not quantized."
            )


def _check_start(path: Path, start: bytes) -> None:
    if not start:
        raise SourceError(
            f"{path.name} holds 0 bytes, expected a safetensors file. Download it again."
        )
    if looks := other_format(start, ".safetensors"):
        raise SourceError(f"{path.name} is {looks}")
    if len(start) <= 8:
        raise WeightError(
            f"{path.name} is cut or damaged: it holds {len(start)} bytes, expected at least 10. "
            "Download it again."
        )
    if start[8:9] != b"{":
        raise SourceError(
            f"{path.name} starts with {start[:9]!r}, expected 8 bytes of length and then '{{'. "
            "Give a file in safetensors format."
        )


def _header(path: Path) -> tuple[dict[str, Any], int] | None:
    """Return the tensors that a file says it has, and where their numbers begin; None if broken."""
    with path.open("rb") as file, contextlib.suppress(ValueError, TypeError, LookupError):
        length = int.from_bytes(file.read(8), "little")
        if length < 1 << 27:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            _data_bytes(header)
            return header, 8 + length
    return None


def _data_bytes(header: Mapping[str, Any]) -> int:
    return max((entry["data_offsets"][1] for entry in header.values()), default=0)


def _files_of_index(index: Mapping[str, Any]) -> dict[str, list[str]]:
    names_of: dict[str, list[str]] = {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightError(f"{INDEX} has no weight_map, expected file names. Download it again.")
    for name, file in weight_map.items():
        # Names come with the checkpoint: none may lead out of its directory.
        if not isinstance(file, str) or Path(file).name != file:
            raise JaxkvError(
                f"{INDEX} names {file!r} for {name!r}, expected the name of a file beside it. "
                "Do not trust this checkpoint."
            )
        names_of.setdefault(file, []).append(name)
    return names_of


def _check_against_index(file: str, names: list[str], found: Mapping[str, Tensor]) -> None:
    lacking = [name for name in names if name not in found]
    more = [name for name in found if name not in names]
    if lacking:
        raise WeightError(
            f"{INDEX} names {lacking[0]!r} in {file}, which lacks it ({len(lacking)} of "
            f"{len(names)} are lacking). Download both again."
        )
    if more:
        raise WeightError(
            f"{file} holds {more[0]!r}, which {INDEX} does not name there ({len(more)} are extra). "
            "Download both again."
        )
