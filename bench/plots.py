"""Plots as SVG that take the page's own ink, so that they read on a light and a dark ground."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Apart in hue and in lightness, on white and on near black (Okabe and Ito 2008, two of them
# lightened).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c")
# Stands for the reader's ink until the SVG is written: nothing else has this colour.
INK = "#010203"


def bars(rows: Sequence[Row], *, unit: str) -> str:
    """Return horizontal bars of the medians, with the extremes as whiskers, one colour a subject.

    Rows without a number leave a gap with their note. '' if nothing was measured.
    """
    if not any(row.median is not None for row in rows):
        return ""
    subjects = list(dict.fromkeys(row.subject for row in rows))
    figure, axes = _figure(9.0, 0.9 + 0.28 * len(rows))
    for at, row in enumerate(rows):
        colour = COLOURS[subjects.index(row.subject) % len(COLOURS)]
        if row.median is None or row.low is None or row.high is None:
            axes.text(0, at, f" {row.note}", va="center", fontsize=8, color=INK)
            continue
        reach = [[row.median - row.low], [row.high - row.median]]
        axes.barh(at, row.median, color=colour, height=0.7)
        axes.errorbar(row.median, at, xerr=reach, color=INK, capsize=2, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row.case} · {row.subject}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    return _svg(figure)


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
    figure, axes = _figure(9.0, 4.5)
    for at, (name, (places, values)) in enumerate(lines.items()):
        style = "--" if name in dashed else "-"
        colour = COLOURS[at % len(COLOURS)]
        axes.loglog(places, values, style, marker="o", markersize=3, label=name, color=colour)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return _svg(figure)


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(
            f"bench: plots need matplotlib ({error}). Run: pip install 'jaxkv[plots]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, which="both", labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return figure, axes


def _svg(figure: "Figure") -> str:
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    return re.sub(INK, "currentColor", text[text.index("<svg") :])
