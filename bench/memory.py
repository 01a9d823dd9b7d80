"""Memory of a cache: predicted before anything is made, allocated, and what the process took.

Each case runs in a process of its own, because a peak cannot be taken back. The peak of the same
process without the cache is subtracted: what is left is the cache, and what else filling it takes.
"""

import argparse
import json
import subprocess
import sys

from bench.rows import Row, missing, report, rows_of
from bench.timing import Spread
from bench.usage import positive
from jaxkv.spec import memory
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import JaxkvError
from jaxkv.spec.source import open_source

TWINS = ("jaxkv", "torchkv")
PROBE = "bench.memory_probe"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--model", default="smollm2", help="as for `jaxkv generate`")
    parser.add_argument("--batch", type=positive, default=8, metavar="B", help="rows (default 8)")
    parser.add_argument(
        "--tokens", type=positive, default=2048, metavar="T", help="of a row (2048)"
    )


def main(options: argparse.Namespace) -> int:
    """Print the table: bytes of the cache by prediction, by its arrays, and by the process.

    Returns:
        0; 1 if a prediction is not the allocated number to the byte.
    """
    config = open_source(options.model).config
    case = f"b{options.batch}-t{options.tokens}"
    rows: list[Row] = []
    failed = 0
    for twin in TWINS[:1] if options.quick else TWINS:
        for layout in memory.LAYOUTS:
            predicted, found = 0, ""
            try:
                predicted = predict(config, layout, batch=options.batch, tokens=options.tokens)
                found = probe(twin, layout, options)
            except JaxkvError as error:
                # A model whose heads no default group divides, for instance.
                found = str(error)
            if isinstance(found, str):
                rows.append(missing("memory", case, f"{twin}-{layout}", "allocated", "B", found))
                continue
            failed |= found["allocated"] != predicted
            numbers = {"predicted": predicted, **found}
            for metric, number in numbers.items():
                spread = {f"{twin}-{layout}": Spread.of([number])}
                rows += rows_of("memory", case, metric, spread, unit="B")
    report(rows, options, about=f"cache of {options.model}, float32")
    return int(failed)


def predict(config: ModelConfig, layout: str, *, batch: int, tokens: int) -> int:
    """Return the bytes of a float32 cache with the layout's default sizes, bookkeeping included."""
    values = memory.model_cache_bytes(config, batch=batch, tokens=tokens, itemsize=4, layout=layout)
    paged = layout == "paged"
    table = memory.page_table_bytes(batch=batch, tokens=tokens) if paged else 0
    return values + memory.bookkeeping_bytes(batch) + table


def probe(twin: str, layout: str, options: argparse.Namespace) -> dict[str, int] | str:
    """Return the bytes that a process of its own measured, or why there are none."""
    arguments = [twin, options.model, layout, str(options.batch), str(options.tokens)]
    done = subprocess.run(
        [sys.executable, "-m", PROBE, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode < 0:
        return f"out of memory, or stopped: signal {-done.returncode}"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:160]
    return json.loads(done.stdout)
