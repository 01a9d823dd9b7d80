"""Write taped calls out as a program: imports, models, calls, and how it ends.

A program has less than 40 lines and makes its models itself; calls that go on from one another
become a loop.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.reproduce_driver import trimmed
from crosscheck.tape import Call

MOST_LINES = 39
MOST_ELEMENTS = 400
WIDTH = 99
NAMES = ("candidate", "reference")


@dataclass(frozen=True)
class Origin:
    """How a program makes a model.

    Attributes:
        expression: What makes it.
        imports: Lines that the expression needs.
        folder: What to add to the path for them, relative to the program; None for nothing.
        driver: A class `Drive` that answers as a Subject over a bare model; () where there is one.
    """

    expression: str
    imports: tuple[str, ...]
    folder: str | None = None
    driver: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """What a program comes to.

    Attributes:
        about: What must hold, for its first line.
        lines: Compare results and exit; results are `y` and the number of their call.
        refused: Whether the last call must raise.
    """

    about: str
    lines: tuple[str, ...]
    refused: bool = False


def program(
    relation: str,
    needed: Sequence[Call],
    targets: Sequence[Call],
    ending: Ending,
    *,
    origins: Sequence[Origin],
    dtype: str | None,
) -> str | None:
    """Return the text of a program, or None where it cannot be written short.

    Args:
        relation: What fails, for its first line.
        needed: The calls, in order.
        targets: Those whose results the ending compares.
        ending: What it comes to.
        origins: How to make the models.
        dtype: What the models are cast to; None leaves them as they are made.
    """
    made = _made(needed, origins, dtype)
    calls = list(_calls(needed, {call.number for call in targets}))
    if made is None or None in calls:
        return None
    told = [str(each) for each in calls]
    if ending.refused:
        told[-1] = _expecting(told[-1])
    body = [line for each in (*told, *ending.lines) for line in each.splitlines()]
    first = f'"""{relation} fails (exit code 1): {ending.about}"""'
    lines = [first, "", *made, "", *_renumbered(body)]
    # Blank lines give way before the program does.
    shown = lines if len(lines) <= MOST_LINES else [line for line in lines if line]
    return "\n".join(shown) + "\n" if len(shown) <= MOST_LINES else None


def _expecting(call: str) -> str:
    """Return a call that must raise: then the program ends well."""
    inside = textwrap.indent(call, "    ")
    return f"try:\n{inside}\nexcept Exception as error:\n    print(error)\n    sys.exit(0)"


def _renumbered(lines: list[str]) -> list[str]:
    """Return the lines with the results counted from 1, in the order in which they appear."""
    numbers: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}{numbers.setdefault(match[2], len(numbers) + 1)}"

    return [re.sub(r"\b([ys])(\d+)\b", renamed, line) for line in lines]


def _made(needed: Sequence[Call], origins: Sequence[Origin], dtype: str | None) -> list[str] | None:
    """Return the lines that import and make the models; None where a driver lacks something."""
    models = sorted({call.model for call in needed})
    drivers: dict[tuple[str, ...], None] = {}
    making = []
    for model in models:
        origin, expression = origins[model], origins[model].expression
        calls = [call for call in needed if call.model == model]
        if origin.driver:
            driver = _driver(origin.driver, calls)
            if driver is None:
                return None
            drivers[driver] = None
            expression = f"Drive({expression}{f'.to(torch.{dtype})' if dtype else ''})"
        elif dtype:
            expression = f"{expression}.cast({dtype!r})"
        making.append(f"{NAMES[model]} = {expression}")
    if len(drivers) > 1:
        return None
    used = [origins[model] for model in models]
    return [*_imports(used), *(line for driver in drivers for line in ("", *driver)), "", *making]


def _driver(driver: Sequence[str], calls: Sequence[Call]) -> tuple[str, ...] | None:
    if any(call.form for call in calls):
        return None
    plain = not any(call.options for call in calls)
    return trimmed(driver, {call.method for call in calls}, plain=plain)


def _imports(origins: Sequence[Origin]) -> Iterator[str]:
    folders = dict.fromkeys(origin.folder for origin in origins if origin.folder is not None)
    yield "import sys"
    if folders:
        yield "from pathlib import Path"
    if not any(origin.driver for origin in origins):
        yield from ("", "import numpy as np")
    yield ""
    for folder in folders:
        yield f"sys.path.insert(0, str(Path(__file__).resolve().parent / {folder!r}))"
    yield from dict.fromkeys(line for origin in origins for line in origin.imports)


def _calls(needed: Sequence[Call], targets: set[int]) -> Iterator[str | None]:
    place = 0
    while place < len(needed):
        run = _chain(needed, place, targets)
        yield _loop(run) if len(run) > 2 else _one(needed[place])
        place += len(run) if len(run) > 2 else 1


def _chain(needed: Sequence[Call], start: int, targets: set[int]) -> list[Call]:
    """Return the steps from a place on, each of which alone goes on from the one before."""
    run = [needed[start]]
    if run[0].method != "step":
        return run
    for call in needed[start + 1 :]:
        before = run[-1]
        alone = sum(other.state == before.number for other in needed) == 1
        follows = call.method == "step" and call.state == before.number
        if not (alone and follows) or before.number in targets or call.form != before.form:
            break
        run.append(call)
    return run


def _loop(run: Sequence[Call]) -> str | None:
    last, first = run[-1], run[0]
    parts = [_call_arguments(call) for call in run]
    if any(part is None for part in parts):
        return None
    plain = not any(call.options for call in run)
    state, name = f"s{last.number}", _subject(first)
    if plain:
        items = ", ".join(str(np.asarray(call.arguments[0]).tolist()) for call in run)
        head, call_text = "ids", "np.array(ids)"
    else:
        items = ", ".join(f"dict(ids={part})" for part in parts)
        head, call_text = "given", "**given"
    return "\n".join(
        [
            f"{state} = s{first.state}",
            f"for {head} in (",
            *textwrap.wrap(
                f"{items},",
                WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            ),
            "):",
            f"    y{last.number}, {state} = {name}.step({state}, {call_text})",
        ]
    )


def _one(call: Call) -> str | None:
    arguments = _call_arguments(call)
    if arguments is None:
        return None
    given = ", ".join(
        part for part in ("" if call.state is None else f"s{call.state}", arguments) if part
    )
    result = f"y{call.number}"
    if call.method == "step":
        result = f"y{call.number}, s{call.number}"
    elif call.result is None:
        result = f"s{call.number}"
    text = f"{result} = {_subject(call)}.{call.method}({given})"
    return "\n".join(
        textwrap.wrap(
            text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    )


def _call_arguments(call: Call) -> str | None:
    values = [_literal(value) for value in call.arguments]
    options = {name: _literal(value) for name, value in call.options.items()}
    if None in values or None in options.values():
        return None
    return ", ".join([*map(str, values), *(f"{name}={value}" for name, value in options.items())])


def _subject(call: Call) -> str:
    forms = "".join(f".{method}({name!r})" for method, name in call.form)
    return NAMES[call.model] + forms


def _literal(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        parts = [_literal(each) for each in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return None


def _array(array: NDArray) -> str | None:
    if array.size > 8 and array.min() == array.max():
        kind = "bool" if array.dtype == bool else "int" if array.dtype.kind in "iu" else "float"
        return f"np.full({array.shape}, {array.flat[0].item()}, {kind})"
    if array.size > MOST_ELEMENTS:
        return None
    if array.dtype == bool:
        return f"np.array({array.astype(int).tolist()}, bool)"
    return f"np.array({array.tolist()})"
