"""Plots as SVG that take the page's own ink, so that they read on a light and a dark ground."""

import io
from typing import TYPE_CHECKING

from crosscheck.errors import CrosscheckError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stands for the reader's ink until the SVG is written: nothing else has this colour.
INK = "#010203"
# Apart in hue and in lightness, on white and on near black (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c")


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """Return a figure without a ground, in inches, and its axes in the reader's ink.

    Raises:
        CrosscheckError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CrosscheckError(
            f"new_figure: plots need matplotlib ({error}). Run: pip install 'jaxkv[plots]'"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, which="both", labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return figure, axes


def to_svg(figure: "Figure") -> str:
    """Return the figure as an `<svg>` element for the inside of a page."""
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
