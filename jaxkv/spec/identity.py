"""Whose keys and values these are: one number for a model's weights, one identity for a cache's."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.spec.config import ModelConfig

_TAG = b"jaxkv.identity.1"


@dataclass(frozen=True)
class Identity:
    """What keys and values depend on besides the tokens: two that differ in it are never shared.

    Attributes:
        config: The model's sizes and formulas, its position scheme among them.
        weights: `weights_hash` of the parameters, never a name: a name says nothing of what was
            loaded under it.
        dtype: Of keys and values.
        layout: How they are stored: as rotated, as dropped, as rounded.
        adapter: What else changes the weights' function, in the caller's words; "" for nothing.
        tenant: The caller's salt: those of another salt share nothing with this one.
    """

    config: ModelConfig
    weights: str
    dtype: str
    layout: str
    adapter: str = ""
    tenant: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, the config spread out so that a difference has a name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"config": self.config.to_dict()}

    def digest(self) -> str:
        """Return the sha256 over a tag and every field's name and value, each after its length.

        Lengths keep fields apart: ("ab", "c") is not ("a", "bc").
        """
        hashed = hashlib.sha256(_TAG)
        for name, value in self.to_dict().items():
            for part in (name, json.dumps(value, sort_keys=True)):
                hashed.update(len(part.encode()).to_bytes(8, "little"))
                hashed.update(part.encode())
        return hashed.hexdigest()


def first_difference(left: Any, right: Any, name: str) -> tuple[str, Any, Any] | None:
    """Return where two pieces of plain data first differ, and what stands there; None if nowhere.

    Args:
        left: Dicts, lists and plain values.
        right: The same.
        name: Of the whole, with which the place begins: "config.layers[1].attention.window".
    """
    if isinstance(left, dict) and isinstance(right, dict):
        found = (
            first_difference(left.get(key, "nothing"), right.get(key, "nothing"), f"{name}.{key}")
            for key in {**right, **left}
        )
        return next((each for each in found if each is not None), None)
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return f"len({name})", len(left), len(right)
        return next(_of_lists(left, right, name), None)
    return None if left == right and type(left) is type(right) else (name, left, right)


def weights_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the sha256 over canonical name, shape, dtype and bytes of every array, by name.

    Args:
        arrays: Canonical name -> array, of a checkpoint or of either twin's `to_arrays`.

    Not checked here: whether the names are a model's. Rows of q and k count in the order in which
    they are given, so a GGUF file's hash is not that of the model made from it.
    Cost: reads every array, one after the other.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {list(array.shape)} {array.dtype.name}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _of_lists(left: list[Any], right: list[Any], name: str) -> Iterator[tuple[str, Any, Any]]:
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if (found := first_difference(a, b, f"{name}[{i}]")) is not None:
            yield found
