"""docs/families.md says what the code reads of each family's config.json, ignores and refuses."""

from types import ModuleType

import pytest

from jaxkv.spec import families
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
    return "\n".join(lines).rstrip() + "\n"


def _own(keys: dict, common: dict) -> dict:
    return {key: value for key, value in keys.items() if common.get(key, keys) != value}


def _listed(keys: set[str]) -> str:
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
