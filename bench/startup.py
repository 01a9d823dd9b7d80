"""From nothing to the first token: imports, reading, compilation, compute, cold and warm.

Each run is a process of its own, as a user starts it. Cold has an empty compilation cache, warm the
one that the cold run left; the machine's file cache is warm in both. `command` is another process,
the whole of `TWIN generate MODEL` for one token, which keeps its programs where it is told.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from bench.rows import Row, missing, report, rows_of
from bench.timing import Spread

TWINS = ("jaxkv", "torchkv")
PROBE = "bench.startup_probe"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--model", default="smollm2", help="as for `jaxkv generate`")


def main(options: argparse.Namespace) -> int:
    """Print the table: the stages of cold and warm starts of both twins.

    Returns:
        0; 1 if a start failed: its row says how.
    """
    rows: list[Row] = []
    repeats = 1 if options.quick else 3
    for twin in TWINS[:1] if options.quick else TWINS:
        with tempfile.TemporaryDirectory() as cache:
            cold = [start(twin, options.model, cache)]
            warm = [start(twin, options.model, cache) for _ in range(repeats)]
        with tempfile.TemporaryDirectory() as kept:
            for starts in (cold, warm):
                starts[:] = [with_command(twin, options.model, kept, found) for found in starts]
        for state, found in (("cold", cold), ("warm", warm)):
            rows += _rows(f"{twin}-{state}", options.model, found)
    says = (
        "compilation is the first call less the second; total is the whole process, command "
        "another: what a user waits for who types it."
    )
    report(rows, options, about=f"start of {options.model} to its first token", says=says)
    return int(any(row.median is None for row in rows))


def start(twin: str, model: str, cache: str) -> dict[str, float] | str:
    """Return the seconds of each stage of one fresh process, or why it failed."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    told, total = _run([PROBE, twin, model], settings)
    return {**json.loads(told), "total": total} if total else told


def with_command(
    twin: str, model: str, kept: str, found: dict[str, float] | str
) -> dict[str, float] | str:
    """Return the stages of a start and the seconds of a whole command, or why one failed.

    Args:
        twin: Whose command.
        model: As for `start`.
        kept: Where it keeps compiled programs, and finds those of earlier runs.
        found: From `start`.
    """
    if isinstance(found, str):
        return found
    words = [twin, "generate", model, "--prompt", "1 2 3", "--max-new-tokens", "1"]
    settings = {"JAX_COMPILATION_CACHE_DIR": "", "JAXKV_PROGRAMS": kept}
    told, seconds = _run(words, settings)
    return {**found, "command": seconds} if seconds else told


def _run(module: list[str], settings: dict[str, str]) -> tuple[str, float]:
    """Return what a module printed, run as a program, and its seconds; 0 if it failed."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *module],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no words"])[-1][:160], 0.0
    return done.stdout, time.perf_counter() - begun


def _rows(subject: str, case: str, found: list[dict[str, float] | str]) -> list[Row]:
    told = [each for each in found if isinstance(each, str)]
    if told:
        return [missing("startup", case, subject, "total", "s", told[0])]
    times = [each for each in found if not isinstance(each, str)]
    spreads = {name: Spread.of([each[name] for each in times]) for name in times[0]}
    compiled = [each["first_call"] - each["second_call"] for each in times]
    spreads["compilation"] = Spread.of(compiled)
    return [
        row
        for name, spread in spreads.items()
        for row in rows_of("startup", case, name, {subject: spread}, unit="s")
    ]
