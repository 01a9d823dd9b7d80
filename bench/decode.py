"""Steady decode of SmolLM2, float32: both twins against transformers, interleaved in one run.

A step's time is (time of N tokens - time of 1) / (N - 1), so that prefill and start-up cancel.
Beside them the time of one read of all weights, by the same threads: no decode at batch 1 can be
faster.
"""

import argparse

from bench.cases import CASE_HELP, CASES, Case, differing, prompts_of
from bench.rows import Row, report, rows_of
from bench.runners import Runner, TransformersRunner, TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

NAMES = ("b1-p16", "b8-p16", "b1-p512", "b1-cap512-u300", "b1-cap8192-u300")
QUICK = ("b1-p16",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), metavar="CASE", help=CASE_HELP)


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

    Returns:
        0; 1 if some ids differ: that case is then not timed.
    """
    checkpoint = open_source("smollm2")
    jax_runner = TwinRunner("jaxkv", checkpoint)
    runners: list[Runner] = [
        jax_runner,
        TwinRunner("torchkv", checkpoint),
        TransformersRunner(checkpoint),
    ]
    read = _weight_read(jax_runner)
    rows: list[Row] = []
    failed = 0
    for name in options.cases or (QUICK if options.quick else NAMES):
        case = CASES[name]
        if wrong := differing(case, runners):
            print(f"decode: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
            failed = 1
            continue
        measures = {runner.name: _per_step(runner, case) for runner in runners}
        measures["weight-read"] = lambda: seconds(read) * 1000
        found = interleaved(measures, repeats=3 if options.quick else 7)
        rows += rows_of("decode", case.name, "decode_ms_per_step", found)
    report(rows, options, about="decode, SmolLM2-135M, float32")
    return failed


def _per_step(runner: Runner, case: Case):
    def measure() -> float:
        prompts = prompts_of(case)
        first = runner.prepare(prompts, 1, capacity=case.capacity)
        whole = runner.prepare(prompts, case.new, capacity=case.capacity)
        return (-seconds(first) + seconds(whole)) / (case.new - 1) * 1000

    return measure


def _weight_read(runner: TwinRunner):
    """Return a call that reads every parameter once, in one compiled reduction."""
    import jax
    import jax.numpy as jnp

    from jaxkv.model import params_of

    leaves = jax.tree.leaves(params_of(runner.model))
    total = jax.jit(lambda arrays: sum(jnp.sum(array) for array in arrays))
    return lambda: total(leaves).block_until_ready()
