"""What goes to the terminal: styled lines on stdout, a bar on stderr, nothing where nobody looks.

Lines are plain text with a style for their first word; they are wrapped only on a terminal, so that
`grep` and a file see whole sentences.
"""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "error": "bold magenta",
    "blind": "yellow",
    "inconclusive": "yellow",
    "unsupported": "dim",
}
HANG = 10
Advance = Callable[[str, int, int], None]


def show(lines: Iterable[str]) -> None:
    """Print lines, wrapped to the terminal with a hanging indent; the words of verdicts colored."""
    console = _console()
    width = console.width if console.is_terminal else 0
    for line in lines:
        for part in wrapped(line, width):
            console.print(_styled(part))


def _console() -> "Console":
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # Rich would leave with 1, which here means a divergence.
            raise BrokenPipeError

    return Plain(highlight=False, soft_wrap=True)


def wrapped(line: str, width: int) -> list[str]:
    """Return the parts of a line that fit a width; 0 leaves it whole."""
    if not width or len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    hang = " " * min(HANG + indent // 4 * 2, width // 3)
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=hang,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [line]


def _styled(line: str) -> "Text":
    from rich.text import Text

    text = Text(line)
    for verdict, style in STYLES.items():
        text.highlight_regex(rf"(?<![\w.]){verdict}(?![\w.-])", style)
    text.highlight_regex(r"^(DISAGREE|FAIL)\b", STYLES["fail"])
    text.highlight_regex(r"^(PASS)\b", STYLES["pass"])
    text.highlight_regex(r"^(BLIND|INCONCLUSIVE)\b", STYLES["blind"])
    text.highlight_regex(r"^(ERROR)\b", STYLES["error"])
    return text


@contextmanager
def progress(title: str, *, seconds: float | None = None) -> Iterator[Advance]:
    """Give a function (what, done, total) that moves a bar on stderr, and take the bar away after.

    Args:
        title: What the whole is.
        seconds: The budget, shown beside the time that has passed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    limit = "" if seconds is None else f"of {seconds:g} s"
    bar = Progress(
        TextColumn(title),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
        TextColumn(limit),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda what, done, total: bar.update(task, what=what, completed=done, total=total)
