"""Steady decode of SmolLM2, float32: both twins against transformers, interleaved in one run.

A step's time is (time of N tokens - time of 1) / (N - 1), so that prefill and start-up cancel; long
prompts enter once, where a subject can keep them. `b8-ragged` stands apart, see `bench/ragged.py`.
Beside them one read of all weights, and the layers' matrix products alone, by the same threads. The
floor of a step is the time of its bytes, weights and used keys and values, at that read's rate. The
note of each row says which bytes it moves, keys and values as far as it reads its buffers, and what
its time beyond the floor is.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

from bench import ragged
from bench.cases import CASE_HELP, CASES, Case, Continue, differing, kept, prompts_of, used_of
from bench.compiled import refused
from bench.floors import products, step_bytes, step_floor, weight_read
from bench.llama_cpp import NAME, SAYS, LlamaBench
from bench.parts import torch_shares, words
from bench.rows import Row, missing, report, rows_of
from bench.runner import Runner
from bench.runners import add_peers, everyone
from bench.timing import Spread, interleaved, seconds
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import ModelConfig

NAMES = (
    "b1-p16",
    "b8-p16",
    "b1-p512",
    "b1-p2048",
    "b8-p1024",
    ragged.CASE,
    "b1-cap512-u300",
    "b1-cap8192-u300",
)
QUICK = ("b1-p16",)
METRIC = "decode_ms_per_step"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    names, told = [*sorted(CASES), ragged.CASE], f"{CASE_HELP}, {ragged.CASE}"
    parser.add_argument("--cases", nargs="+", choices=names, metavar="CASE", help=told)
    add_peers(parser)


def main(options: argparse.Namespace) -> int:
    """Print the table; the ids of all are compared before anything is timed.

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
    rows: list[Row] = []
    failed = False
    repeats = 3 if options.quick else 7
    for name in options.cases or (QUICK if options.quick else NAMES):
        if name == ragged.CASE:
            found = ragged.rows(checkpoint, repeats=repeats)
        else:
            found = _rows(checkpoint.config, CASES[name], runners, others, repeats=repeats)
            found += refused("decode", CASES[name], METRIC, asked=options.compile and bool(found))
        failed |= not any(row.median is not None for row in found)
        rows += found
    says = ragged.SAYS if any(row.case == ragged.CASE for row in rows) else ""
    report(rows, options, about="decode, SmolLM2-135M, float32", says=says)
    return int(failed)


def _rows(
    config: ModelConfig,
    case: Case,
    runners: list[Runner],
    others: list[LlamaBench],
    *,
    repeats: int,
) -> list[Row]:
    """Return the rows of a case; none if some ids differ."""
    calls = kept(case, runners)
    if wrong := differing(case, runners, calls):
        print(f"decode: {case.name} is not timed, the ids differ: {', '.join(wrong)}.")
        return []
    measures = {
        runner.name: continued(calls[runner.name], case)
        if runner.name in calls
        else per_step(runner, case)
        for runner in runners
    }
    measures |= {each.name: each.per_step(case) for each in others if case.batch == 1}
    model = runners[0].model
    references = {"weight-read": weight_read(model), "products": products(model, tokens=case.batch)}
    found = interleaved({**measures, **references}, repeats=repeats)
    # Told at once: what follows profiles every subject.
    told = (f"{name} {spread.median:.2f}" for name, spread in found.items())
    print(f"{case.name}, ms: {', '.join(told)}", flush=True)
    floor = step_floor(config, found["weight-read"].median, batch=case.batch, used=used_of(case))
    timed = rows_of("decode", case.name, METRIC, found, floor=floor)
    notes = _notes(config, case, runners, found, calls)
    rows = [replace(row, note=notes.get(row.subject, "")) for row in timed]
    if case.batch > 1:
        rows += [_one_row_only(case, each) for each in others]
    return rows


def _one_row_only(case: Case, other: LlamaBench) -> Row:
    note = f"unsupported: llama-bench runs one row, not {case.batch}"
    return missing("decode", case.name, other.name, METRIC, "ms", note)


def _notes(
    config: ModelConfig,
    case: Case,
    runners: list[Runner],
    found: dict[str, Spread],
    calls: dict[str, Continue],
) -> dict[str, str]:
    """Return, by subject, the bytes that a step moves and what its time beyond the floor is."""
    read_ms, multiplied = found["weight-read"].median, found["products"].median
    notes = {NAME: SAYS}
    for runner in runners:
        # Another process does not tell what it reads: no more than what is used is counted then.
        slots = getattr(runner, "slots_read", used_of)(case)
        moved = step_bytes(config, batch=case.batch, used=slots)
        due = step_floor(config, read_ms, batch=case.batch, used=slots)
        step = found[runner.name].median
        told = f"{case.name}: moves {moved / 1e6:.0f} MB, {due:.1f} ms at the read's rate"
        notes[runner.name] = f"{told}; of its {step:.1f} ms "
        notes[runner.name] += _rest(runner, case, step, multiplied, calls.get(runner.name))
    return notes


def _rest(runner: Runner, case: Case, step: float, multiplied: float, call: Continue | None) -> str:
    if runner.name.startswith("jaxkv"):
        return (
            f"the layers' products alone take {multiplied:.1f}, head, attention, norms, the choice "
            f"of tokens and the loop {step - multiplied:.1f}"
        )
    if runner.model is None:
        return "nothing is known inside: another process"
    among = ", generated code among the last" if "compiled" in runner.name else ""
    if call is not None:
        return f"by a profile of its call: {words(torch_shares(lambda: call(case.new)))}{among}"
    whole = runner.prepare(prompts_of(case), case.new, capacity=case.capacity)
    return f"by a profile of its call, prefill included: {words(torch_shares(whole))}{among}"


def per_step(runner: Runner, case: Case) -> Callable[[], float]:
    """Return a measure, in ms, of one step of decode: prefill and start-up cancel."""

    def measure() -> float:
        prompts = prompts_of(case)
        first = runner.prepare(prompts, 1, capacity=case.capacity)
        whole = runner.prepare(prompts, case.new, capacity=case.capacity)
        return (-seconds(first) + seconds(whole)) / (case.new - 1) * 1000

    return measure


def continued(call: Continue, case: Case) -> Callable[[], float]:
    """Return a measure, in ms, of one step of decode after prompts that have entered already."""

    def measure() -> float:
        first, whole = (seconds(lambda n=n: call(n)) for n in (1, case.new))
        return (whole - first) / (case.new - 1) * 1000

    return measure
