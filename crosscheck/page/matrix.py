"""What the page of a detection matrix shows, from its JSON."""

import math
from collections.abc import Mapping
from typing import Any

# A fault is killed from ten tolerances on; the shades of a cell stand for powers of ten above.
KILL, SHADES = 10.0, 5


def view_matrix(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's values.

    Args:
        data: From `DetectionMatrix.to_json`.
    """
    relations = sorted({name for row in data["cells"].values() for name in row})
    return {
        "subject": data["subject"],
        "killed": data["killed"],
        "planted": data["planted"],
        "score": f"{data['score']:.0%}",
        "survivors": data["survivors"],
        "unseen": {name: faults for name, faults in data["unseen"].items() if faults},
        "skipped": sorted(data["skipped"].items()),
        "notes": data["notes"],
        "seconds": data["seconds"],
        "relations": relations,
        "faults": [
            {"name": fault, "cells": [_cell(row.get(name)) for name in relations]}
            for fault, row in data["cells"].items()
        ],
    }


def _cell(effect: Any) -> dict[str, Any]:
    if effect is None:
        return {"text": "", "shade": 0, "words": "not asked"}
    value = math.inf if effect == "inf" else float(effect)
    if value < KILL:
        return {"text": "·", "shade": 0, "words": f"{value:.1g} tolerances: not seen"}
    power = SHADES if math.isinf(value) else min(SHADES, 1 + int(math.log10(value / KILL) / 2))
    text = "∞" if math.isinf(value) else f"1e{math.floor(math.log10(value))}"
    return {"text": text, "shade": power, "words": f"{value:.1e} tolerances"}
