"""Time to the first token of SmolLM2, float32: both twins against transformers, in one run.

Beside them the time of the matrix products alone that the prompt needs, by the same threads: no
prefill by those products can be faster.
"""

import argparse

from bench.cases import CASE_HELP, CASES, Case, differing, prompts_of
from bench.rows import Row, report, rows_of
from bench.runners import Runner, TransformersRunner, TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

NAMES = ("b1-p16", "b1-p512", "b1-p2048", "b1-cap512-u300", "b1-cap8192-u300")
QUICK = ("b1-p512",)


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
    rows: list[Row] = []
    failed = 0
    for name in options.cases or (QUICK if options.quick else NAMES):
        case = CASES[name]
        if wrong := differing(case, runners):
            print(f"prefill: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
            failed = 1
            continue
        measures = {runner.name: _first(runner, case) for runner in runners}
        products = _products(jax_runner, rows=case.batch, tokens=case.prompt)
        measures["products"] = lambda call=products: seconds(call) * 1000
        found = interleaved(measures, repeats=3 if options.quick else 7)
        rows += rows_of("prefill", case.name, "ttft_ms", found)
    report(rows, options, about="time to first token, SmolLM2-135M, float32")
    return failed


def _products(runner: TwinRunner, *, rows: int, tokens: int):
    """Return a call that multiplies a prompt's activations with every layer's matrices."""
    import jax
    import jax.numpy as jnp

    from jaxkv.model import params_of

    layers = params_of(runner.model)["layers"]
    matrices = [
        [part["weight"] for part in (*layers[i]["attn"].values(), *layers[i]["mlp"].values())]
        for i in range(runner.model.config.num_layers)
    ]

    def multiply(inputs, matrices):
        return [sum(jnp.sum(inputs[m.shape[0]] @ m) for m in layer) for layer in matrices]

    widths = {matrix.shape[0] for layer in matrices for matrix in layer}
    inputs = {width: jnp.ones((rows * tokens, width), jnp.float32) for width in widths}
    compiled = jax.jit(multiply)
    return lambda: jax.block_until_ready(compiled(inputs, matrices))


def _first(runner: Runner, case: Case):
    return lambda: seconds(runner.prepare(prompts_of(case), 1, capacity=case.capacity)) * 1000
