"""Prompt lookup on SmolLM2, float32, against plain decode in one run: what drafts save, and cost.

Two prompts: code to be given out again with a change (`edit.txt`), where what comes stands in the
prompt already, and one whose text hardly repeats itself (`plain.txt`), so that nearly all drafts
are for nothing. A step's time is (time of N tokens - time of 1) / (N - 1). Beside the times stands
what became of the drafts.
"""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import Spread, interleaved, seconds
from bench.usage import positive
from jaxkv.spec.source import open_source, open_tokenizer

NEW, K = 97, 7
TWINS = ("jaxkv", "torchkv")
PROMPTS = {"edit": "edit.txt", "few-repeats": "plain.txt"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--twins", nargs="+", choices=TWINS, default=["jaxkv"])
    parser.add_argument("--k", type=positive, default=K, metavar="K", help=f"drafts a step, {K}")
    parser.add_argument("--new", type=positive, default=NEW, metavar="N", help=f"new tokens, {NEW}")


def main(options: argparse.Namespace) -> int:
    """Print the table; ratio is plain decode over decode with drafts: above 1 is faster.

    Returns:
        0; 1 if ids differ: that case is then not timed.
    """
    checkpoint = open_source("smollm2")
    tokenizer = open_tokenizer(checkpoint)
    rows: list[Row] = []
    failed = 0
    for twin in options.twins:
        runner = TwinRunner(twin, checkpoint)
        for name, file in PROMPTS.items():
            text = (Path(__file__).parent / file).read_text().rstrip("\n")
            calls = Calls(runner, tokenizer.encode(text), k=options.k)
            case = f"{name}-p{len(calls.prompt)}-{twin}"
            plain, drafted = calls.plain(options.new), calls.drafted(options.new)
            if plain.new_tokens != drafted.new_tokens:
                print(f"speculative: {case} is not timed, the ids differ.")
                failed = 1
                continue
            measures = {
                "plain": lambda calls=calls: _step(calls.plain, options.new),
                f"lookup-{options.k}": lambda calls=calls: _step(calls.drafted, options.new),
            }
            found = interleaved(measures, repeats=3 if options.quick else 5)
            rows += rows_of("speculative", case, "decode_ms_per_token", found, baseline="plain")
            rows += _counts(case, f"lookup-{options.k}", drafted)
    report(rows, options, about="prompt lookup against plain decode, SmolLM2-135M, float32")
    return failed


class Calls:
    """One prompt, continued plainly and with drafts."""

    def __init__(self, runner: TwinRunner, prompt: list[int], *, k: int):
        self.prompt, self._model, self._k = prompt, runner.model, k
        self._generate = importlib.import_module(f"{runner.name}.generation").generate
        self._speculate = importlib.import_module(f"{runner.name}.speculative").speculate
        self._lookup = importlib.import_module(f"{runner.name}.drafts").PromptLookup()

    def plain(self, new: int) -> Any:
        """Return plain decode's result."""
        return self._generate(self._model, [self.prompt], max_new_tokens=new)

    def drafted(self, new: int) -> Any:
        """Return the result with drafts."""
        how = {"draft": self._lookup, "k": self._k}
        return self._speculate(self._model, [self.prompt], max_new_tokens=new, **how)


def _step(call: Callable[[int], Any], new: int) -> float:
    first, whole = (seconds(lambda n=n: call(n)) for n in (1, new))
    return (whole - first) / (new - 1) * 1000


def _counts(case: str, subject: str, found: Any) -> list[Row]:
    steps, drafted, accepted = (
        float(getattr(found, name)[0]) for name in ("steps_B", "drafted_B", "accepted_B")
    )
    told = {
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "accepted_per_step": accepted / steps,
    }
    return [
        row
        for metric, value in told.items()
        for row in rows_of(
            "speculative",
            case,
            metric,
            {subject: Spread(value, value, value)},
            unit="",
            baseline="",
        )
    ]
