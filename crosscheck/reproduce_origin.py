"""How a program of its own makes the model that a spec names."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from crosscheck.reproduce_program import Origin


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
    head, _, query = spec.rpartition("?") if "?" in spec else (spec, "", "")
    place, _, name = head.partition(":")
    options = ", ".join(f"{key}={value!r}" for key, value in parse_qsl(query))
    module = Path(place).stem if place.endswith(".py") else place
    if not re.fullmatch(r"[A-Za-z_][\w.]*", module) or not name.isidentifier():
        return None
    where = None
    if place.endswith(".py"):
        where = os.path.relpath(Path(place).resolve().parent, folder.resolve())
    return Origin(f"{name}({options})", (f"from {module} import {name}",), where)
