"""How a program of its own makes the model that a spec names."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from crosscheck.reproduce_program import Origin
from crosscheck.subjects.sources import ADAPTER_HINTS, parse


def origin_of(spec: str, subject: Any, folder: Path) -> Origin | None:
    """Return the lines that make a subject without crosscheck, or None where nothing can.

    Args:
        spec: As the command line named it.
        subject: What it gave: its `driver` is the code that drives a bare model.
        folder: Where the program will stand.
    """
    origin = _factory(spec, folder)
    if origin is None or not getattr(subject, "bare", spec.startswith("hf:")):
        return origin
    driver = tuple(getattr(subject, "driver", None) or ())
    return replace(origin, driver=driver) if driver else None


def _factory(spec: str, folder: Path) -> Origin | None:
    if spec.startswith("hf:"):
        directory = os.path.abspath(spec.removeprefix("hf:"))
        return Origin(
            f"AutoModelForCausalLM.from_pretrained({directory!r})",
            ("from transformers import AutoModelForCausalLM",),
        )
    head, options = parse(spec)
    place, _, name = head.partition(":")
    module = Path(place).stem if place.endswith(".py") else place
    if not re.fullmatch(r"[A-Za-z_][\w.]*", module):
        return None
    given = [f"{key}={value!r}" for key, value in options.items() if key not in ADAPTER_HINTS]
    # Where a module has no such factory, `load_subject` asked its `factory` for the name.
    if not name.isidentifier() or _asks_by_name(module, name):
        name, given = "factory", [repr(name), *given]
    where = None
    if place.endswith(".py"):
        where = os.path.relpath(Path(place).resolve().parent, folder.resolve())
    return Origin(f"{name}({', '.join(given)})", (f"from {module} import {name}",), where)


def _asks_by_name(module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return hasattr(loaded, "factory") and not hasattr(loaded, name)
