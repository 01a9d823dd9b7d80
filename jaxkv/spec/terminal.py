"""What a command line prints while tokens come: text as it grows, and a progress bar."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxkv.spec.stop import Decode, Stops

if TYPE_CHECKING:
    from rich.console import Console

Rows = list[list[int]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Shown:
    """What was printed, and when.

    Attributes:
        ids: New ids.
        first_seconds: From the call to the first token; None without one. Compiling counts.
        rest_seconds: From there to the last.
    """

    ids: list[int]
    first_seconds: float | None
    rest_seconds: float


def pieces(
    parts: Iterable[Rows], decode: Decode, strings: Sequence[str] = ()
) -> Iterator[tuple[list[int], str]]:
    """Yield all ids of the first row so far, and what they add to the text.

    A character whose bytes are not all there yet waits for them, and what could become a stop
    string for what follows, at most until the end.

    Args:
        parts: New ids of each row, as a stream yields them; not read beyond a stop string.
        decode: Ids -> text; more ids only ever append to it.
        strings: Before the first of them the text ends.
    """
    stops = Stops(tuple(strings), decode)
    ids: list[int] = []
    shown = ""
    for rows in parts:
        ids += rows[0]
        found = stops.look(ids, is_last=False)
        yield ids if found.stop is None else ids[: found.count], found.text[len(shown) :]
        if found.stop is not None:
            return
        shown = found.text
    last = stops.look(ids, is_last=True)
    if len(last.text) > len(shown):
        yield ids[: last.count], last.text[len(shown) :]


def show_stream(
    start: Callable[[Progress], Iterable[Rows]],
    prompt: str,
    decode: Decode,
    strings: Sequence[str] = (),
) -> Shown:
    """Print the prompt and its continuation as it comes, and return what was printed.

    A bar on stderr shows how far the prompt and the new tokens are; nothing of it remains. It needs
    a terminal, and ends with the first token where the text itself goes to one.

    Args:
        start: Given what to call with (done, total), returns a stream.
        prompt: Printed before the first new token.
        decode: See `pieces`, as for `strings`.
        strings: Stop strings.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    out = Console(highlight=False, soft_wrap=True)
    bar = Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    begin = time.perf_counter()
    first: float | None = None
    ids: list[int] = []
    with bar:
        task = bar.add_task("tokens", total=None)
        parts = start(lambda done, total: bar.update(task, completed=done, total=total))
        for held, text in pieces(parts, decode, strings):
            ids = held
            if first is None:
                first = time.perf_counter()
                if out.is_terminal:
                    bar.stop()
                _show_prompt(out, prompt)
            print(text, end="", flush=True)
    if first is None:
        _show_prompt(out, prompt)
        print()
        return Shown([], None, 0.0)
    print()
    return Shown(list(ids), first - begin, time.perf_counter() - first)


def _show_prompt(out: "Console", prompt: str) -> None:
    if out.is_terminal:
        out.print(prompt, end="", markup=False, style="dim")
    else:
        # rich has an exit code of its own for a reader that has left.
        print(prompt, end="")


def show_note(shown: Shown, *, is_streamed: bool) -> None:
    """Print how many tokens there were and how long they took, on stderr.

    No rate: a first run compiles on the way, which is no property of the model. `--json` measures
    one, on a program that is compiled already.

    Args:
        shown: What was printed.
        is_streamed: Whether tokens came one after the other; else the first came with the last.
    """
    from rich.console import Console

    note = f"{len(shown.ids)} tokens"
    if shown.first_seconds is not None:
        whole = shown.first_seconds + shown.rest_seconds
        first = f", the first after {shown.first_seconds:.1f} s" if is_streamed else ""
        note += f" in {whole:.1f} s{first} (any compiling included, opening the model not)"
    Console(stderr=True, highlight=False, style="dim").print(note)
