"""On the accelerator that is there: first token, decode and memory of a Llama-shaped random model.

Every subject and batch is a process of its own, every context too for JAX, whose peak cannot be
reset and whose preallocation is off. Beside contiguous caches both twins' other layouts are timed,
at the first dtype and batch and the longest context. The logits of all are compared at the dtype's
tolerance before anything is timed; regions are synchronised before and after; every path is run
once before it is timed. Without an accelerator the same runs on the processor, and says so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.floors import step_bytes
from bench.gpu_shapes import SHAPES
from bench.rows import Row, missing, report, rows_of, with_ratios
from bench.timing import Spread
from bench.usage import positive
from jaxkv.spec.config import ModelConfig

SUBJECTS = (
    "jaxkv",
    "torchkv",
    "torchkv-compiled",
    "transformers-static",
    "transformers-compiled",
)
TWINS = ("jaxkv", "torchkv")
BASELINE = "transformers-compiled"
ITEMSIZE = {"bfloat16": 2, "float32": 4}
# Of the largest |logit|, against the first subject's float32 logits: rounding of 16 layers.
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}
PROBE = "bench.gpu_probe"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-1b")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", choices=sorted(ITEMSIZE), default=tuple(ITEMSIZE))
    parser.add_argument("--batches", nargs="+", type=positive, default=(1, 32), metavar="B")
    parser.add_argument("--contexts", nargs="+", type=positive, default=(128, 1024), metavar="T")
    parser.add_argument("--layouts", nargs="*", default=("paged", "quantized"), metavar="LAYOUT")
    parser.add_argument(
        "--new", type=positive, default=33, metavar="N", help="tokens after the prompt"
    )
    parser.add_argument("--limit", type=float, default=330, metavar="SECONDS", help="of all")


def main(options: argparse.Namespace) -> int:
    """Print the table.

    Returns:
        0; 1 if a subject's logits are not the others', or it failed: its row says how.
    """
    config = SHAPES[options.shape]
    rows: list[Row] = []
    repeats = 2 if options.quick else 3
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(options.limit)
        first = _logits(options.subjects[0], "float32", options, folder, clock)
        if isinstance(first, str):
            raise SystemExit(f"gpu: {options.subjects[0]} gave no logits to compare with: {first}")
        expected, device = first
        for dtype in options.dtypes:
            for subject in options.subjects:
                rows += _rows(subject, dtype, options, folder, clock, expected, repeats)
    rows = with_ratios(with_floors(rows, config, new=options.new), baseline=BASELINE)
    about = f"{options.shape}, random weights, on {device}"
    report(rows, options, about=about, precision=", ".join(options.dtypes), says=says(rows))
    return int(any(row.median is None and row.metric == "logits_error" for row in rows))


class Clock:
    """What is left of the seconds for the whole run."""

    def __init__(self, limit: float):
        self._now, self._end = time.monotonic, time.monotonic() + limit

    @property
    def left(self) -> float:
        """Seconds, 0 when there are none."""
        return max(0.0, self._end - self._now())


def says(rows: list[Row]) -> str:
    """Return what stands below the table."""
    if any(row.unit == "B" and row.median is not None for row in rows):
        return (
            "Memory is that of the device: what the process held before, and its peak above that."
        )
    return (
        "No device memory is reported here: this ran on a processor, whose numbers say nothing "
        "about an accelerator."
    )


def with_floors(rows: list[Row], config: ModelConfig, *, new: int) -> list[Row]:
    """Return the rows, those of decode with their share of the floor, where the read was timed."""
    reads = {row.case.split("-")[0]: row.median for row in rows if row.metric == "weight_read_ms"}
    found = []
    for row in rows:
        dtype, batch, context, layout = (*row.case.split("-"), "", "", "")[:4]
        # Other layouts read other bytes than are counted here.
        read = None if layout else reads.get(dtype)
        step = row.median or 0.0
        if row.metric == "decode_ms_per_step" and read and step > 0:
            size = ITEMSIZE[dtype]
            used = int(context[1:]) + new // 2
            moved = step_bytes(config, batch=int(batch[1:]), used=used, itemsize=size)
            floor = read * moved / step_bytes(config, batch=1, used=0, itemsize=size)
            row = replace(row, floor_share=floor / step)
        found.append(row)
    return found


def _rows(
    subject: str,
    dtype: str,
    options: argparse.Namespace,
    folder: str,
    clock: Clock,
    expected: np.ndarray,
    repeats: int,
) -> list[Row]:
    answer = _logits(subject, dtype, options, folder, clock)
    if isinstance(answer, str):
        return [missing("gpu", dtype, subject, "logits_error", "", answer)]
    logits, _ = answer
    error = float(np.abs(logits - expected).max() / np.abs(expected).max())
    if not error <= TOLERANCE[dtype]:
        note = f"not timed: logits differ by {error:.1e}, allowed {TOLERANCE[dtype]:.0e}"
        return [missing("gpu", dtype, subject, "logits_error", "", note)]
    rows = [Row("gpu", dtype, subject, "logits_error", "", error, error, error)]
    for asked in asked_of(subject, dtype, options):
        arguments = {**asked, "new": options.new, "repeats": repeats}
        found = run_probe(subject, dtype, options.shape, arguments, clock.left)
        if isinstance(found, str):
            case = "-".join([dtype, f"b{asked['batch']}", *asked["layouts"]])
            rows.append(missing("gpu", case, subject, "decode_ms_per_step", "ms", found))
            continue
        rows += [_row(subject, each) for each in found]
    return rows


def asked_of(subject: str, dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each process of a subject measures: `batch`, `contexts`, `layouts`, `reads`."""
    contexts = list(options.contexts)
    # JAX resets no peak: a context's own needs a process of its own.
    groups = [[each] for each in contexts] if subject == "jaxkv" else [contexts]
    found = [
        {"batch": batch, "contexts": group, "layouts": [], "reads": group is groups[0]}
        for batch in options.batches
        for group in groups
    ]
    if subject in TWINS and dtype == options.dtypes[0]:
        longest, batch = [max(contexts)], options.batches[0]
        found += [
            {"batch": batch, "contexts": longest, "layouts": [layout], "reads": False}
            for layout in options.layouts
        ]
    return found


def _row(subject: str, found: dict[str, Any]) -> Row:
    case, metric, unit = found["case"], found["metric"], found["unit"]
    if not found["values"]:
        return missing("gpu", case, subject, metric, unit, found["note"])
    (row,) = rows_of("gpu", case, metric, {subject: Spread.of(found["values"])}, unit=unit)
    return row


def _logits(
    subject: str, dtype: str, options: argparse.Namespace, folder: str, clock: Clock
) -> tuple[np.ndarray, str] | str:
    path = Path(folder) / f"{subject}-{dtype}.npy"
    found = run_probe(subject, dtype, options.shape, {"logits": str(path)}, clock.left)
    return found if isinstance(found, str) else (np.load(path), found[0]["device"])


def run_probe(
    subject: str, dtype: str, shape: str, arguments: dict[str, Any], seconds: float
) -> list[dict[str, Any]] | str:
    """Return what one process measured, or why it measured nothing."""
    if seconds <= 0:
        return "not run: the time for all is over"
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROBE, subject, dtype, shape, json.dumps(arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**os.environ, **settings},
        )
    except subprocess.TimeoutExpired:
        return "stopped: the time for all is over"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:160]
    return json.loads(done.stdout.splitlines()[-1])
