"""Checkpoints: a config, and lazy weights under canonical names, checked by name and shape."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import WeightError
from jaxkv.spec.weight_shapes import weight_shapes


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
    """A model as its file holds it, under canonical names; the twins transpose and fuse.

    Attributes:
        config: The decoder.
        weights: Canonical name -> array, matrices (out, in); float32 from GGUF files, the dtype
            stored from safetensors.
        interleaved_qk: Whether the rows of q and k are permuted for interleaved rotary; the twins
            undo it.
        end_ids: Token ids that end a text; empty when the file names none.
        tokenizer_data: What `tokenizer.open_tokenizer` needs; None for a model of bare token ids.
        name: For people: of the file, the preset or the known model.
        dtype: In which the file stores the embedding, for twins that take the weights as they are;
            float32 where it is quantized.
    """

    config: ModelConfig
    weights: Weights
    interleaved_qk: bool
    end_ids: tuple[int, ...]
    tokenizer_data: Mapping[str, Any] | None = field(repr=False)
    name: str
    dtype: str = "float32"


@dataclass(frozen=True)
class Stored:
    """Where a file keeps one weight: a row of a family's table.

    Attributes:
        name: Of the tensor in the file.
        outputs: First and end of the packed tensor's outputs that are this weight; None for all.
        in_out: Whether the file holds matrices (in, out); a bias has one axis either way.
        groups: Into how many equal groups the tensor's outputs fall, each of which holds a part of
            this weight; `outputs` then counts within a group.
        matrices: Into how many matrices along a first axis the file cuts the outputs, each
            (in, out) with in_out; 0 for one matrix of two axes.
        lead: Whether the file's tensor has one more axis in front, of size 1.
    """

    name: str
    outputs: tuple[int, int] | None = None
    in_out: bool = False
    groups: int = 1
    matrices: int = 0
    lead: bool = False


@dataclass(frozen=True)
class Stacked:
    """A weight that a file keeps in several tensors, one after the other along a first axis."""

    parts: tuple[Stored, ...]


Place = Stored | Stacked


def stored_parts(place: Place) -> tuple[Stored, ...]:
    """Return the tensors that one weight is read from."""
    return place.parts if isinstance(place, Stacked) else (place,)


def stored_shapes(
    shapes: Mapping[str, tuple[int, ...]], places: Mapping[str, Place]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a file must hold: parts packed, axes in its order.

    Args:
        shapes: Canonical name -> shape, matrices (out, in).
        places: Canonical name -> where the file keeps it.
    """
    packed: dict[str, tuple[int, ...]] = {}
    turned: set[str] = set()
    cut: dict[str, Stored] = {}
    leading: set[str] = set()
    for canonical, shape in shapes.items():
        place = places[canonical]
        outputs, *inputs = shape[1:] if isinstance(place, Stacked) else shape
        for part in stored_parts(place):
            before = packed[part.name][0] if part.name in packed else 0
            packed[part.name] = (before + outputs, *inputs)
            leading |= {part.name} if part.lead else set()
            turned |= {part.name} if part.in_out else set()
            cut |= {part.name: part} if part.matrices else {}
    named = {
        name: shape[::-1] if name in turned else shape
        for name, shape in packed.items()
        if name not in cut
    }
    shapes = {name: (1, *shape) if name in leading else shape for name, shape in named.items()}
    return shapes | {name: _cut_shape(packed[name], place) for name, place in cut.items()}


def _cut_shape(shape: tuple[int, ...], place: Stored) -> tuple[int, ...]:
    outputs, inputs = shape[0] // place.matrices, shape[1]
    return (place.matrices, *((inputs, outputs) if place.in_out else (outputs, inputs)))


def unpack(tensor: Any, place: Stored, *, axes: int) -> np.ndarray:
    """Return one weight, (out, in), out of the tensor that holds it.

    Args:
        tensor: Anything that gives an array when indexed by slices.
        place: Which outputs of it, in which order of axes.
        axes: How many the tensor has.
    """
    if place.matrices:
        array = np.asarray(tensor[:])
        array = array.swapaxes(1, 2) if place.in_out else array
        return array.reshape(-1, array.shape[2])
    if place.lead:
        return np.asarray(tensor[:])[0]
    outputs = slice(None) if place.outputs is None else slice(*place.outputs)
    if place.groups > 1:
        array = np.asarray(tensor[:])
        grouped = array.reshape(place.groups, -1, *array.shape[1:])[:, outputs]
        return grouped.reshape(-1, *array.shape[1:])
    if place.in_out and axes == 2:
        return tensor[:, outputs].T
    return tensor[outputs]


def check_finite(function: str, name: str, array: np.ndarray) -> None:
    """Check that a tensor just read holds numbers.

    Raises:
        WeightError: Some are infinite or not a number.
    """
    with np.errstate(all="ignore"):
        # One pass without an array of its own; a sum that overflows is looked at closely below.
        if np.isfinite(array.sum()):
            return
    num_bad = array.size - np.count_nonzero(np.isfinite(array))
    if num_bad:
        raise WeightError(
            f"{function}: tensor {name!r} holds {num_bad} of {array.size} values that are not "
            "finite, expected none. Download the file again."
        )


def check_weights(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the arrays found are those of the config, by name and shape, before any is built.

    Raises:
        WeightError: One is missing (the nearest found is offered), misshapen (both shapes) or
            extra.
    """
    wanted = weight_shapes(config)
    kv_names = [name for name in wanted if ".attn.k." in name or ".attn.v." in name]
    if fault := weight_fault(wanted, shapes, config.family, kv_names):
        raise WeightError(f"check_weights: {fault}")


def weight_fault(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    family: str,
    kv_names: Collection[str] = (),
) -> str | None:
    """Return what is wrong with the arrays found, by name and shape; None if they are those wanted.

    Args:
        wanted: Name -> shape, under the names that the reader of the message can look up.
        found: The same of the arrays that are there.
        family: For the message.
        kv_names: Those whose outputs are the heads of keys or values.
    """
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
        if bent[0] in kv_names and given[1:] == right[1:]:
            hint += (
                " A checkpoint's number of KV heads cannot be overridden: another one needs "
                "conversion and training."
            )
        return f"weight {bent[0]!r} has shape {given}, expected {right}. {hint}"
    if extra:
        return (
            f"weight {extra[0]!r} is extra ({len(extra)} are), expected only the {len(wanted)} of "
            "family "
            f"{family!r} with this config. Leaving it out would change the function; take another "
            "file."
        )
    return None
