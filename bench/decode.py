"""Steady decode of SmolLM2, float32: both twins against transformers, interleaved in one run.

A step's time is (time of N tokens - time of 1) / (N - 1), so that prefill and start-up cancel.
Beside them one read of all weights, and the layers' matrix products alone, by the same threads. The
floor of a step is the time of its bytes, weights and used keys and values, at that read's rate.
"""

import argparse
from collections.abc import Callable

from bench.cases import CASE_HELP, CASES, Case, differing, prompts_of
from bench.floors import products, step_bytes, step_floor, weight_read
from bench.rows import Row, report, rows_of
from bench.runner import Runner
from bench.runners import add_peers, subjects
from bench.timing import Spread, interleaved, seconds
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.source import open_source

NAMES = ("b1-p16", "b8-p16", "b1-p512", "b1-cap512-u300", "b1-cap8192-u300")
QUICK = ("b1-p16",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), metavar="CASE", help=CASE_HELP)
    add_peers(parser)


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

    Returns:
        0; 1 if some ids differ: that case is then not timed.
    """
    checkpoint = open_source("smollm2")
    with subjects(checkpoint, against=options.against, caches=options.caches) as runners:
        return _measure(checkpoint, runners, options)


def _measure(checkpoint: Checkpoint, runners: list[Runner], options: argparse.Namespace) -> int:
    model = runners[0].model
    read = weight_read(model)
    rows: list[Row] = []
    told: list[str] = []
    failed = 0
    for name in options.cases or (QUICK if options.quick else NAMES):
        case = CASES[name]
        if wrong := differing(case, runners):
            print(f"decode: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
            failed = 1
            continue
        measures = {runner.name: per_step(runner, case) for runner in runners}
        measures["weight-read"] = read
        measures["products"] = products(model, tokens=case.batch)
        found = interleaved(measures, repeats=3 if options.quick else 7)
        used = case.prompt + case.new // 2
        config, read_ms = checkpoint.config, found["weight-read"].median
        floor = step_floor(config, read_ms, batch=case.batch, used=used)
        rows += rows_of("decode", case.name, "decode_ms_per_step", found, floor=floor)
        told.append(_parts(config, case, used, floor, found))
    says = "\n".join(told)
    report(rows, options, about="decode, SmolLM2-135M, float32", says=says)
    return failed


def _parts(
    config: ModelConfig, case: Case, used: int, floor: float, found: dict[str, Spread]
) -> str:
    """Return what a step of jaxkv consists of, in a sentence."""
    moved = step_bytes(config, batch=case.batch, used=used)
    step, multiplied = found["jaxkv"].median, found["products"].median
    return (
        f"{case.name}: a step moves {moved / 1e6:.0f} MB, {floor:.1f} ms at the rate of the read; "
        f"of jaxkv's {step:.1f} ms the layers' products alone take {multiplied:.1f}, and "
        f"{step - multiplied:.1f} are head, attention, norms, the choice of tokens and the loop."
    )


def per_step(runner: Runner, case: Case) -> Callable[[], float]:
    """Return a measure, in ms, of one step of decode: prefill and start-up cancel."""

    def measure() -> float:
        prompts = prompts_of(case)
        first = runner.prepare(prompts, 1, capacity=case.capacity)
        whole = runner.prepare(prompts, case.new, capacity=case.capacity)
        return (-seconds(first) + seconds(whole)) / (case.new - 1) * 1000

    return measure
