"""Time against the size of the buffer at equal content: what is not used must be free.

The same 300 tokens in caches of growing capacity: a step of decode, the first token, and, apart,
the allocation of the empty cache.
"""

import argparse
from functools import partial

from bench.cases import Case, prompts_of
from bench.decode import per_step
from bench.prefill import first_token
from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

CAPACITIES = (512, 2048, 8192)
PROMPT, NEW = 256, 45
TWINS = ("jaxkv", "torchkv")


def main(options: argparse.Namespace) -> int:
    """Print the table; a ratio is the smallest buffer's time over this one's.

    Returns:
        0; 1 if ids depend on the capacity: that twin is then not timed.
    """
    checkpoint = open_source("smollm2")
    rows: list[Row] = []
    failed = 0
    for twin in TWINS[:1] if options.quick else TWINS:
        runner = TwinRunner(twin, checkpoint)
        cases = [
            Case(f"capacity {slots}", batch=1, prompt=PROMPT, new=NEW, capacity=slots)
            for slots in CAPACITIES
        ]
        if len({str(runner.prepare(prompts_of(c), NEW, capacity=c.capacity)()) for c in cases}) > 1:
            print(f"capacity: {twin} is not timed, its ids depend on the capacity.")
            failed = 1
            continue
        for metric, measure in (
            ("decode_ms_per_step", per_step),
            ("ttft_ms", first_token),
            ("allocation_ms", allocation),
        ):
            measures = {case.name: measure(runner, case) for case in cases}
            found = interleaved(measures, repeats=3 if options.quick else 7)
            rows += rows_of("capacity", twin, metric, found, baseline=cases[0].name)
    report(rows, options, about=f"{PROMPT + NEW - 1} tokens used, SmolLM2-135M, float32")
    return failed


def allocation(runner: TwinRunner, case: Case):
    """Return a measure, in ms, of making the empty cache."""
    assert case.capacity is not None  # every case here has one
    allocate = partial(runner.allocate, batch=case.batch, capacity=case.capacity)
    return lambda: seconds(allocate) * 1000
