"""Batch alone, then context alone: where each subject's step grows, and where it stops fitting.

A case that does not fit is a row that says so. It is not started where weights and cache alone are
predicted to exceed the memory that is free; one that runs out of it anyway is told apart, and so
is one that a subject refuses.
"""

import argparse
from collections.abc import Callable

from bench.cases import Case, differing, prompts_of, used_of
from bench.compiled import refused
from bench.decode import per_step
from bench.floors import step_bytes, step_floor, weight_read
from bench.llama_cpp import LlamaBench
from bench.room import available_bytes, out_of_memory
from bench.rows import Row, missing, report, rows_of
from bench.runner import Runner
from bench.runners import add_peers, everyone
from bench.timing import interleaved
from bench.usage import positive
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import JaxkvError, Unsupported

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 128, 512, 1024, 2048)
METRIC = "decode_ms_per_step"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--batches", nargs="+", type=positive, default=BATCHES, metavar="B")
    parser.add_argument("--contexts", nargs="+", type=positive, default=CONTEXTS, metavar="T")
    add_peers(parser)


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Return the cases: batches at 16 tokens of context, then contexts at batch 1."""
    batches, contexts = options.batches, options.contexts
    if options.quick:
        batches, contexts = batches[:2], contexts[:2]
    new = 9 if options.quick else 17
    sizes = [*((batch, 16) for batch in batches), *((1, context) for context in contexts)]
    return [
        Case(f"b{batch}-p{context}", batch=batch, prompt=context, new=new)
        for batch, context in dict.fromkeys(sizes)
    ]


def main(options: argparse.Namespace) -> int:
    """Print the table.

    Returns:
        0; 1 if some ids differ: that case is then not timed.
    """
    with everyone(options) as (checkpoint, runners, others):
        return _measure(checkpoint, runners, others, options)


def _measure(
    checkpoint: Checkpoint,
    runners: list[Runner],
    others: list[LlamaBench],
    options: argparse.Namespace,
) -> int:
    read = weight_read(runners[0].model)
    rows: list[Row] = []
    failed = 0
    for case in cases_of(options):
        needed = step_bytes(checkpoint.config, batch=case.batch, used=case.prompt + case.new)
        fit, not_run = fitting(case, runners, needed=needed, free=available_bytes())
        rows += not_run
        if wrong := differing(case, fit) if fit else []:
            note = f"not timed: its ids differ from {fit[-1].name}'s"
            rows += [missing("sweep", case.name, name, METRIC, "ms", note) for name in wrong]
            failed, fit = 1, [runner for runner in fit if runner.name not in wrong]
        measures: dict[str, Callable[[], float]] = {
            runner.name: per_step(runner, case) for runner in fit
        }
        for each in others:
            try:
                measures[each.name] = each.per_step(case)
            except Unsupported as error:
                rows.append(missing("sweep", case.name, each.name, METRIC, "ms", _why(error)))
        found = interleaved({**measures, "weight-read": read}, repeats=3 if options.quick else 5)
        floor = step_floor(
            checkpoint.config,
            found.pop("weight-read").median,
            batch=case.batch,
            used=used_of(case),
        )
        rows += rows_of("sweep", case.name, METRIC, found, floor=floor)
        rows += refused("sweep", case, METRIC, asked=options.compile)
    report(rows, options, about="batch alone, then context alone, SmolLM2-135M, float32")
    return failed


def fitting(
    case: Case, runners: list[Runner], *, needed: int, free: int
) -> tuple[list[Runner], list[Row]]:
    """Return the subjects that can run a case, and a row for each that cannot, with the reason.

    Args:
        case: What is to be run.
        runners: Who.
        needed: Bytes of weights and cache at least.
        free: Bytes that are there.
    """
    rows, fit = [], []
    for runner in runners:
        if needed > free:
            note = f"not run: needs {needed / 1e9:.1f} GB at least, {free / 1e9:.1f} GB are free"
        else:
            note = _refusal(runner, case)
        if note is None:
            fit.append(runner)
        else:
            rows.append(missing("sweep", case.name, runner.name, METRIC, "ms", note))
    return fit, rows


def _refusal(runner: Runner, case: Case) -> str | None:
    """Return why a subject cannot run a case: its memory, or that it refuses; else None."""
    try:
        return out_of_memory(runner.prepare(prompts_of(case), 1, capacity=case.capacity))
    except JaxkvError as error:
        return _why(error)


def _why(error: JaxkvError) -> str:
    return f"unsupported: {str(error).splitlines()[0][:160]}"
