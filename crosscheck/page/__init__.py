"""A report as one self-contained page: rendered from the JSON, nothing is asked of the network.

Letters: B rows, T positions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crosscheck.errors import CrosscheckError

FOLDER = Path(__file__).parent


def write_html(data: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of a report or of a detection matrix.

    Args:
        data: What `Report.to_json` or `DetectionMatrix.to_json` returned.
        path: Where to; an older file is replaced.

    Raises:
        CrosscheckError: The file cannot be written, or matplotlib is not installed.
    """
    text = render(data)
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise CrosscheckError(f"--html {path}: {error.strerror}.") from None


def render(data: Mapping[str, Any]) -> str:
    """Return the page's text; see `write_html`."""
    import jinja2

    from crosscheck.page.matrix import view_matrix
    from crosscheck.page.view import view_report

    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    if "cells" in data:
        return engine.get_template("matrix.html.jinja").render(view_matrix(data))
    return engine.get_template("report.html.jinja").render(view_report(data))
