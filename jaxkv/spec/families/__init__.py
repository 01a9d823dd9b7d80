"""The families by name: one file each, found through the tables below and imported when asked for.

What a family that GGUF files hold offers: `config_from_gguf(metadata, tensor_names)`,
`names_from_gguf(config)` (GGUF tensor name -> canonical name) and the fact `GGUF_INTERLEAVED_QK`.
One that Hugging Face directories hold: `config_from_huggingface(config_json)`,
`places_from_huggingface(config)` (canonical name -> where the file keeps it) and the facts
`HUGGINGFACE_PREFIX` (of tensor names, left out by some files) and `HUGGINGFACE_IGNORED_TENSORS`
(pattern -> why it is not read). A preset's family offers `preset()`.
"""

import importlib
from types import ModuleType

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import ConfigError

_FAMILIES = {
    "gpt2": "jaxkv.spec.families.gpt2",
    "llama": "jaxkv.spec.families.llama",
    "reference": "jaxkv.spec.families.reference",
}
_GGUF_ARCHITECTURES = {"llama": "llama"}
_HUGGINGFACE_MODEL_TYPES = {"gpt2": "gpt2", "llama": "llama"}
_PRESETS = {"reference": "reference"}


def family(name: str) -> ModuleType:
    """Return the module of the family called `name`.

    Raises:
        ConfigError: No family has this name (all known names are listed).
    """
    return importlib.import_module(_look_up("family", "name", name, _FAMILIES))


def gguf_family(architecture: str) -> ModuleType:
    """Return the family that reads GGUF files whose `general.architecture` is `architecture`.

    Raises:
        ConfigError: No family reads it (all known architectures are listed).
    """
    return family(_look_up("gguf_family", "architecture", architecture, _GGUF_ARCHITECTURES))


def huggingface_family(model_type: str) -> ModuleType:
    """Return the family that reads directories whose config.json has this `model_type`.

    Raises:
        ConfigError: No family reads it (all known model types are listed).
    """
    known = _HUGGINGFACE_MODEL_TYPES
    return family(_look_up("huggingface_family", "model_type", model_type, known))


def presets() -> tuple[str, ...]:
    """Return the names that `preset` accepts."""
    return tuple(_PRESETS)


def preset(name: str) -> ModelConfig:
    """Return the config of the preset called `name`: a decoder that needs no file.

    Raises:
        ConfigError: No preset has this name (all known names are listed).
    """
    return family(_look_up("preset", "name", name, _PRESETS)).preset()


def _look_up(function: str, argument: str, given: str, table: dict[str, str]) -> str:
    if given not in table:
        raise ConfigError(
            f"{function}: {argument} is {given!r}, expected one of {', '.join(sorted(table))}."
            " Write a file for it in jaxkv/spec/families and add it to the table there."
        )
    return table[given]
