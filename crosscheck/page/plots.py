"""The pictures of one failure: errors by tensor and position, along positions, and the margins.

Letters: B rows, T positions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.page.svg import COLOURS, INK, new_figure, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Errors below this are drawn as it: float64's own rounding, far below every tolerance.
LEAST = 1e-17


def error_map(curve: Mapping[str, Any]) -> str:
    """Return the map of errors: a line for each tensor, a column for each position, log colours.

    The largest error of all rows of the batch; what is not compared stays empty. The edges of
    chunks, pages, windows and pads are drawn in.
    """
    points = {name: _worst(rows) for name, rows in curve["points"].items()}
    if not points:
        return ""
    map_PT = np.log10(np.maximum(np.stack([_even(x, points) for x in points.values()]), LEAST))
    figure, axes = new_figure(9.0, 1.7 + 0.26 * len(points))
    finite = map_PT[np.isfinite(map_PT)]
    mesh = axes.pcolormesh(
        np.arange(map_PT.shape[1] + 1) - 0.5,
        np.arange(len(points) + 1) - 0.5,
        np.ma.masked_invalid(np.where(np.isposinf(map_PT), finite.max(initial=0.0), map_PT)),
        cmap="viridis",
        edgecolors="none",
    )
    axes.set_yticks(range(len(points)), list(points))
    axes.invert_yaxis()
    axes.set_xlabel("position")
    _draw_edges(axes, curve)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01)
    bar.set_label("log10 of the error", color=INK)
    bar.ax.tick_params(colors=INK, labelsize=8)
    bar.outline.set_visible(False)
    return to_svg(figure)


def error_lines(curve: Mapping[str, Any]) -> str:
    """Return the error of the last tensor along positions, a line a row, and what is allowed."""
    if not curve["points"]:
        return ""
    name, rows = list(curve["points"].items())[-1]
    figure, axes = new_figure(9.0, 3.4)
    for at, row in enumerate(rows):
        values = [math.nan if each is None else max(_number(each), LEAST) for each in row]
        colour = COLOURS[at % len(COLOURS)]
        axes.semilogy(values, marker="o", markersize=3, label=f"row {at}", color=colour)
    _draw_level(axes, "allowed", curve.get("allowed"), "--")
    _draw_level(axes, "noise of the uncached forward", curve.get("noise"), ":")
    _draw_edges(axes, curve)
    axes.set_xlabel("position")
    axes.set_ylabel(f"error of {name}")
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return to_svg(figure)


def _draw_level(axes: "Axes", words: str, level: Any, style: str) -> None:
    """Draw a line across at an error, with its name at its right end; none for nothing or 0."""
    value = 0.0 if level is None else _number(level)
    if not (math.isfinite(value) and value > 0):
        return
    axes.axhline(value, color=INK, linestyle=style, linewidth=1)
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    axes.annotate(words, (1, value), fontsize=8, color=INK, **place)


def margin_strip(curve: Mapping[str, Any]) -> str:
    """Return the top-2 margins of the reference along positions: near ties stand at the bottom."""
    margins = curve.get("margins")
    if not margins:
        return ""
    figure, axes = new_figure(9.0, 1.8)
    for at, row in enumerate(margins):
        values = [math.nan if each is None else max(_number(each), LEAST) for each in row]
        axes.semilogy(values, "|", markersize=9, color=COLOURS[at % len(COLOURS)])
    _draw_edges(axes, curve)
    axes.set_xlabel("position")
    axes.set_ylabel("margin")
    return to_svg(figure)


def edges(curve: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return where chunks, pages, windows and pads begin or end, by kind, as positions."""
    meta = curve.get("meta", {})
    tokens = max((len(row) for rows in curve["points"].values() for row in rows), default=0)
    found: dict[str, list[float]] = {}
    if chunks := [each for each in curve.get("chunks", ()) if each > 0]:
        found["chunk"] = chunks
    if size := meta.get("page_size"):
        found["page"] = list(range(int(size), tokens, int(size)))
    if windows := [int(each) for each in meta.get("windows", ()) or () if each]:
        found["window"] = sorted({each for each in windows if each < tokens})
    if pads := [int(each) for each in _flat(meta.get("pads", ())) if each]:
        found["pad"] = sorted(set(pads))
    return found


STYLES = {"chunk": ("--", 1.2), "page": (":", 1.2), "window": ("-.", 1.2), "pad": ("-", 0.8)}


def _draw_edges(axes: "Axes", curve: Mapping[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for kind, places in edges(curve).items():
        style, width = STYLES[kind]
        for place in places:
            axes.axvline(place - 0.5, color="#d55e00", linestyle=style, linewidth=width)


def _worst(rows: Sequence[Sequence[Any]]) -> NDArray:
    error_BT = np.array(
        [[math.nan if each is None else _number(each) for each in row] for row in rows]
    )
    empty_T = np.isnan(error_BT).all(axis=0)
    return np.where(empty_T, np.nan, np.where(np.isnan(error_BT), -np.inf, error_BT).max(axis=0))


def _even(error_T: NDArray, points: Mapping[str, NDArray]) -> NDArray:
    tokens = max(len(each) for each in points.values())
    return np.pad(error_T, (0, tokens - len(error_T)), constant_values=np.nan)


def _number(value: Any) -> float:
    return math.inf if value in ("inf", "nan") else float(value)


def _flat(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)
