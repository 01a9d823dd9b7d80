"""The command lines' common half: options, output, errors.

What a twin computes, it computes in its own cli.py.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from jaxkv.spec import command_cache, command_info, command_memory, terminal
from jaxkv.spec.chat import render_chat
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import JaxkvError, RequestError, SourceError, Unsupported
from jaxkv.spec.source import open_source, open_tokenizer
from jaxkv.spec.terminal import Progress, Rows

DTYPES = ("float32", "bfloat16", "float64")
STORED = "stored"
LAYOUTS = ("contiguous", "window", "paged")


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


class Engine(Protocol):
    """A twin with a checkpoint's weights in it, as the options say."""

    def generate(self, prompt_ids: Sequence[int], budget: int) -> Outcome:
        """Return the continuation."""
        ...

    def stream(self, prompt_ids: Sequence[int], budget: int, progress: Progress) -> Iterator[Rows]:
        """Return an iterator over the same tokens as they come."""
        ...

    def score(
        self, texts_ids: Sequence[Sequence[int]], encoder: Sequence[Sequence[int]] | None = None
    ) -> tuple[float, int]:
        """Return the mean nats of all predictions, and their number."""
        ...

    def load(self, path: str, prompt_ids: Sequence[int]) -> "Engine":
        """Return an engine that goes on from a saved cache with whose text the prompt begins."""
        ...

    def save(self, path: str, outcome: Any) -> None:
        """Write the cache of what was generated, and of its prompt, to a file."""
        ...

    @property
    def reused(self) -> int:
        """Prompt tokens that a saved cache holds."""
        ...


Generate = Callable[[Sequence[int], int], Outcome]
Prepare = Callable[[argparse.Namespace, Checkpoint], Engine]


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
        forwarded_positions: Positions that entered the model: prompt + N - 1 with a cache, less
            what was reused.
        layout: Of the cache; None without one.
        reused_positions: Prompt tokens that a saved cache held already.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    ttft_seconds: float | None
    decode_tokens_per_second: float | None
    compilations: int | None
    forwarded_positions: int
    layout: str | None
    reused_positions: int


def main(program: str, prepare: Prepare, argv: Sequence[str] | None) -> int:
    """Return the exit code of one command: 0, or 2 after one line for an error of ours.

    1 if nobody reads the output any more. Other errors pass through.
    """
    options = parser(program).parse_args(argv)
    try:
        if hasattr(options, "run"):
            options.run(options)
        else:
            {"generate": _generate, "score": _score}[options.command](options, prepare)
        sys.stdout.flush()
    except JaxkvError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read has seen enough; Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _generate(options: argparse.Namespace, prepare: Prepare) -> None:
    command_cache.check(options)
    checkpoint = open_source(options.model)
    command_cache.check_model(options, checkpoint.config)
    tokenizer = open_tokenizer(checkpoint)
    if options.chat:
        prompt_ids = _chat_ids(checkpoint, tokenizer, options.prompt)
    else:
        prompt_ids = tokenizer.encode(options.prompt)
    engine = prepare(options, checkpoint)
    if options.load_cache is not None:
        engine = engine.load(options.load_cache, prompt_ids)
    if options.json:
        report, outcome = measure(
            engine.generate,
            prompt_ids,
            options.max_new_tokens,
            tokenizer.decode,
            layout=None if options.no_cache else options.layout,
            reused=engine.reused,
        )
        if options.save_cache is not None:
            engine.save(options.save_cache, outcome)
        print(json.dumps(asdict(report)))
        return
    outcomes: list[Outcome] = []

    def start(progress: Progress) -> Iterable[Rows]:
        if options.no_cache or options.save_cache is not None:
            # Without a cache there is nothing to stop and go on from; a stream gives none away.
            outcomes.append(engine.generate(prompt_ids, options.max_new_tokens))
            return iter([outcomes[0].new_tokens])
        return engine.stream(prompt_ids, options.max_new_tokens, progress)

    # Text runs on; an answer and bare ids stand apart from what was asked.
    is_answer = options.chat or checkpoint.config.encoder is not None
    gap = "\n" if is_answer else " " if checkpoint.tokenizer_data is None else ""
    shown = terminal.show_stream(start, options.prompt + gap, tokenizer.decode)
    if options.save_cache is not None:
        engine.save(options.save_cache, outcomes[0])
    terminal.show_note(shown)


def _score(options: argparse.Namespace, prepare: Prepare) -> None:
    checkpoint = open_source(options.model)
    tokenizer, encoder = open_tokenizer(checkpoint), checkpoint.config.encoder
    ids = tokenizer.encode(_read_text("--text-file", options.text_file))
    read = None
    if encoder is not None and options.encoder_file is not None:
        # The library's shift: what is predicted first stands behind the start.
        ids = [*encoder.start_ids[:1], *ids]
        read = [tokenizer.encode(_read_text("--encoder-file", options.encoder_file))]
    elif encoder is not None or options.encoder_file is not None:
        wanted = "what its encoder reads" if encoder else "nothing: the model has no encoder"
        raise RequestError(f"score: --encoder-file is {options.encoder_file}, expected {wanted}.")
    loss, predictions = prepare(options, checkpoint).score([ids], read)
    if options.json:
        print(json.dumps({"loss": loss, "predictions": predictions}))
    else:
        print(f"{loss:.6f} nats per token over {predictions} predictions")


def _read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fact = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise SourceError(f"score: {option} {path}: {fact}.") from None


def _chat_ids(checkpoint: Checkpoint, tokenizer: Any, prompt: str) -> list[int]:
    """Return the ids of a chat in which the user says the prompt and the model answers next.

    Raises:
        Unsupported: The checkpoint has no tokenizer, so no template.
        JaxkvError: It has no template, or one that refuses the chat.
    """
    if checkpoint.tokenizer_data is None:
        raise Unsupported(
            f"generate: --chat needs a chat template, {checkpoint.name!r} has none. Leave out "
            "--chat."
        )
    messages = [{"role": "user", "content": prompt}]
    text = render_chat(checkpoint.tokenizer_data, messages)
    return tokenizer.encode(text, rendered=True)


def asked(options: argparse.Namespace, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the arguments that both `generate` and `stream` of either twin take."""
    return {
        "end_ids": checkpoint.end_ids,
        "capacity": options.capacity,
        "layout": options.layout,
        "page_size": options.page_size,
        "slack": command_cache.slack_of(options),
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seeds": options.seed,
    }


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with 2 after one line, as for every other wrong input."""
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def dtype_of(options: argparse.Namespace, checkpoint: Checkpoint) -> str:
    """Return the dtype that the options ask for, of a given checkpoint."""
    return checkpoint.dtype if options.dtype == STORED else options.dtype


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of either twin's command line."""
    top = _Parser(program, description="Generate and score text with a decoder with a KV cache.")
    commands = top.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="continue a prompt")
    score = commands.add_parser("score", help="say how well a text is predicted")
    for each in (generate, score):
        each.add_argument(
            "model",
            help="'smollm2', 'kjv', 'reference', the path of a .gguf file or of a Hugging Face "
            "directory, or a hub id",
        )
        each.add_argument(
            "--dtype",
            choices=(*DTYPES, STORED),
            default="float32",
            help="of weights and cache; 'stored' is that of the file",
        )
        each.add_argument("--json", action="store_true", help="print one JSON object")
    score.add_argument("--text-file", required=True, metavar="F", help="UTF-8 text")
    score.add_argument(
        "--encoder-file", metavar="F", help="what the encoder reads, if there is one"
    )
    _add_generate(generate)
    command_info.add(commands)
    command_memory.add(commands)
    return top


def _add_generate(generate: argparse.ArgumentParser) -> None:
    add = generate.add_argument
    add(
        "--prompt",
        required=True,
        help="text (the encoder's, if there is one); for 'reference', ids separated by spaces",
    )
    add("--chat", action="store_true", help="the prompt is a user's turn: use the chat template")
    add("--max-new-tokens", type=int, default=32, metavar="N", help="default 32")
    add("--temperature", type=float, default=0.0, metavar="X", help="default 0: greedy")
    add("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    add(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest ones up to P"
    )
    add("--min-p", type=float, default=0.0, metavar="P", help="least share of the likeliest one")
    add("--seed", type=int, default=0, metavar="N", help="of the draws; default 0")
    add("--capacity", type=int, metavar="N", help="tokens that the cache can hold (default: need)")
    add("--layout", choices=LAYOUTS, default="contiguous", help="of the cache")
    add("--page-size", type=int, metavar="P", help="tokens of a page, for --layout paged")
    command_cache.add(add)
    add("--no-cache", action="store_true", help="recompute the whole text for every token")


def measure(
    generate: Generate,
    prompt_ids: list[int],
    max_new_tokens: int,
    decode: Callable[[list[int]], str],
    *,
    layout: str | None = "contiguous",
    reused: int = 0,
) -> tuple[Report, Outcome]:
    """Return a generation with its times, and itself.

    It runs once to compile, once for one token, once in full.
    """
    warm = generate(prompt_ids, min(max_new_tokens, 1))
    first_seconds, _ = _timed(generate, prompt_ids, min(max_new_tokens, 1))
    all_seconds, result = _timed(generate, prompt_ids, max_new_tokens)
    ids = result.new_tokens[0]
    # On a tiny model the two times can cross: then there is nothing to divide by.
    rest_seconds = all_seconds - first_seconds
    rate = (len(ids) - 1) / rest_seconds if len(ids) > 1 and rest_seconds > 0 else None
    traced = None if warm.compilations is None else warm.compilations + (result.compilations or 0)
    report = Report(
        prompt_ids=prompt_ids,
        ids=ids,
        text=decode(ids),
        ttft_seconds=first_seconds if ids else None,
        decode_tokens_per_second=rate,
        compilations=traced,
        forwarded_positions=int(result.forwarded_positions_B[0]),
        layout=layout,
        reused_positions=reused,
    )
    return report, result


def _timed(generate: Generate, prompt_ids: list[int], budget: int) -> tuple[float, Outcome]:
    start = time.perf_counter()
    result = generate(prompt_ids, budget)
    return time.perf_counter() - start, result
