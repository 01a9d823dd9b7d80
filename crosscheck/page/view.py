"""What the page of a report shows, from the report's JSON: plain values for the template."""

from collections.abc import Mapping, Sequence
from typing import Any

from crosscheck.page import plots
from crosscheck.results import Diagnosis

MEANING = {
    "pass": "every comparison agreed, and each relation has seen faults planted in this model",
    "fail": "the sides differ by more than rounding explains",
    "blind": "nothing differed, but a planted fault would not have been seen: no green light",
    "inconclusive": "it could not be told, for the reason given",
    "unsupported": "the subject does not declare what the relation needs",
    "error": "the subject raised, or answered in another form than promised",
}
EDGES = {
    "chunk": "dashed: a chunk begins",
    "page": "dotted: a page begins",
    "window": "dash-dotted: a window's width",
    "pad": "thin: padding ends",
}


def view_report(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's values.

    Args:
        data: From `Report.to_json`.
    """
    rows = [{**_row(row), "id": f"row-{i}"} for i, row in enumerate(data["rows"])]
    return {
        "subject": data["subject"],
        "against": data["against"],
        "verdict": data["verdict"],
        "meaning": MEANING,
        "unchecked": _unchecked(rows),
        "oracle": data["oracle"],
        "notes": data["notes"],
        "seconds": data["seconds"],
        "rows": rows,
        "failures": [row for row in rows if row["verdict"] in ("fail", "error")],
        "coverage": _coverage(data["coverage"]),
        "env": sorted(data["env"].items()),
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    curve = row["curve"]
    divergence = row["divergence"]
    return {
        "relation": row["relation"],
        "verdict": row["verdict"],
        "axis": row["axis"],
        "dtype": row["dtype"],
        "worst": number(row["worst"]),
        "required": number(row["required_tolerance"]),
        "tolerance": row["tolerance"],
        "cases": row["cases"],
        "kills": len(row["kills"]) or "",
        "reason": row["reason"],
        "documented": row["documented"],
        "where": "" if divergence is None else where(divergence),
        "diagnosis": [_diagnosis(each) for each in row["diagnosis"]],
        "case": row["case"],
        "sides": () if curve is None else curve["words"],
        "edges": [] if curve is None else [EDGES[kind] for kind in plots.edges(curve)],
        "map": "" if curve is None else plots.error_map(curve),
        "lines": "" if curve is None else plots.error_lines(curve),
        "noise": bool(curve and curve.get("noise")),
        "margins": "" if curve is None else plots.margin_strip(curve),
    }


def _diagnosis(each: Mapping[str, Any]) -> dict[str, Any]:
    known = Diagnosis(**each)
    return {**each, "score": f"{known.score:.2f}", "named": known.is_name}


def _unchecked(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a reader of a pass would take for checked and was not; "" for nothing."""
    closed = (row for row in rows if row["verdict"] == "unsupported")
    reason = next((row["reason"] for row in closed if row["relation"] == "pad.left"), "")
    return reason and f"Padding was not checked: {reason}."


def where(divergence: Mapping[str, Any]) -> str:
    """Return where a divergence begins, in words."""
    layer = divergence["layer"]
    parts = [f"row {divergence['row']}", f"position {divergence['position']}"]
    parts += [f"chunk {divergence['chunk']}"] if divergence["chunk"] is not None else []
    parts += [f"layer {layer}"] if layer is not None else []
    inherited = divergence["inherited"]
    from_before = {True: ", inherited from before it", False: ", arising there", None: ""}
    return f"{', '.join(parts)}: {divergence['point']}{from_before[inherited]}"


def number(value: Any) -> str:
    """Return a number of a report in short, '' for none."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.2g}"


def _coverage(coverage: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    relations = [name for name, faults in coverage.items() if faults]
    faults = sorted({fault for name in relations for fault in coverage[name]})
    return {
        "relations": relations,
        "faults": [
            {"name": fault, "seen": [fault in coverage[name] for name in relations]}
            for fault in faults
        ],
    }
