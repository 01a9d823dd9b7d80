"""docs/families.md says what the code reads of each family's config.json, ignores and refuses."""

from collections.abc import Iterable
from types import ModuleType

import pytest

from jaxkv.spec import families, gguf_keys, gguf_vocabulary
from jaxkv.spec.config_json import COMMON_IGNORED, COMMON_NEUTRAL
from tests.repo.tree import ROOT

PAGE = "docs/families.md"


def tables() -> str:
    """Return the part of the page that follows from the code."""
    lines = ["## Keys that change nothing, in every family", "", *_reasons(COMMON_IGNORED), ""]
    lines += ["## Keys with one supported value, in every family", "", *_values(COMMON_NEUTRAL)]
    for model_type in families.huggingface_model_types():
        family = families.huggingface_family(model_type)
        lines += ["", f"## {model_type}", "", f"Read: {_listed(family.HUGGINGFACE_READ)}.", ""]
        own = _own(family.HUGGINGFACE_IGNORED, COMMON_IGNORED)
        lines += [*_reasons(own), ""] if own else []
        lines += _values(_own(family.HUGGINGFACE_NEUTRAL, COMMON_NEUTRAL))
    return "\n".join([*lines, "", *_gguf_tables()]).rstrip() + "\n"


def _gguf_tables() -> list[str]:
    lines = ["## Keys of GGUF files", "", *_reasons(gguf_keys.WITHOUT_EFFECT)]
    lines += ["", *_values(gguf_keys.NEUTRAL)]
    for architecture in families.gguf_architectures():
        family = families.gguf_family(architecture)
        lines += ["", f"{architecture} reads {_listed(family.GGUF_READ)}."]
        if family.GGUF_ROPE_TENSORS:
            lines[-1] += f" Tensors of its config: {_listed(family.GGUF_ROPE_TENSORS)}."
    lines += ["", "## Keys of the tokenizer in GGUF files", ""]
    lines += [f"Read: {_listed(gguf_vocabulary.READ)}, and `chat_template` by any name."]
    lines += ["", *_reasons(gguf_vocabulary.IGNORED), "", *_values(gguf_vocabulary.NEUTRAL)]
    return lines


def _own(keys: dict, common: dict) -> dict:
    return {key: value for key, value in keys.items() if common.get(key, keys) != value}


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys))


def _reasons(ignored: dict[str, str]) -> list[str]:
    rows = [f"| `{key}` | {why} |" for key, why in sorted(ignored.items())]
    return ["| ignored | why |", "|---|---|", *rows]


def _values(neutral: dict) -> list[str]:
    rows = [f"| `{key}` | {value!r} |" for key, value in sorted(neutral.items())]
    return ["| refused unless | it is |", "|---|---|", *rows] if rows else []


def test_the_page_lists_every_key_of_every_family():
    text = (ROOT / PAGE).read_text("utf-8")

    assert text[text.index("## Keys that change nothing") :] == tables()


@pytest.mark.parametrize("model_type", families.huggingface_model_types())
def test_a_key_is_read_or_ignored_or_neutral_and_not_two_of_them(model_type):
    family: ModuleType = families.huggingface_family(model_type)
    kinds = (family.HUGGINGFACE_READ, family.HUGGINGFACE_IGNORED, family.HUGGINGFACE_NEUTRAL)

    keys = [key for kind in kinds for key in kind]

    assert sorted(keys) == sorted(set(keys))


@pytest.mark.parametrize("architecture", families.gguf_architectures())
def test_a_key_of_a_gguf_file_is_read_or_ignored_or_neutral_and_not_two_of_them(architecture):
    family = families.gguf_family(architecture)
    neutral = getattr(family, "GGUF_NEUTRAL", gguf_keys.NEUTRAL)

    keys = [*family.GGUF_READ, *gguf_keys.WITHOUT_EFFECT, *neutral]

    assert sorted(keys) == sorted(set(keys))


def test_a_key_of_a_tokenizer_is_read_or_ignored_or_neutral_and_not_two_of_them():
    kinds = (gguf_vocabulary.READ, gguf_vocabulary.IGNORED, gguf_vocabulary.NEUTRAL)

    keys = [key for kind in kinds for key in kind]

    assert sorted(keys) == sorted(set(keys))
