"""Steady decode of SmolLM2, float32, batch 1: both twins against transformers, in one run."""

import argparse
import json
import platform
from functools import partial
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from bench.runners import Runner, TransformersRunner, TwinRunner
from bench.timing import Spread, interleaved, seconds
from jaxkv.spec.source import open_source, open_tokenizer

PROMPT = "The best thing about a quiet evening at home is that nobody asks you to"
BASELINE = "transformers"


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

    Returns:
        0; 1 if the ids differ, and then nothing is timed.
    """
    budget, repeats = (33, 3) if options.quick else (65, 7)
    checkpoint = open_source("smollm2")
    prompt = open_tokenizer(checkpoint).encode(PROMPT)[:16]
    runners: list[Runner] = [
        TwinRunner("jaxkv", checkpoint),
        TwinRunner("torchkv", checkpoint),
        TransformersRunner(checkpoint),
    ]
    texts = {runner.name: runner([prompt], budget) for runner in runners}
    console = Console(highlight=False)
    if len({str(ids) for ids in texts.values()}) != 1:
        console.print("decode: the ids differ, so nothing is timed.", texts)
        return 1
    measures = {runner.name: partial(_per_step_ms, runner, [prompt], budget) for runner in runners}
    found = interleaved(measures, repeats=repeats)
    _show(console, found, budget=budget, prompt_tokens=len(prompt))
    if options.json:
        _write(options.json, found)
    return 0


def _per_step_ms(runner: Runner, prompts: list[list[int]], budget: int) -> float:
    first = seconds(lambda: runner(prompts, 1))
    whole = seconds(lambda: runner(prompts, budget))
    return (whole - first) / (budget - 1) * 1000


def _show(console: Console, found: dict[str, Spread], *, budget: int, prompt_tokens: int) -> None:
    table = Table(
        title=f"decode, SmolLM2-135M, float32, batch 1, prompt {prompt_tokens}, {budget} new tokens"
    )
    for column in ("subject", "ms a step", "low", "high", f"times {BASELINE}"):
        table.add_column(column, justify="left" if column == "subject" else "right")
    for name, ms in found.items():
        ratio = found[BASELINE].median / ms.median
        table.add_row(name, *(f"{x:.2f}" for x in (ms.median, ms.low, ms.high, ratio)))
    console.print(table)
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", BASELINE))
    console.print(f"{platform.processor() or platform.machine()}, {packages}; ids equal.")


def _write(path: str, found: dict[str, Spread]) -> None:
    with open(path, "w") as file:
        for name, ms in found.items():
            row = {
                "bench": "decode",
                "case": "b1-p16",
                "subject": name,
                "metric": "decode_ms_per_step",
                "unit": "ms",
                "median": ms.median,
                "low": ms.low,
                "high": ms.high,
                "ratio": found[BASELINE].median / ms.median,
            }
            file.write(json.dumps(row) + "\n")
