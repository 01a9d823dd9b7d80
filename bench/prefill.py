"""Time to the first token of SmolLM2, float32: both twins against transformers, in one run.

Beside them the time of the matrix products alone that the prompt needs, by the same threads: they
are the floor, no prefill by those products can be faster. `b1-p2048-chunked` stands apart, see
`bench/chunked.py`.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

from bench import chunked
from bench.cases import CASE_HELP, CASES, Case, differing, prompts_of
from bench.floors import products
from bench.llama_cpp import NAME, SAYS, LlamaBench
from bench.rows import Row, report, rows_of
from bench.runner import Runner
from bench.runners import TwinRunner, add_peers, everyone
from bench.timing import interleaved, seconds, tokens_per_second

NAMES = (
    "b1-p16",
    "b1-p512",
    "b1-p2048",
    chunked.CASE.name,
    "b1-cap512-u300",
    "b1-cap8192-u300",
)
QUICK = ("b1-p512",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    names, told = [*sorted(CASES), chunked.CASE.name], f"{CASE_HELP}, {chunked.CASE.name}"
    parser.add_argument("--cases", nargs="+", choices=names, metavar="CASE", help=told)
    add_peers(parser)


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

    Returns:
        0; 1 if some ids differ: that case is then not timed.
    """
    with everyone(options) as (_, runners, others):
        return _measure(runners, others, options)


def _measure(runners: list[Runner], others: list[LlamaBench], options: argparse.Namespace) -> int:
    rows: list[Row] = []
    failed = 0
    repeats = 3 if options.quick else 7
    for name in options.cases or (QUICK if options.quick else NAMES):
        if name == chunked.CASE.name:
            twins = [runner for runner in runners if isinstance(runner, TwinRunner)]
            apart = chunked.rows(twins[:1] if options.quick else twins, repeats=repeats)
            failed |= any(row.median is None for row in apart)
            rows += apart
            continue
        case = CASES[name]
        if wrong := differing(case, runners):
            print(f"prefill: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
            failed = 1
            continue
        measures = {runner.name: first_token(runner, case) for runner in runners}
        measures |= {each.name: each.first_token(case) for each in others if case.batch == 1}
        measures["products"] = products(runners[0].model, tokens=case.batch * case.prompt)
        found = interleaved(measures, repeats=repeats)
        floor = found["products"].median
        timed = rows_of("prefill", case.name, "ttft_ms", found, floor=floor)
        rows += [replace(row, note=SAYS if row.subject == NAME else "") for row in timed]
        rows += rates(case, timed)
    report(rows, options, about="time to first token, SmolLM2-135M, float32")
    return int(failed)


def first_token(runner: Runner, case: Case) -> Callable[[], float]:
    """Return a measure, in ms, of a call that gives one new token."""
    return lambda: seconds(runner.prepare(prompts_of(case), 1, capacity=case.capacity)) * 1000


def rates(case: Case, timed: list[Row]) -> list[Row]:
    """Return the rows of prompt tokens a second, all rows' tokens counted, from those of times."""
    found = []
    for row in timed:
        times = (row.median, row.high, row.low)
        median, low, high = (
            tokens_per_second(batch=case.batch, tokens=case.prompt, seconds=ms / 1000)
            for ms in times
            if ms is not None
        )
        found.append(
            replace(
                row,
                metric="prompt_tokens_per_second",
                unit="1/s",
                median=median,
                low=low,
                high=high,
            )
        )
    return found
