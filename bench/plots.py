"""Plots of results: bars and curves, as SVG for the inside of a page."""

import itertools
from collections.abc import Sequence

from bench.rows import Row
from crosscheck.page.svg import COLOURS, INK, new_figure, to_svg


def bars(rows: Sequence[Row], *, unit: str) -> str:
    """Return horizontal bars of the medians, with the extremes as whiskers, one colour a subject.

    Rows without a number leave a gap with their note. '' if nothing was measured.
    """
    if not any(row.median is not None for row in rows):
        return ""
    subjects = list(dict.fromkeys(row.subject for row in rows))
    places = _places(rows)
    figure, axes = new_figure(9.0, 0.9 + 0.28 * (places[-1] + 1))
    for at, row in zip(places, rows, strict=True):
        colour = COLOURS[subjects.index(row.subject) % len(COLOURS)]
        if row.median is None or row.low is None or row.high is None:
            beside = {"xytext": (4, 0), "textcoords": "offset points"}
            axes.annotate(row.note, (0, at), va="center", fontsize=8, color=INK, **beside)
            continue
        reach = [[row.median - row.low], [row.high - row.median]]
        axes.barh(at, row.median, color=colour, height=0.7)
        axes.errorbar(row.median, at, xerr=reach, color=INK, capsize=2, linewidth=0.8)
    axes.set_yticks(places, [f"{row.case} · {row.subject}" for row in rows])
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    return to_svg(figure)


def _places(rows: Sequence[Row]) -> list[float]:
    """Return where each bar stands: one after the other, with a gap between cases."""
    places = [0.0]
    for before, row in itertools.pairwise(rows):
        places.append(places[-1] + (1.0 if row.case == before.case else 1.5))
    return places


def curves(
    lines: dict[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    dashed: frozenset[str] = frozenset(),
) -> str:
    """Return lines in log-log axes.

    Args:
        lines: Name to the points' places and values, all above 0.
        x: What the places are, with the unit.
        y: What the values are, with the unit.
        dashed: Names of lines that are counted and not measured.
    """
    figure, axes = new_figure(9.0, 4.5)
    for at, (name, (places, values)) in enumerate(lines.items()):
        style = "--" if name in dashed else "-"
        colour = COLOURS[at % len(COLOURS)]
        axes.loglog(places, values, style, marker="o", markersize=3, label=name, color=colour)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return to_svg(figure)
