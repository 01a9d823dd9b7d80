"""One self-contained page of a benchmark's rows: tables, plots, the environment."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bench.plots import bars
from bench.rows import REFERENCES, Row

TEMPLATE = Path(__file__).parent / "page.html.jinja"


def write(
    path: str,
    rows: list[Row],
    *,
    about: str,
    says: str,
    environment: dict[str, Any],
    figures: Mapping[str, str],
) -> None:
    """Write the page to a file.

    Args:
        path: Where to; an older file is replaced.
        rows: Grouped by metric in their order.
        about: The title.
        says: What may and may not be read from the numbers; '' for nothing.
        environment: From `environment`.
        figures: SVG by title.
    """
    Path(path).write_text(
        page(rows, about=about, says=says, environment=environment, figures=figures)
    )


def page(
    rows: list[Row],
    *,
    about: str,
    says: str,
    environment: dict[str, Any],
    figures: Mapping[str, str],
) -> str:
    """Return the page's text; see `write`."""
    loader = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    groups = [
        _group(metric, unit, list(members))
        for (metric, unit), members in groupby(rows, key=lambda row: (row.metric, row.unit))
    ]
    return loader.from_string(TEMPLATE.read_text()).render(
        about=about,
        says=says,
        groups=groups,
        figures=[(title, Markup(svg)) for title, svg in figures.items()],
        environment=[(name, _plain(value)) for name, value in environment.items()],
    )


def _group(metric: str, unit: str, rows: list[Row]) -> dict[str, Any]:
    best = {
        case: min(
            (
                row.median
                for row in members
                if row.median is not None and row.subject not in REFERENCES
            ),
            default=None,
        )
        for case, members in _by_case(rows).items()
    }
    return {
        "metric": metric,
        "unit": unit,
        "shows": {
            "ratio": any(row.ratio is not None for row in rows),
            "floor": any(row.floor_share is not None for row in rows),
            "note": any(row.note for row in rows),
        },
        # Counts and exponents are no lengths of bars: their curves are figures of their own.
        "plot": Markup(bars(rows, unit=unit)) if unit else "",
        "rows": [
            {
                "case": row.case,
                "subject": row.subject,
                # Counts are whole: no zeros behind their points.
                "numbers": [_number(x, exact=not unit) for x in (row.median, row.low, row.high)],
                "ratio": _number(row.ratio),
                "floor": _number(row.floor_share),
                "note": row.note,
                "best": row.median is not None
                and row.median == best[row.case]
                and row.subject not in REFERENCES,
            }
            for row in rows
        ],
    }


def _by_case(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case, []).append(row)
    return found


def _number(value: float | None, *, exact: bool = False) -> str:
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.3g}" if exact else f"{value:#.3g}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list) else str(value)
