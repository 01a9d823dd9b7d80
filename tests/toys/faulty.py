"""Faulted copies of the toy: its own source with one small edit, under another package name."""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.toys import FLAVORS

# In the order of their imports.
FILES = (
    "config",
    "ops",
    "stores",
    "model",
    "layouts",
    "quantized",
    "prefix",
    "speculate",
    "info",
    "subject",
)


@dataclass(frozen=True)
class Edit:
    """One fault: in `file`, `old` (once) becomes `new`; `relation` must see it on `flavor`."""

    name: str
    relation: str
    flavor: str
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return self.name


@cache
def faulted(edit: Edit) -> Any:
    """Return the flavor made from the edited source.

    Raises:
        ValueError: The edit's old text does not occur exactly once.
    """
    package = f"faulted_toys_{edit.name.replace('.', '_')}"
    sys.modules[package] = ModuleType(package)
    for file in FILES:
        source = (Path(__file__).parent / f"{file}.py").read_text("utf-8")
        if file == edit.file:
            if source.count(edit.old) != 1:
                raise ValueError(
                    f"{edit.name}: {edit.old!r} occurs {source.count(edit.old)} times in {file}.py."
                )
            source = source.replace(edit.old, edit.new)
        module = ModuleType(f"{package}.{file}")
        # Frozen dataclasses look themselves up in sys.modules.
        sys.modules[module.__name__] = module
        exec(
            compile(source.replace("tests.toys.", f"{package}."), f"{file}.py", "exec"),
            vars(module),
        )
    return _like(FLAVORS[edit.flavor], package)


def _like(toy: Any, package: str) -> Any:
    config = vars(sys.modules[f"{package}.config"])["ToyConfig"](**vars(toy.config))
    kind = vars(sys.modules[f"{package}.subject"])["Toy"]
    return kind(**{**vars(toy), "config": config})
