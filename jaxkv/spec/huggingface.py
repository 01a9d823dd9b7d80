"""Hugging Face directories as checkpoints: config.json, safetensors, tokenizer.json.

Which ids end a text: `eos_token_id` (one, or a list) of generation_config.json if it is there and
not null, else of config.json, else none. What a text of a decoder with an encoder starts with:
`decoder_start_token_id`, and `forced_bos_token_id` if there is one, likewise.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxkv.spec import families
from jaxkv.spec.checkpoint import (
    Checkpoint,
    Place,
    Stacked,
    Stored,
    Weights,
    stored_parts,
    stored_shapes,
    weight_fault,
)
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError, JaxkvError, SourceError, WeightError
from jaxkv.spec.safetensors_files import Tensor, open_tensors, read_json
from jaxkv.spec.weight_shapes import weight_shapes

FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Names and patterns of all that is read of a directory."""


def read_huggingface(path: str | os.PathLike[str], *, mtp: bool = False) -> Checkpoint:
    """Return the checkpoint in a directory; its config, names, shapes and files are checked.

    Files stay memory-mapped: do not overwrite them while the checkpoint is in use.

    Args:
        path: A directory as `save_pretrained` writes it, of a model type that a family reads.
        mtp: Whether its layer that predicts a further token is read too, to draft with.

    Raises:
        SourceError: There is no such directory, or a file of it is absent or something else.
        WeightError: A file is missing, cut or damaged, or the tensors are not those of the config.
        ConfigError: The model type is unknown, or the config asks for something unsupported.

    Not checked here: the values; a weight that is not finite is a WeightError when it is accessed.
    Cost: headers and texts at once, each weight anew at each access; a head stored beside the
    embedding that it is tied to is read and compared.
    """
    directory = Path(path)
    try:
        return _checkpoint(directory, mtp)
    except JaxkvError as error:
        fact = " ".join(str(error).removeprefix("huggingface_family: ").splitlines())
        raise type(error)(f"read_huggingface: {directory}: {fact}") from None


def _checkpoint(directory: Path, mtp: bool) -> Checkpoint:
    data = _config_json(directory)
    family = families.huggingface_family(_model_type(data))
    data |= _start_ids(directory, family)
    config: ModelConfig = family.config_from_huggingface(ConfigJson(data))
    config = with_mtp(config) if mtp else config
    end_ids = _end_ids(directory, data, config.vocab_size)
    tensors = open_tensors(directory)
    if hasattr(family, "config_for_tensors"):
        config = family.config_for_tensors(config, tensors.keys())
    return Checkpoint(
        config=config,
        weights=_weights(family, config, tensors),
        interleaved_qk=False,
        end_ids=end_ids,
        tokenizer_data=_tokenizer_data(directory),
        name=directory.resolve().name,
        dtype=_dtype(family, config, tensors),
    )


def with_mtp(config: ModelConfig) -> ModelConfig:
    """Return the config of a model that holds its layer that predicts a further token.

    Raises:
        ConfigError: There is none, or are several.
    """
    if config.draft_layers != 1:
        raise ConfigError(
            f"mtp is asked for, and there are {config.draft_layers} layers that predict further "
            "tokens, expected 1. Leave mtp out."
        )
    return replace(config, has_mtp=True)


def _config_json(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise SourceError("there is no such directory. Check the path.")
    if not (directory / "config.json").is_file():
        raise SourceError(
            "config.json is missing, expected it beside the weights. Is the download complete?"
        )
    return read_json(directory / "config.json")


def _model_type(data: Mapping[str, Any]) -> str:
    if not isinstance(data.get("model_type"), str):
        raise ConfigError(
            f"config.json: model_type is {data.get('model_type')!r}, expected the name of a "
            "family. Is it the config of a model?"
        )
    return data["model_type"]


def _weights(family: ModuleType, config: ModelConfig, tensors: dict[str, Tensor]) -> Weights:
    prefix: str = family.HUGGINGFACE_PREFIX
    places: dict[str, Place] = family.places_from_huggingface(config)
    if not any(name.startswith(prefix) for name in tensors):
        places = {name: _without(prefix, place) for name, place in places.items()}
    ignored = re.compile("|".join(family.HUGGINGFACE_IGNORED_TENSORS))
    drafts = {each.removeprefix(prefix) for each in _draft_tensors(family, config)}
    bare = {name: name.removeprefix(prefix) for name in tensors}
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if not (ignored.fullmatch(bare[name]) or bare[name] in drafts)
    }
    head_name, embed_name = (_name(places[f"{part}.weight"]) for part in ("head", "embed"))
    head = kept.pop(head_name, None) if config.tied_head else None
    shapes = weight_shapes(config)
    # Compared under the file's own names, so that an error names what its reader can look up there.
    found = {name: tensor.shape for name, tensor in kept.items()}
    kv_names = {_name(places[each]) for each in shapes if ".attn.k." in each or ".attn.v." in each}
    if fault := weight_fault(stored_shapes(shapes, places), found, config.family, kv_names):
        raise WeightError(fault)
    if head is not None:
        _check_tied(kept[embed_name], head)
    return Weights({name: (shape, _reader(kept, places[name])) for name, shape in shapes.items()})


def _draft_tensors(family: ModuleType, config: ModelConfig) -> tuple[str, ...]:
    known = getattr(family, "draft_tensors_from_huggingface", None)
    return () if known is None else known(config)


def _name(place: Place) -> str:
    return stored_parts(place)[0].name


def _dtype(family: ModuleType, config: ModelConfig, tensors: dict[str, Tensor]) -> str:
    name = _name(family.places_from_huggingface(config)["embed.weight"])
    bare = name.removeprefix(family.HUGGINGFACE_PREFIX)
    return (tensors.get(name) or tensors[bare]).dtype.name


def _without(prefix: str, place: Place) -> Place:
    if isinstance(place, Stacked):
        return Stacked(tuple(_bare(prefix, part) for part in place.parts))
    return _bare(prefix, place)


def _bare(prefix: str, part: Stored) -> Stored:
    return replace(part, name=part.name.removeprefix(prefix))


def _reader(tensors: Mapping[str, Tensor], place: Place) -> Any:
    if isinstance(place, Stacked):
        return lambda: np.stack([tensors[part.name].read(part) for part in place.parts])
    return lambda: tensors[place.name].read(place)


def _check_tied(embed: Tensor, head: Tensor) -> None:
    if head.shape == embed.shape:
        ours, theirs = (each.read(Stored(each.name)) for each in (embed, head))
        num_other = int(np.count_nonzero(ours != theirs))
        if not num_other:
            return
        differs = f"differs from it in {num_other} of {ours.size} values"
    else:
        differs = f"has shape {head.shape}, it {embed.shape}"
    raise WeightError(
        f"weight {head.name!r} is there though config.json ties the head to {embed.name!r}, and "
        f"{differs}. Set tie_word_embeddings to false if the head is its own."
    )


def _start_ids(directory: Path, family: ModuleType) -> dict[str, Any]:
    """Return what generation_config.json says of a decoder's first tokens: it goes before."""
    path = directory / "generation_config.json"
    given = read_json(path) if path.is_file() else {}
    names = {"decoder_start_token_id", "forced_bos_token_id"} & family.HUGGINGFACE_READ
    return {name: given[name] for name in names if given.get(name) is not None}


def _end_ids(directory: Path, data: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    path, given = directory / "generation_config.json", None
    owner = path.name
    if path.is_file():
        given = read_json(path).get("eos_token_id")
    if given is None:
        given, owner = data.get("eos_token_id"), "config.json"
    ids = [] if given is None else given if isinstance(given, list) else [given]
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < vocab_size:
            raise ConfigError(
                f"{owner}: eos_token_id is {given!r}, expected ids below {vocab_size} "
                "(vocab_size). Download it again."
            )
    return tuple(ids)


def _tokenizer_data(directory: Path) -> dict[str, Any] | None:
    if not (directory / "tokenizer.json").is_file():
        return None
    texts = ("tokenizer.json", "chat_template.jinja")
    found: dict[str, Any] = {
        name: _text(directory / name) for name in texts if (directory / name).is_file()
    }
    if (directory / "tokenizer_config.json").is_file():
        found["tokenizer_config.json"] = read_json(directory / "tokenizer_config.json")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path.name} is no UTF-8 text: {error}. Download it again.") from None
