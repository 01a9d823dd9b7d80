"""The command lines' common half: options, output, errors.

What a twin computes, it computes in its own cli.py.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from jaxkv.spec import command_info, command_memory
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import JaxkvError
from jaxkv.spec.source import open_source, open_tokenizer

DTYPES = ("float32", "bfloat16", "float64")


class Outcome(Protocol):
    """What both twins' `generate` return, as far as a command line shows it."""

    @property
    def new_tokens(self) -> list[list[int]]:
        """New ids of each row."""
        ...

    @property
    def forwarded_positions_B(self) -> Any:
        """Positions of each row that entered the model."""
        ...

    @property
    def compilations(self) -> int | None:
        """Programs traced for the call; None where nothing is compiled."""
        ...


Generate = Callable[[Sequence[int], int], Outcome]
Prepare = Callable[[argparse.Namespace, Checkpoint], Generate]


@dataclass(frozen=True)
class Report:
    """One generation as `--json` prints it.

    Attributes:
        prompt_ids: The encoded prompt.
        ids: New ids only.
        text: The new ids' text.
        ttft_seconds: Time of the same program with a budget of one token, compiled before; None
            without new tokens.
        decode_tokens_per_second: (N - 1) / (time of N tokens - time of one); None below 2 new
            tokens.
        compilations: Programs traced; None where nothing is compiled.
        forwarded_positions: Positions that entered the model: prompt + N - 1 with a cache.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    ttft_seconds: float | None
    decode_tokens_per_second: float | None
    compilations: int | None
    forwarded_positions: int


def main(program: str, prepare: Prepare, argv: Sequence[str] | None) -> int:
    """Return the exit code of one command: 0, or 2 after one line for an error of ours.

    Other errors pass through.
    """
    options = parser(program).parse_args(argv)
    try:
        if hasattr(options, "run"):
            options.run(options)
            return 0
        checkpoint = open_source(options.model)
        tokenizer = open_tokenizer(checkpoint)
        prompt_ids = tokenizer.encode(options.prompt)
        generate = prepare(options, checkpoint)
        report = measure(generate, prompt_ids, options.max_new_tokens, tokenizer.decode)
    except JaxkvError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        _show(options.prompt, report)
    return 0


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of either twin's command line."""
    top = argparse.ArgumentParser(
        program, description="Generate text from a decoder with a KV cache."
    )
    commands = top.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="continue a prompt greedily")
    generate.add_argument(
        "model",
        help="'smollm2', 'reference', the path of a .gguf file or of a Hugging Face directory, or "
        "a hub id",
    )
    generate.add_argument(
        "--prompt", required=True, help="text; for 'reference', ids separated by spaces"
    )
    generate.add_argument("--max-new-tokens", type=int, default=32, metavar="N", help="default 32")
    generate.add_argument("--dtype", choices=DTYPES, default="float32")
    generate.add_argument(
        "--capacity",
        type=int,
        metavar="N",
        help="tokens that the cache can hold (default: what is needed)",
    )
    generate.add_argument(
        "--no-cache", action="store_true", help="recompute the whole text for every token"
    )
    generate.add_argument("--json", action="store_true", help="print one JSON object")
    command_info.add(commands)
    command_memory.add(commands)
    return top


def measure(
    generate: Generate,
    prompt_ids: list[int],
    max_new_tokens: int,
    decode: Callable[[list[int]], str],
) -> Report:
    """Return a generation with its times: once to compile, once for one token, once in full."""
    warm = generate(prompt_ids, min(max_new_tokens, 1))
    first_seconds, _ = _timed(generate, prompt_ids, min(max_new_tokens, 1))
    all_seconds, result = _timed(generate, prompt_ids, max_new_tokens)
    ids = result.new_tokens[0]
    # On a tiny model the two times can cross: then there is nothing to divide by.
    rest_seconds = all_seconds - first_seconds
    rate = (len(ids) - 1) / rest_seconds if len(ids) > 1 and rest_seconds > 0 else None
    traced = None if warm.compilations is None else warm.compilations + (result.compilations or 0)
    return Report(
        prompt_ids=prompt_ids,
        ids=ids,
        text=decode(ids),
        ttft_seconds=first_seconds if ids else None,
        decode_tokens_per_second=rate,
        compilations=traced,
        forwarded_positions=int(result.forwarded_positions_B[0]),
    )


def _timed(generate: Generate, prompt_ids: list[int], budget: int) -> tuple[float, Outcome]:
    start = time.perf_counter()
    result = generate(prompt_ids, budget)
    return time.perf_counter() - start, result


def _show(prompt: str, report: Report) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(prompt, end="", markup=False, style="dim")
    print(report.text)
    note = Console(stderr=True, highlight=False, style="dim")
    if report.ttft_seconds is not None:
        rate = report.decode_tokens_per_second
        speed = "" if rate is None else f", then {rate:.1f} tokens/s"
        note.print(
            f"{len(report.ids)} tokens; first after {report.ttft_seconds * 1000:.0f} ms{speed}"
        )
