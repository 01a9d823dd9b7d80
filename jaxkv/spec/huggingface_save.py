"""Models written as Hugging Face directories, for that library and `read_huggingface` to load."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxkv.spec import families
from jaxkv.spec.checkpoint import Place, Stacked, Stored, check_weights, stored_parts
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError, SourceError
from jaxkv.spec.safetensors_files import INDEX, ONE_FILE
from jaxkv.spec.weight_shapes import weight_shapes

SHARD_BYTES = 4 * 1024**3


def write_huggingface(
    path: str | os.PathLike[str],
    config: ModelConfig,
    arrays: Mapping[str, np.ndarray],
    *,
    end_ids: tuple[int, ...] = (),
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json and safetensors of a model into a new or empty directory.

    Args:
        path: Where to.
        config: Of the model, of a family that has such directories.
        arrays: Canonical name -> array, as either twin's `to_arrays` gives them; dtypes stay.
        end_ids: Token ids that end a text, as a checkpoint has them.
        shard_bytes: Of one file, unless one tensor is larger.

    Raises:
        SourceError: The directory holds something.
        ConfigError: The family has no such directories, or a config.json of it cannot say this
            config.
        WeightError: A tensor is missing, unexpected or misshapen.

    Not checked here: the order of query and key rows. A llama GGUF file's own are interleaved;
    `to_arrays` of a loaded model has them in half-split order, as such directories do.
    Not written: a tokenizer.
    Cost: each array once, a shard at a time in memory.
    """
    directory = Path(path)
    data = _config_json(config, arrays, end_ids)
    check_weights(config, {name: np.shape(array) for name, array in arrays.items()})
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SourceError(
            f"write_huggingface: {directory} holds files, expected a new or empty directory. "
            "Give another."
        )
    (directory / "config.json").write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    _write_shards(directory, _tensors(config, arrays), shard_bytes)


def _config_json(
    config: ModelConfig, arrays: Mapping[str, np.ndarray], end_ids: tuple[int, ...]
) -> dict[str, Any]:
    model_type = families.huggingface_model_type(config.family)
    family = families.family(config.family)
    data = {
        "architectures": [family.HUGGINGFACE_ARCHITECTURE],
        "model_type": model_type,
        # Absent, the library has ids of its own for some families, past a small vocabulary.
        "bos_token_id": None,
        "pad_token_id": None,
        "eos_token_id": list(end_ids) or None,
        "dtype": arrays["embed.weight"].dtype.name if "embed.weight" in arrays else None,
    } | family.config_to_huggingface(config)
    # The mapping back is the judge of the mapping there.
    back = family.config_from_huggingface(ConfigJson(data))
    if hasattr(family, "config_for_tensors"):
        back = family.config_for_tensors(back, _tensor_names(family, config))
    read = {"dropout_rate": config.dropout_rate, "has_mtp": config.has_mtp}
    if replace(back, **read) != config:
        parts = [key for key, value in vars(back).items() if value != vars(config)[key]]
        raise ConfigError(
            f"write_huggingface: config.json of {model_type!r} cannot say the config's "
            f"{', '.join(parts)}, expected a config as this family's files have. Was the model "
            "read from another format?"
        )
    return data


def _tensor_names(family: ModuleType, config: ModelConfig) -> set[str]:
    places: dict[str, Place] = family.places_from_huggingface(config)
    return {part.name for name in weight_shapes(config) for part in stored_parts(places[name])}


def _tensors(
    config: ModelConfig, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor of the file: parts packed, stacked ones apart, axes in its order."""
    places: dict[str, Place] = families.family(config.family).places_from_huggingface(config)
    packed: dict[str, list[tuple[Stored, str]]] = {}
    for name in weight_shapes(config):
        place = places[name]
        if isinstance(place, Stacked):
            yield from ((part.name, arrays[name][z]) for z, part in enumerate(place.parts))
        else:
            packed.setdefault(place.name, []).append((place, name))
    for given, parts in packed.items():
        parts.sort(key=lambda part: part[0].outputs or (0, 0))
        yield given, _pack(parts[0][0], [arrays[name] for _, name in parts])


def _pack(place: Stored, arrays: list[np.ndarray]) -> np.ndarray:
    grouped = [each.reshape(place.groups, -1, *each.shape[1:]) for each in arrays]
    whole = np.concatenate(grouped, axis=1)
    whole = whole.reshape(-1, *whole.shape[2:])
    whole = np.transpose(whole) if place.in_out else whole
    return whole[None] if place.lead else whole


def _write_shards(
    directory: Path, tensors: Iterator[tuple[str, np.ndarray]], shard_bytes: int
) -> None:
    from safetensors.numpy import save_file

    shards: list[list[str]] = []
    shard: dict[str, np.ndarray] = {}

    def flush() -> None:
        file = f"model-{len(shards) + 1:05}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    size_bytes = 0
    for name, tensor in tensors:
        if shard and size_bytes + tensor.nbytes > shard_bytes:
            flush()
            size_bytes = 0
        shard[name] = np.ascontiguousarray(tensor)
        size_bytes += tensor.nbytes
    flush()
    _name_shards(directory, shards)


def _name_shards(directory: Path, shards: list[list[str]]) -> None:
    count, places = len(shards), {}
    for i, names in enumerate(shards, 1):
        last = ONE_FILE if count == 1 else f"model-{i:05}-of-{count:05}.safetensors"
        (directory / f"model-{i:05}.safetensors").rename(directory / last)
        places |= dict.fromkeys(names, last)
    if count > 1:
        index = {"metadata": {}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
