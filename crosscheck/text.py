"""A report in words: a line for each relation, six lines for each divergence, what was not run.

Everything here returns plain lines; `screen` wraps and colors them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import isnan

from crosscheck.compare import Comparison
from crosscheck.exits import MEANING, exit_code
from crosscheck.place import point_words, possessive
from crosscheck.report import comparison_report
from crosscheck.results import Diagnosis, Divergence, RelationResult, Report

COLUMNS = f"{'dtype':<9}{'verdict':<13}{'worst':>7}{'passes at':>11}{'cases':>7}{'kills':>7}"
VERDICTS = ("pass", "fail", "error", "inconclusive", "blind", "unsupported")
NAMED = 3

UNEXPLAINED = "no fault explains it"
UNNAMED = (
    "no fault of the dictionary explains it. A subject that has no kv, positions or visible yet: "
    "give them, then more faults can be tried"
)


def report_lines(
    report: Report, verdict: str, *, saved: Mapping[int, str] | None = None
) -> Iterator[str]:
    """Yield the whole report.

    Args:
        report: What `check` returned.
        verdict: Of the whole.
        saved: For the failures that were saved, the row's place in `report.rows` -> the file.
    """
    yield from heading(report)
    ran = [row for row in report.rows if row.verdict != "unsupported"]
    if ran:
        width = 2 + max(len("relation"), *(len(label(row)) for row in ran))
        yield from ("", f"{'relation':<{width}}{COLUMNS}")
        yield from (relation_line(row, width) for row in ran)
    told: set[str] = set()
    for place, row in enumerate(report.rows):
        if row.verdict == "fail":
            yield ""
            yield from divergence_lines(row, (saved or {}).get(place), told=told)
            told.update(each.fault for each in row.diagnosis[:1] if each.is_name)
    yield from untold_lines(ran)
    yield from absent_lines(report.rows)
    yield from ("", verdict_line(report, verdict))


def heading(report: Report) -> Iterator[str]:
    """Yield who is compared with whom, what is known of the oracle, and the notes."""
    against = report.against or "its own forward without a cache"
    yield f"{report.subject} against {against}"
    yield f"  oracle  {report.oracle}"
    for note in dict.fromkeys(report.notes):
        yield f"  note    {note}"


def label(row: RelationResult) -> str:
    """Return a relation's name, with its axis where two subjects were compared."""
    return f"{row.name} (parity)" if row.axis == "parity" else row.name


def relation_line(row: RelationResult, width: int) -> str:
    """Return one relation's line: verdict, largest error, the tolerance that would have passed."""
    worst = "-" if row.worst is None else f"{row.worst:.1e}"
    needed = "-" if row.required_tolerance is None else f"{row.required_tolerance:.1e}"
    kills = len(row.kills) if row.kills else "-"
    numbers = f"{worst:>7}{needed:>11}{row.cases:>7}{kills:>7}"
    ties = f"  {row.near_ties} near ties" if row.near_ties else ""
    return f"{label(row):<{width}}{row.dtype:<9}{row.verdict:<13}{numbers}{ties}"


def divergence_lines(
    row: RelationResult, saved: str | None = None, *, told: Set[str] = frozenset()
) -> Iterator[str]:
    """Yield the report of one divergence: verdict, worst, count, first, meaning, repeat.

    Args:
        row: The failing row.
        saved: The file of its failure.
        told: Faults that the report has explained already.
    """
    lines = _numbers(row)
    if row.divergence is not None:
        lines["first"] = where(row.divergence)
    if row.comparison is not None and row.comparison.non_finite != (0, 0) and row.reason:
        lines["why"] = row.reason
    if row.comparison is not None or row.diagnosis:
        non_finite = "" if row.diagnosis else non_finite_words(row.comparison)
        lines["meaning"] = non_finite or meaning(row.diagnosis, told=told, case=as_found(row))
    if row.documented is not None:
        sentence, source = row.documented
        lines["package"] = f'says of it: "{sentence}" ({source})'
    if saved is not None:
        lines["repeat"] = f"crosscheck replay {saved}"
    yield lines.pop("")
    for name, words in lines.items():
        yield f"  {name:<8}{words}"


def _numbers(row: RelationResult) -> dict[str, str]:
    if row.comparison is None:
        return {"": f"DISAGREE {label(row)}, {row.dtype}: {row.reason}"}
    first, *lines = comparison_report(row.comparison).splitlines()
    if row.name not in first:
        first = first.replace("DISAGREE ", f"DISAGREE {label(row)}, ", 1)
    return {"": first} | {line[:10].strip(): line[10:] for line in lines}


def where(divergence: Divergence) -> str:
    """Return where a divergence begins, and whether it came from there or was inherited."""
    d = divergence
    words = [f"row {d.row}", f"position {d.position}"]
    if d.chunk is not None:
        words.append(f"chunk {d.chunk}")
    words.append(point_words(f"{d.point}.{d.layer}" if d.layer is not None else d.point))
    return ", ".join(words) + _isolated(d)


def _isolated(d: Divergence) -> str:
    if d.inherited is None:
        return f"; inherited or not: {d.isolated}" if d.isolated else ""
    told = d.isolated or ("its inputs differ already" if d.inherited else "its inputs agree")
    if not d.inherited:
        return f"; {told}: it begins here"
    return f"; {told}: inherited" + (f", it begins in {possessive(d.origin)}" if d.origin else "")


def as_found(row: RelationResult) -> str:
    """Return what the left side of the case was when it was first found; "" where it is as small.

    A small case says where, and the lines before `meaning` are of it; faults are told apart, and
    errors drawn, on the case as it was found.
    """
    curve = row.curve
    return str(curve["words"][0]) if curve is not None and curve.get("shrunk") else ""


def diagnosed(row: RelationResult) -> str:
    """Return which relation failed, and the case that its diagnosis is of."""
    compared = row.comparison
    words = list(compared.names) if compared is not None else []
    found = as_found(row) if row.diagnosis else ""
    if found and row.curve is not None:
        words = list(row.curve["words"])
    told = f" on {' vs '.join(words)}" if words else ""
    return f"{label(row)} fails{told}, {row.dtype}{', the case as first found' if found else ''}"


def meaning(diagnosis: Sequence[Diagnosis], *, told: Set[str] = frozenset(), case: str = "") -> str:
    """Return the fault that explains it best, its evidence, what to look at, and the others.

    Args:
        diagnosis: Best first.
        told: Faults that were explained above: their name is enough.
        case: On which it was told, where that is another than the lines around it are of.
    """
    from crosscheck.faults import FAULTS

    if not diagnosis:
        return UNNAMED
    best, *others = diagnosis
    words = f"{best.fault} ({best.score:.2f})"
    words = words if best.is_name else f"{UNEXPLAINED}; nearest: {words}"
    if best.fault in told:
        return f"{words}, as above"
    words += f" [on the case as first found: {case}]" if case else ""
    words = f"{words}: {best.evidence}"
    fault = FAULTS.get(best.fault) if best.is_name else None
    if fault is not None:
        words = f"{words.rstrip('.')}. {' '.join(fault.advice.split())}"
    if others:
        named = ", ".join(f"{each.fault} ({each.score:.2f})" for each in others[:NAMED])
        words = f"{words.rstrip('.')}. Or {named}"
    return words


def untold_lines(rows: Iterable[RelationResult]) -> Iterator[str]:
    """Yield the relations that could not tell, or that the subject broke, by their reasons."""
    told = [row for row in rows if row.verdict in ("error", "blind", "inconclusive")]
    for (verdict, reason), names in _by_reason(told).items():
        yield ""
        yield f"{verdict.upper()} {', '.join(names)}: {reason}"


def absent_lines(rows: Iterable[RelationResult]) -> Iterator[str]:
    """Yield which relations were not run, by the reason."""
    absent = _by_reason(row for row in rows if row.verdict == "unsupported")
    if absent:
        yield from ("", "not run (unsupported)")
    for (_, reason), names in absent.items():
        yield f"  {', '.join(names)}: {reason}"


def _by_reason(rows: Iterable[RelationResult]) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        shown = label(row) if row.dtype == "float64" else f"{label(row)} in {row.dtype}"
        names.setdefault((row.verdict, row.reason), {})[shown] = None
    return {key: list(each) for key, each in names.items()}


def verdict_line(report: Report, verdict: str) -> str:
    """Return the last line: the verdict, how many results have which, and the time."""
    counts = Counter(row.verdict for row in report.rows)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS if counts[kind])
    cases = sum(row.cases for row in report.rows)
    named = unchecked(report) if verdict == "pass" else _named(report)
    seen = f" ({words})" if (words := seen_words(report.rows)) else ""
    return (
        f"{verdict.upper()}: {MEANING[exit_code(verdict)]}{named}. {told or 'nothing was run'}"
        f"{seen}; {cases:,} cases, {report.seconds:.1f} s"
    )


def _named(report: Report) -> str:
    """Return the faults that the whole report names, else what is nearest; "" for nothing."""
    best = [row.diagnosis[0] for row in report.rows if row.diagnosis]
    faults = dict.fromkeys(each.fault for each in best if each.is_name)
    if faults:
        return f", most likely {' and '.join(faults)}"
    if any(non_finite_words(row.comparison) for row in report.rows if row.verdict == "fail"):
        return ", non-finite numbers"
    nearest = max(best, key=lambda each: each.score, default=None)
    if nearest is None:
        return ""
    return f"; {UNEXPLAINED}; nearest: {nearest.fault} ({nearest.score:.2f})"


def non_finite_words(comparison: Comparison | None) -> str:
    """Return where NaN or infinity begins, and what to look at; "" where all is finite."""
    if comparison is None or comparison.non_finite == (0, 0) or not isnan(comparison.worst):
        return ""
    at = comparison.worst_at
    return (
        f"non-finite from row {at.row}, position {at.position} of {point_words(at.name)} on: no "
        "fault is named for it. Look for a row that reads nothing at all, a slot read before it is "
        "written, and a division by zero"
    )


def seen_words(rows: Iterable[RelationResult]) -> str:
    """Return in how many of the rows that pass planted faults were seen, and in which not.

    Faults are planted once, in the dtype of the gate and within one subject: the same relation
    between two subjects, or in another dtype, is taken to see what it saw there.
    """
    passed = [row for row in rows if row.verdict == "pass"]
    seen = [row for row in passed if row.kills]
    if not passed:
        return ""
    if len(seen) == len(passed):
        return f"planted faults seen in all {len(seen)}"
    gates = {row.dtype for row in seen}
    without = Counter(_unplanted(row, gates) for row in passed if not row.kills)
    named = ", ".join(f"{count} {kind}" for kind, count in without.items())
    return f"planted faults seen in {len(seen)} of {len(passed)}, none planted in {named}"


def _unplanted(row: RelationResult, gates: Set[str]) -> str:
    if row.dtype not in gates:
        return f"in {row.dtype}"
    return "(parity)" if row.axis == "parity" else row.name


def unchecked(report: Report) -> str:
    """Return what a reader of a pass would take for checked and was not; "" for nothing."""
    closed = any(row.name == "pad.left" and row.verdict == "unsupported" for row in report.rows)
    return "; padding was not checked" if closed else ""


def diagnosis_lines(diagnosis: Iterable[Diagnosis]) -> Iterator[str]:
    """Yield the faults that would explain a divergence, best first, each with its evidence."""
    from crosscheck.faults import FAULTS

    found = list(diagnosis)
    if not found:
        yield f"  {UNNAMED}"
    elif not found[0].is_name:
        yield f"  {UNEXPLAINED}; nearest:"
    for each in found:
        yield f"  {each.score:4.2f}  {each.fault}: {each.evidence}"
    if found and found[0].is_name and (fault := FAULTS.get(found[0].fault)):
        yield f"  advice  {' '.join(fault.advice.split())}"
