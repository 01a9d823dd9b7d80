"""Faulty copies by editing source text: each named edit replaces lines that occur exactly once."""

import importlib.util
import itertools
import sys
import types
from dataclasses import dataclass
from pathlib import Path

_NUMBER = itertools.count()


@dataclass(frozen=True)
class Edit:
    """Replace `old` by `new` in the source of a module (`into`: a short name of the module)."""

    into: str
    old: str
    new: str


def edited(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text with each edit applied; an anchor that is not there once is an error."""
    for edit in edits:
        found = text.count(edit.old)
        if found != 1:
            raise ValueError(f"edited: {edit.old!r} occurs {found} times, expected once.")
        text = text.replace(edit.old, edit.new)
    return text


def load(text: str, *, name: str, package: str = "", file: str = "") -> types.ModuleType:
    """Return a module made from source text; relative imports resolve in the package.

    file: Where its decorators may believe that it stands.
    """
    full = f"{package or 'tests.faulty'}.{name}_{next(_NUMBER)}"
    module = types.ModuleType(full)
    module.__package__ = package or "tests.faulty"
    module.__file__ = file or f"<{full}>"
    sys.modules[full] = module
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def text_of(module: str) -> str:
    """Return the source text of an importable module."""
    return Path(file_of(module)).read_text(encoding="utf-8")


def file_of(module: str) -> str:
    """Return where an importable module stands."""
    return importlib.util.find_spec(module).origin
