"""Lay a program's answers beside those of the uncached forward, text by text.

Letters: M texts, T positions, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.programs.model import Text
from crosscheck.programs.run import Trace

FULL_ROWS = 4


@dataclass
class _Line:
    """One text that some row held, with the answers to those of its tokens that a step fed."""

    text: Text = ()
    answers: dict[int, NDArray] = field(default_factory=dict)
    lengths: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """All answers of a program, one line a text.

    Attributes:
        texts: The texts.
        logits_MTV: The answers.
        valid_MT: Where there is one.
        length_MT: What the subject said it held after the step that fed the token; None where it
            can't tell.
        held_MT: What it held.
    """

    texts: tuple[Text, ...]
    logits_MTV: NDArray
    valid_MT: NDArray
    length_MT: NDArray | None
    held_MT: NDArray


def tabulate(trace: Trace) -> Table:
    """Return the answers of a trace; a row that only grows stays one line."""
    lines: list[_Line] = []
    for fed in trace.steps:
        for row, text in enumerate(fed.texts):
            count = int(fed.count_B[row])
            if count:
                line = _line(lines, text[: len(text) - count])
                line.text = text
                said = -1 if fed.length_B is None else int(fed.length_B[row])
                for i, place in enumerate(range(len(text) - count, len(text))):
                    line.answers[place] = fed.logits_BTV[row, i]
                    line.lengths[place] = (said, len(text))
    return _table(lines, told=all(fed.length_B is not None for fed in trace.steps))


def _line(lines: list[_Line], before: Text) -> _Line:
    for line in lines:
        if line.text == before and line.answers:
            return line
    lines.append(_Line())
    return lines[-1]


def _table(lines: list[_Line], *, told: bool) -> Table:
    width = max((len(line.text) for line in lines), default=0)
    some = next((answer for line in lines for answer in line.answers.values()), np.zeros(0))
    logits_MTV = np.zeros((len(lines), width, some.shape[-1]), some.dtype)
    valid_MT = np.zeros(logits_MTV.shape[:2], np.bool_)
    said_MT, held_MT = np.zeros((2, *valid_MT.shape))
    for m, line in enumerate(lines):
        for place, answer in line.answers.items():
            logits_MTV[m, place], valid_MT[m, place] = answer, True
            said_MT[m, place], held_MT[m, place] = line.lengths[place]
    texts = tuple(line.text for line in lines)
    return Table(texts, logits_MTV, valid_MT, said_MT if told else None, held_MT)


def full_texts(full: Any, texts: tuple[Text, ...], *, width: int, filler: int) -> NDArray:
    """Return the uncached logits [M, T, V] of texts of several lengths, T the longest of them.

    What follows a text's end can't reach it in a causal forward, which is checked before: texts
    are filled up to one width and run a few at a time, so that little is compiled.
    """
    longest = max(map(len, texts))
    ids_MT = np.full((-(-len(texts) // FULL_ROWS) * FULL_ROWS, max(width, longest)), filler)
    for m, text in enumerate(texts):
        ids_MT[m, : len(text)] = text
    blocks = np.split(ids_MT.astype(np.int32), len(ids_MT) // FULL_ROWS)
    logits_MTV = np.concatenate([np.asarray(full(block)) for block in blocks])
    return logits_MTV[: len(texts), :longest]
