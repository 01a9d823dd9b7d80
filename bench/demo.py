"""`make demo`: both twins continue one prompt, and a table says how closely they agree."""

import importlib
import sys
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxkv.spec import command, command_generate, terminal
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import SourceError
from jaxkv.spec.source import open_source, open_tokenizer

TWINS = ("jaxkv", "torchkv")
PROMPTS = {"smollm2": "The capital of France is", "kjv": "In the beginning "}
NEW_TOKENS = 20


@dataclass(frozen=True)
class Shown:
    """What one twin gave: the report with its times, and the logits of the whole text."""

    report: command_generate.Report
    logits_TV: np.ndarray


def main() -> int:
    """Print text and table; return 0 if both twins agree on every id, else 1."""
    console = Console(highlight=False)
    checkpoint, fallback = _checkpoint()
    prompt = PROMPTS[checkpoint.name]
    shown = {twin: _generate(twin, checkpoint, prompt) for twin in TWINS}
    console.print(_table(checkpoint.name, shown))
    same = len({str(each.report.ids) for each in shown.values()}) == 1
    if fallback:
        console.print(f"This was the small model that the package brings, not SmolLM2: {fallback}")
    return 0 if same else 1


def _checkpoint() -> tuple[Checkpoint, str | None]:
    try:
        return open_source("smollm2"), None
    except SourceError as error:
        return open_source("kjv"), str(error)


def _generate(twin: str, checkpoint: Checkpoint, prompt: str) -> Shown:
    options = command.parser(twin).parse_args(["generate", checkpoint.name, "--prompt", prompt])
    tokenizer = open_tokenizer(checkpoint)
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    subject = importlib.import_module(f"{twin}.subject").Subject(
        from_arrays(
            checkpoint.config,
            checkpoint.weights,
            dtype=options.dtype,
            interleaved_qk=checkpoint.interleaved_qk,
        )
    )
    ids = tokenizer.encode(prompt)
    if twin == TWINS[0]:
        terminal.show_stream(
            lambda progress: subject.stream([ids], NEW_TOKENS, progress=progress),
            prompt,
            tokenizer.decode,
        )
    report, _ = command_generate.measure(
        lambda ids, budget: subject.generate([ids], budget),
        ids,
        NEW_TOKENS,
        tokenizer.decode,
    )
    text = np.array([report.prompt_ids + report.ids])
    return Shown(report, subject.full(text)[0].astype(np.float64))


def _table(model: str, shown: dict[str, Shown]) -> Table:
    left, right = (shown[twin] for twin in TWINS)
    difference = float(np.abs(left.logits_TV - right.logits_TV).max())
    start = len(left.report.prompt_ids) - 1
    top = np.sort(left.logits_TV[start:-1], axis=-1)
    margin = float((top[:, -1] - top[:, -2]).min())
    table = Table(title=f"{model}, float32, the same weights")
    table.add_column("")
    for twin in TWINS:
        table.add_column(twin, justify="right")
    same = "equal" if left.report.ids == right.report.ids else "DIFFERENT"
    table.add_row(f"{len(left.report.ids)} new ids", same, same)
    table.add_row("largest logit difference", f"{difference:.1e}", "")
    table.add_row("smallest top-2 margin", f"{margin:.3f}", "")
    first = (f"{each.report.ttft_seconds or 0:.3f}" for each in (left, right))
    table.add_row("time to first token, s", *first)
    rates = (f"{each.report.decode_tokens_per_second or 0:.1f}" for each in (left, right))
    table.add_row("steady decode, tokens/s", *rates)
    return table


if __name__ == "__main__":
    sys.exit(main())
