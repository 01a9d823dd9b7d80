"""A detection matrix in words: a line for each planted fault, what nobody saw, and the score."""

from collections.abc import Iterator, Mapping, Sequence

from crosscheck.detection import DetectionMatrix
from crosscheck.judging import KILL

ALSO = 1


def matrix_lines(matrix: DetectionMatrix) -> Iterator[str]:
    """Yield a line for each fault, what was not planted and why, what is blind, and the score."""
    yield f"{matrix.subject}: each fault planted in it, and the relation that sees it best"
    if matrix.cells:
        width = 2 + max(map(len, ("fault", *matrix.cells)))
        yield from ("", f"{'fault':<{width}}{'seen by':<20}{'error/allowed':>14}  also by")
        yield from (_fault_line(fault, seen, width) for fault, seen in matrix.cells.items())
    yield from _grouped("not planted", matrix.skipped)
    for relation, faults in matrix.unseen.items():
        if faults:
            yield from ("", f"BLIND {relation}: it does not see {', '.join(faults)}")
    if matrix.survivors:
        yield from ("", f"SURVIVED: no relation sees {', '.join(matrix.survivors)}")
    yield from (f"note {note}" for note in matrix.notes)
    score = f"{matrix.score:.0%}" if matrix.planted else "none planted"
    yield ""
    yield (
        f"mutation score {score}: {matrix.killed} of {matrix.planted} faults killed, "
        f"{matrix.seconds:.1f} s"
    )


def _fault_line(fault: str, seen: Mapping[str, float], width: int) -> str:
    killers = sorted((name for name in seen if seen[name] >= KILL), key=lambda name: -seen[name])
    if not killers:
        return f"{fault:<{width}}{'-':<20}{max(seen.values(), default=0.0):>14.1e}"
    best, *others = killers
    return f"{fault:<{width}}{best:<20}{seen[best]:>14.1e}  {_some(others)}".rstrip()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - ALSO} more" if len(names) > ALSO else ""
    return f"{', '.join(names[:ALSO])}{more}"


def _grouped(title: str, reasons: Mapping[str, str]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    if names:
        yield from ("", title)
    for reason, which in names.items():
        yield f"  {', '.join(which)}: {reason}"
