"""Framework x chunking x layout on some models, a table each: `python -m bench.agreement`.

Every cell feeds the same texts in float64, cut and cached another way, to the same weights, and
holds the logits against crosscheck's decoder in numpy, which has no cache. The number is the
largest difference, in units of the largest logit. A cell that cannot be run says why. Layouts that
a model's layers make no use of (a ring without a window) are left out of its table.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from crosscheck.decoder import decode
from crosscheck.relations.drive import encoder_of
from jaxkv.spec.errors import JaxkvError

TWINS = ("jaxkv", "torchkv")
# Exact layouts by the name in the table: what `factory` is given.
LAYOUTS: dict[str, dict[str, Any]] = {
    "uncached": {},
    "contiguous": {"layout": "contiguous"},
    "window": {"layout": "window"},
    "paged 1": {"layout": "paged", "page_size": 1},
    "paged 4": {"layout": "paged", "page_size": 4},
    "paged 16": {"layout": "paged", "page_size": 16},
}
CHUNKINGS: dict[str, list[int]] = {
    "whole": [24],
    "one by one": [1] * 24,
    "5 3 9 7": [5, 3, 9, 7],
    "23 1": [23, 1],
}
# Full attention, windows of two sizes beside it, learned positions, every other layer a window,
# latents, and an encoder: what caches differ in.
MODELS = ("llama", "llama-mixed", "gpt2", "gemma3", "deepseek_v3", "t5")
ROWS, LENGTH, CAPACITY = 3, 24, 40
# Within one twin 1e-10; against another program 1e-9 of the largest logit: docs/crosscheck.md.
ALLOWED = 1e-9


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Returns:
        0; 1 if a cell differs by more than 1e-9 of the largest logit, or nothing was compared.
    """
    parser = argparse.ArgumentParser("python -m bench.agreement", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    numbers: list[float] = []
    for model in parser.parse_args(arguments).models:
        found = measure(model)
        Console(highlight=False).print(_table(model, found))
        numbers += [x for row in found.values() for x in row.values() if isinstance(x, float)]
    agrees, worst = bool(numbers) and all(x <= ALLOWED for x in numbers), np.max([0.0, *numbers])
    verdict = "AGREE" if agrees else "DISAGREE"
    print(
        f"{verdict}: {len(numbers)} cells, float64, worst {worst:.1e} of the largest |logit|, "
        f"allowed {ALLOWED:.0e}."
    )
    return int(not agrees)


def measure(model: str) -> dict[tuple[str, str], dict[str, float | str]]:
    """Return the worst difference by twin and layout, and by chunking; or why there is none."""
    found: dict[tuple[str, str], dict[str, float | str]] = {}
    for twin in TWINS:
        factory = importlib.import_module(f"{twin}.subject").factory
        for layout, options in LAYOUTS.items():
            subject = factory(model, dtype="float64", **options)
            if layout == "window" and not any(subject.info.windows):
                continue
            size = subject.info.vocab_size
            ids = np.random.default_rng(1).integers(0, size, (ROWS, LENGTH))
            given = encoder_of(subject, ROWS, seed=1)
            config, weights = subject.decoder_inputs()
            expected = decode(config, weights, ids, encoder_BE=given)
            found[twin, layout] = {
                name: _difference(subject, layout, ids, sizes, expected, given)
                for name, sizes in CHUNKINGS.items()
            }
    return found


def _difference(
    subject: Any,
    layout: str,
    ids: np.ndarray,
    sizes: list[int],
    expected: np.ndarray,
    encoder: np.ndarray | None,
) -> float | str:
    try:
        logits = _logits(subject, layout, ids, sizes, encoder)
    except JaxkvError as error:
        return str(error)
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def _logits(
    subject: Any, layout: str, ids: np.ndarray, sizes: list[int], encoder: np.ndarray | None
) -> np.ndarray:
    ends = np.cumsum(sizes)
    given = {} if encoder is None else {"encoder": encoder}
    if layout == "uncached":
        parts = [
            subject.full(ids[:, :end], **given)[:, -size:]
            for size, end in zip(sizes, ends, strict=True)
        ]
        return np.concatenate(parts, axis=1)
    state, parts = subject.init(len(ids), CAPACITY, **given), []
    for size, end in zip(sizes, ends, strict=True):
        logits, state = subject.step(state, ids[:, end - size : end])
        parts.append(logits)
    return np.concatenate(parts, axis=1)


def _table(model: str, found: dict[tuple[str, str], dict[str, float | str]]) -> Table:
    table = Table(title=f"{model}: |logits - numpy decoder| / largest |logit|")
    for column in ("framework", "layout", *CHUNKINGS):
        table.add_column(column)
    for (twin, layout), row in found.items():
        cells = [x if isinstance(x, str) else _verdict(x) for x in row.values()]
        table.add_row(twin, layout, *cells)
    return table


def _verdict(difference: float) -> str:
    # Not `difference > ALLOWED`, which NaN would pass.
    return f"{difference:.1e}" if difference <= ALLOWED else f"DISAGREE {difference:.1e}"


if __name__ == "__main__":
    sys.exit(main())
