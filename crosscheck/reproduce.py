"""Write a failing case out as a short program of its own, which knows nothing of crosscheck.

The relation is run once more on taped subjects. Where the two sides first differ, the vectors of
both sides are looked up among the logits that were returned; the calls that led there are the
program.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.compare import Comparison
from crosscheck.judging import judge_sides
from crosscheck.place import is_logits
from crosscheck.programs.case import Case
from crosscheck.relations.registry import Relation, Sides
from crosscheck.tape import Call, Tape

MOST_LINES = 39
MOST_ELEMENTS = 400
WIDTH = 96
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


def reproduce(
    relation: Relation,
    candidate: Any,
    reference: Any,
    case: Case,
    *,
    origins: Sequence[Origin],
    dtype: str | None = None,
    rtol: float | None = None,
) -> str | None:
    """Return a program that exits with 1 while the case fails, or None where none can be written.

    None where the two sides are not logits that some call returned, but computed from them; or
    where the program would have 40 lines.

    Args:
        relation: The relation that fails.
        candidate: The candidate, in the dtype in which it fails.
        reference: The reference; the candidate itself where there is no second model.
        case: The failing case.
        origins: How the program makes the candidate, and the reference where there is one.
        dtype: What the program casts to; None leaves the models as they are made.
        rtol: Of the semantic level, where the oracle's own noise is above the level's.
    """
    tape = Tape()
    left = tape.subject(candidate, 0)
    right = left if reference is candidate else tape.subject(reference, 1)
    sides = relation.run(left, right, case)
    if sides.expect == "refuse":
        last = _last_of_candidate(tape)
        ending = _must_raise(last) if last else None
        targets = [last] if last else []
    else:
        targets, ending = _must_agree(relation, sides, tape, rtol)
    if ending is None:
        return None
    return _program(relation, tape, targets, ending, origins, dtype)


def _must_agree(
    relation: Relation, sides: Sides, tape: Tape, rtol: float | None
) -> tuple[list[Call], tuple[str, list[str]] | None]:
    comparison = _logits_comparison(relation, sides, rtol)
    if comparison is None or comparison.first is None:
        return [], None
    place = comparison.first
    at = (place.row, place.position)
    name, where = comparison.points[0], {"row": place.row, "position": place.position}
    left = tape.find(np.asarray(sides.left[name])[at], **where)
    right = tape.find(np.asarray(sides.right[name])[at], **where)
    if left is None or right is None:
        return [], None
    about = f"{' vs '.join(sides.words)}, row {place.row}, position {place.position}."
    lines = [
        f"left, right = {_element(left)}, {_element(right)}",
        "error = np.abs(np.float64(left) - np.float64(right)).max()",
        f"allowed = {comparison.allowed!r}  # {comparison.tolerance.level}",
        'print(f"largest difference {error:.3g}, allowed {allowed:.3g}")',
        "sys.exit(0 if error <= allowed else 1)",
    ]
    return [left[0], right[0]], (about, lines)


def _logits_comparison(relation: Relation, sides: Sides, rtol: float | None) -> Comparison | None:
    """Return the numbers of the first point of logits that fails; None where none does."""
    for name in sides.left:
        if is_logits(name) and name in sides.right:
            alone = replace(sides, left={name: sides.left[name]}, right={name: sides.right[name]})
            comparison = judge_sides(relation, alone, rtol=rtol).comparison
            if comparison is not None and comparison.first is not None:
                return comparison
    return None


def _must_raise(last: Call) -> tuple[str, list[str]]:
    return "the last call must raise, there is no room left.", [
        'print("it answered, expected an error")',
        "sys.exit(1)",
    ]


def _last_of_candidate(tape: Tape) -> Call | None:
    steps = [call for call in tape.calls if call.model == 0 and call.method == "step"]
    return steps[-1] if steps else None


def _element(found: tuple[Call, tuple[int, int]]) -> str:
    call, (row, place) = found
    return f"y{call.number}[{row}, {place}]"


def _program(
    relation: Relation,
    tape: Tape,
    targets: Sequence[Call],
    ending: tuple[str, list[str]],
    origins: Sequence[Origin],
    dtype: str | None,
) -> str | None:
    about, last_lines = ending
    needed = tape.needed(call.number for call in targets)
    body = list(_calls(needed, {call.number for call in targets}))
    if any(line is None for line in body):
        return None
    if last_lines[-1] == "sys.exit(1)":
        *body, final = [str(line) for line in body]
        body += ["try:", *textwrap.indent(final, "    ").splitlines(), "except Exception as error:"]
        body += ['    sys.exit(f"refused, as it should: {error}" and 0)']
    models = sorted({call.model for call in needed})
    lines = [
        f'"""{relation.name} fails (exit code 1): {about}"""',
        "",
        *_head([origins[model] for model in models]),
        "",
        *(f"{NAMES[model]} = {_made(origins[model], dtype)}" for model in models),
        *_renumbered([part for line in body for part in str(line).splitlines()] + last_lines),
    ]
    return "\n".join(lines) + "\n" if len(lines) <= MOST_LINES else None


def _renumbered(lines: list[str]) -> list[str]:
    """Return the lines with the results counted from 1, in the order in which they appear."""
    numbers: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}{numbers.setdefault(match[2], len(numbers) + 1)}"

    return [re.sub(r"\b([ys])(\d+)\b", renamed, line) for line in lines]


def _head(origins: Sequence[Origin]) -> Iterator[str]:
    folders = dict.fromkeys(origin.folder for origin in origins if origin.folder is not None)
    yield "import sys"
    if folders:
        yield "from pathlib import Path"
    yield from ("", "import numpy as np", "")
    for folder in folders:
        yield f"sys.path.insert(0, str(Path(__file__).resolve().parent / {folder!r}))"
    yield from dict.fromkeys(line for origin in origins for line in origin.imports)
    drivers = dict.fromkeys(origin.driver for origin in origins if origin.driver)
    for driver in drivers:
        yield from ("", *driver)


def _made(origin: Origin, dtype: str | None) -> str:
    return f"{origin.expression}.cast({dtype!r})" if dtype else origin.expression


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
