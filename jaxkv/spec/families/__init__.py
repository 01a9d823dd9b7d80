"""The families by name: one file each, found through the tables below and imported when asked for.

What a family that GGUF files hold offers: `config_from_gguf(metadata, tensors)`,
`places_from_gguf(config)` (canonical name -> where the file keeps it) and the facts
`GGUF_INTERLEAVED_QK`, `GGUF_READ` (of the architecture's keys) and `GGUF_ROPE_TENSORS` (tensors of
factors on rotary speeds that the config is made of); and `older_places_from_gguf(config)` where
older files keep some elsewhere.
One that Hugging Face directories hold: `config_from_huggingface(config_json)`,
`places_from_huggingface(config)` (canonical name -> where the file keeps it) and the facts
`HUGGINGFACE_PREFIX` (of tensor names, left out by some files), `HUGGINGFACE_IGNORED_TENSORS`
(pattern -> why it is not read), and of the keys of config.json `HUGGINGFACE_READ`,
`HUGGINGFACE_IGNORED` (key -> why) and `HUGGINGFACE_NEUTRAL` (key -> the only supported value); for
writing one, `config_to_huggingface(config)` and the fact `HUGGINGFACE_ARCHITECTURE`. Where the
tensors decide what config.json leaves open: `config_for_tensors(config, tensor_names)`. Where a
checkpoint may hold layers that predict further tokens, `draft_tensors_from_huggingface(config)`
names those of their tensors that are not read; with `config.has_mtp` the places have the others.
A preset's family offers `preset()`.
"""

import importlib
from types import ModuleType

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import ConfigError

_NAMES = (
    "bart",
    "deepseek_v2",
    "deepseek_v3",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "reference",
    "t5",
)
_FAMILIES = {name: f"jaxkv.spec.families.{name}" for name in _NAMES}
_GGUF_ARCHITECTURES = {name: name for name in ("gemma3", "gpt2", "llama", "phi3", "qwen2", "qwen3")}
_GGUF_ARCHITECTURES["deepseek2"] = "deepseek_v2"
_HUGGINGFACE_MODEL_TYPES = {
    "bart": "bart",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "llama": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "t5": "t5",
}
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


def gguf_architectures() -> tuple[str, ...]:
    """Return the architectures that `gguf_family` accepts."""
    return tuple(_GGUF_ARCHITECTURES)


def huggingface_model_types() -> tuple[str, ...]:
    """Return the model types that `huggingface_family` accepts."""
    return tuple(_HUGGINGFACE_MODEL_TYPES)


def huggingface_families() -> tuple[str, ...]:
    """Return the names of the families that read Hugging Face directories."""
    return tuple(dict.fromkeys(_HUGGINGFACE_MODEL_TYPES.values()))


def huggingface_model_type(name: str) -> str:
    """Return the `model_type` of the family called `name`.

    Raises:
        ConfigError: The family has no Hugging Face directories (those that have are listed).
    """
    types = {family: model_type for model_type, family in _HUGGINGFACE_MODEL_TYPES.items()}
    return _look_up("huggingface_model_type", "family", name, types)


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
