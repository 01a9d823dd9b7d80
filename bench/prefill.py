"""Time to the first token of SmolLM2, float32: both twins against transformers, in one run."""

import argparse

from bench.cases import CASES, Case, differing, prompts_of
from bench.rows import Row, report, rows_of
from bench.runners import Runner, TransformersRunner, TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

NAMES = ("b1-p16", "b1-p512", "b1-p2048", "b1-cap512-u300", "b1-cap8192-u300")
QUICK = ("b1-p512",)


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

    Returns:
        0; 1 if some ids differ: that case is then not timed.
    """
    checkpoint = open_source("smollm2")
    runners: list[Runner] = [
        TwinRunner("jaxkv", checkpoint),
        TwinRunner("torchkv", checkpoint),
        TransformersRunner(checkpoint),
    ]
    rows: list[Row] = []
    failed = 0
    for name in options.cases or (QUICK if options.quick else NAMES):
        case = CASES[name]
        if wrong := differing(case, runners):
            print(f"prefill: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
            failed = 1
            continue
        measures = {runner.name: _first(runner, case) for runner in runners}
        found = interleaved(measures, repeats=3 if options.quick else 7)
        rows += rows_of("prefill", case.name, "ttft_ms", found)
    report(rows, options, about="time to first token, SmolLM2-135M, float32")
    return failed


def _first(runner: Runner, case: Case):
    return lambda: seconds(runner.prepare(prompts_of(case), 1, capacity=case.capacity)) * 1000
