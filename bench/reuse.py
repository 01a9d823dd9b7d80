"""What a cache saves, and when nothing: one model with and without a cache, both twins."""

import argparse

from bench.cases import CASES, prompts_of
from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

TWINS = ("jaxkv", "torchkv")


def main(options: argparse.Namespace) -> int:
    """Print the table: ratio is the uncached time over the cached one.

    Returns:
        0; 1 if cached and uncached ids differ: that case is then not timed.
    """
    rows: list[Row] = []
    failed = 0
    for model, prompt, budgets in (
        ("reference", [3, 1, 4, 1, 5], (1, 8, 24, 48)),
        ("smollm2", prompts_of(CASES["b1-p16"])[0], (1, 8) if options.quick else (1, 8, 24, 48)),
    ):
        checkpoint = open_source(model)
        for runner in (TwinRunner(twin, checkpoint) for twin in TWINS):
            for budget in budgets:
                found = _compare(runner, prompt, budget, repeats=3 if options.quick else 7)
                failed |= found is None
                case = f"{model}-p{len(prompt)}-n{budget}-{runner.name}"
                rows += rows_of("reuse", case, "total_ms", found or {}, baseline="uncached")
    report(rows, options, about="one request, cached and uncached; ratio: uncached over cached")
    print("With one new token there is nothing to reuse: a cache pays from the second token on.")
    return int(failed)


def _compare(runner: TwinRunner, prompt: list[int], budget: int, *, repeats: int):
    calls = {
        name: runner.prepare([prompt], budget, cached=name == "cached")
        for name in ("cached", "uncached")
    }
    if calls["cached"]() != calls["uncached"]():
        print(f"reuse: {runner.name}, {budget} tokens: the ids differ, so nothing is timed.")
        return None
    measures = {name: (lambda call=call: seconds(call) * 1000) for name, call in calls.items()}
    return interleaved(measures, repeats=repeats)
