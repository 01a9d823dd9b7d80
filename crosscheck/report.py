"""The text of a report: verdict, worst, count, first, greedy, repeat, where they apply."""

from typing import TYPE_CHECKING

from crosscheck.place import Place, point_words

if TYPE_CHECKING:
    from crosscheck.compare import Comparison
    from crosscheck.greedy import GreedyComparison


def comparison_report(comparison: "Comparison", *, repeat: str | None = None) -> str:
    """Return the report of a comparison; the first word is AGREE or DISAGREE."""
    c = comparison
    left, right = c.names
    lines = [f"{'AGREE' if c.agree else 'DISAGREE'} {c.name}: {left} vs {right}, {c.dtype}"]
    lines.append(f"  worst   {_worst(c)}")
    lines.append(
        f"  count   {c.count:,} of {c.total:,} outside; "
        f"non-finite: {c.non_finite[0]:,} left, {c.non_finite[1]:,} right"
    )
    if c.first is not None:
        lines.append(f"  first   {_first(c, c.first)}")
    if c.greedy is not None:
        lines.append(f"  greedy  {_greedy(c.greedy)}")
    if repeat is not None:
        lines.append(f"  repeat  {repeat}")
    return "\n".join(lines)


def greedy_report(greedy: "GreedyComparison") -> str:
    """Return the report of greedy ids; the first word is AGREE, DISAGREE or INCONCLUSIVE."""
    g = greedy
    word = {"pass": "AGREE", "fail": "DISAGREE", "inconclusive": "INCONCLUSIVE"}[g.verdict]
    lines = [f"{word} greedy ids: {g.names[0]} vs {g.names[1]}"]
    lines.append(
        f"  count   {g.different:,} of {g.total:,} ids differ: {g.divergences:,} where the "
        "margin forces them, "
        f"{g.near_ties:,} near ties (budget {g.waiver:.0%}); {g.forced:,} forced"
    )
    if g.first is not None and g.first_ids is not None:
        lines.append(
            f"  first   {g.first}: id {g.first_ids[0]} left, {g.first_ids[1]} right; "
            f"margin {g.first_margin:.2g}"
        )
    lines.append(f"  greedy  {_greedy(g)}")
    return "\n".join(lines)


def _worst(c: "Comparison") -> str:
    point = "" if len(c.points) == 1 else f"{point_words(c.worst_at.name)}: "
    at = "largest at" if c.measure.startswith("rms") else "at"
    dtype = "" if c.tolerance.level == "ratio" else f"{c.dtype}, "
    return (
        f"{c.measure} {c.worst:.1e} {at} {point}{c.worst_at}; "
        f"allowed {c.allowed:.1e} (rule: {c.tolerance.level}, {dtype}{c.rule})"
    )


def _first(c: "Comparison", first: Place) -> str:
    if len(c.points) == 1:
        return str(first)
    before = c.points[: c.points.index(first.name)]
    agrees = f"; {point_words(before[-1])} agrees there" if before else ""
    return f"{point_words(first.name)}: {first}{agrees}"


def _greedy(g: "GreedyComparison") -> str:
    same = "same tokens" if g.different == 0 else f"{g.different:,} of {g.total:,} tokens differ"
    return f"{same}; smallest top-2 margin {g.smallest_margin:.2g}"
