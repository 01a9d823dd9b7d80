"""The command `generate`: a continuation printed as it comes, or measured as one JSON object.

Its flags are those of flag_groups.py; what a twin computes, it computes in its own cli.py.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from jaxkv.spec import command_cache, flag_groups, flags_drafts, flags_logprobs, terminal
from jaxkv.spec.chat import render_chat
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import Unsupported
from jaxkv.spec.flags_ending import ending
from jaxkv.spec.source import open_source, open_tokenizer
from jaxkv.spec.terminal import Progress, Rows


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

    @property
    def texts(self) -> list[str] | None:
        """With stop strings, each row's text before its own."""
        ...


class Engine(Protocol):
    """A twin with a checkpoint's weights in it, as the options say."""

    def generate(self, prompt_ids: Sequence[int], budget: int, **ending: Any) -> Outcome:
        """Return the continuation, with what only `generate` takes of how it ends."""
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
        first_call_seconds: Of the first call, for one token: compiling counts where the twin
            compiles, opening the model does not. The note after a printed text counts alike.
        ttft_seconds: Of the same call once more, so that compiling does not count; None without new
            tokens.
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
    first_call_seconds: float
    ttft_seconds: float | None
    decode_tokens_per_second: float | None
    compilations: int | None
    forwarded_positions: int
    layout: str | None
    reused_positions: int


def run(options: argparse.Namespace, prepare: Prepare) -> None:
    """Run the command: print a continuation as it comes, or one JSON object.

    Raises:
        JaxkvError: The model cannot be opened, or an option does not fit.
    """
    flag_groups.check(options)
    checkpoint = open_source(options.model, mtp=options.draft == flags_drafts.MTP)
    command_cache.check_model(options, checkpoint.config)
    flags_logprobs.check_model(options, checkpoint.config)
    tokenizer = open_tokenizer(checkpoint)
    if options.chat:
        prompt_ids = _chat_ids(checkpoint, tokenizer, options.prompt)
    else:
        prompt_ids = tokenizer.encode(options.prompt)
    engine = prepare(options, checkpoint)
    if options.load_cache is not None:
        engine = engine.load(options.load_cache, prompt_ids)
    generate = partial(engine.generate, **ending(options, tokenizer.decode))
    if options.json:
        report, outcome = measure(
            generate,
            prompt_ids,
            options.max_new_tokens,
            tokenizer.decode,
            layout=None if options.no_cache else options.layout,
            reused=engine.reused,
        )
        if options.save_cache is not None:
            engine.save(options.save_cache, outcome)
        facts = flag_groups.tell(options, outcome, tokenizer.decode)
        print(json.dumps(asdict(report) | facts))
        return
    outcomes: list[Outcome] = []

    def start(progress: Progress) -> Iterable[Rows]:
        if not _is_streamed(options):
            outcomes.append(generate(prompt_ids, options.max_new_tokens))
            return iter([outcomes[0].new_tokens])
        return engine.stream(prompt_ids, options.max_new_tokens, progress)

    def decode(ids: Sequence[int]) -> str:
        texts = outcomes[0].texts if outcomes and options.stop else None
        return tokenizer.decode(ids) if texts is None else texts[0]

    # Text runs on; an answer and bare ids stand apart from what was asked.
    is_answer = options.chat or checkpoint.config.encoder is not None
    gap = "\n" if is_answer else " " if checkpoint.tokenizer_data is None else ""
    # A stream's own stop strings cut ids; here the text is cut, to the letter.
    strings = tuple(options.stop or ())
    shown = terminal.show_stream(start, options.prompt + gap, decode, strings)
    for line in flag_groups.rest(options, outcomes[0], tokenizer.decode) if outcomes else ():
        print(line)
    if options.save_cache is not None:
        engine.save(options.save_cache, outcomes[0])
    terminal.show_note(shown, is_streamed=not outcomes)


def _is_streamed(options: argparse.Namespace) -> bool:
    # Without a cache there is nothing to stop and go on from; a stream gives none away.
    is_whole = options.no_cache or options.save_cache is not None
    return not is_whole and flag_groups.entry(options) == flag_groups.PLAIN


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
    """Return the arguments of the entry function in either twin, beside model and texts.

    Raises:
        RequestError: A flag belongs to something that was not asked for.
    """
    return {"end_ids": checkpoint.end_ids, **flag_groups.read(options)}


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
    call_seconds, warm = _timed(generate, prompt_ids, min(max_new_tokens, 1))
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
        first_call_seconds=call_seconds,
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
