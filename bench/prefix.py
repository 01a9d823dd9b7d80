"""What a shared prefix saves: the first token of a request whose first 500 tokens are known."""

import argparse
import importlib
from collections.abc import Callable
from itertools import count

from bench.cases import CASES, prompts_of
from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import interleaved, seconds
from jaxkv.spec.source import open_source

SHARED, OWN, CAPACITY, POOL = 500, 12, 1024, 192
TWINS = ("jaxkv", "torchkv")


def main(options: argparse.Namespace) -> int:
    """Print the table: ratio is the time without a store over that with one.

    Returns:
        0; 1 if ids differ, or if less than the shared pages was reused: nothing is timed then.
    """
    checkpoint = open_source("smollm2")
    rows: list[Row] = []
    failed = 0
    for twin in TWINS:
        measures = first_tokens(TwinRunner(twin, checkpoint))
        if measures is None:
            print(f"prefix: {twin} is not timed, the ids differ or nothing was reused.")
            failed = 1
            continue
        found = interleaved(measures, repeats=3 if options.quick else 7)
        case = f"b1-p{SHARED + OWN}-{twin}"
        rows += rows_of("prefix", case, "ttft_ms", found, baseline="no store")
    report(
        rows,
        options,
        about=f"first token, {SHARED} of {SHARED + OWN} prompt tokens known, SmolLM2-135M, float32",
        says="'another salt' looks in the store, finds nothing and leaves its pages there.",
    )
    return failed


def first_tokens(runner: TwinRunner) -> dict[str, Callable[[], float]] | None:
    """Return measures, in ms, of one new token without a store and with one, or None if wrong."""
    generate = importlib.import_module(f"{runner.name}.generation").generate
    store = importlib.import_module(f"{runner.name}.caches").PrefixStore(
        runner.model.config, dtype=runner.model.dtype, capacity=CAPACITY, pool_pages=POOL
    )
    front = prompts_of(CASES["b1-p512"])[0][:SHARED]
    numbers = count()

    def ask(**where: object) -> tuple[object, float]:
        # Another ending each time, so that what is known ends where the shared part does.
        prompt = [*front, *((71 * next(numbers) + i) % 4096 for i in range(OWN))]
        results: list[object] = []
        spent = seconds(
            lambda: results.append(generate(runner.model, [prompt], max_new_tokens=1, **where))
        )
        return results[0], spent * 1000

    def prompt_again(**where: object) -> list[list[int]]:
        prompt = [*front, *range(OWN)]
        return generate(runner.model, [prompt], max_new_tokens=4, **where).new_tokens

    plain = prompt_again()
    ask(store=store, tenant="a")
    if prompt_again(store=store, tenant="a") != plain or not store.counts("a").hits:
        return None
    salts = (str(number) for number in count())
    return {
        "no store": lambda: ask()[1],
        "known": lambda: ask(store=store, tenant="a")[1],
        "another salt": lambda: ask(store=store, tenant=next(salts))[1],
    }
