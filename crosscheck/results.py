"""What a run found: verdicts, one result a relation, and the whole report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from crosscheck.compare import Comparison
from crosscheck.errors import CrosscheckError

Verdict = Literal["pass", "fail", "blind", "inconclusive", "unsupported", "error"]
SCHEMA_VERSION = 1
# A name must score more. A replay that fits nowhere exactly scores half where it explains half of
# the error, and a sign that several faults share scores half. The lowest score of a right first
# name over the corpus of tests/faulty was 0.54.
NAMED = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """A fault that would explain a divergence, with how well, and why.

    Attributes:
        fault: Of the dictionary.
        score: From 0 to 1.
        evidence: A sentence.
        exact: In how many cases planting it gives the candidate's own wrong logits.
    """

    fault: str
    score: float
    evidence: str
    exact: int = 0

    @property
    def is_name(self) -> bool:
        """Whether it names the fault; else it is only the nearest that is known."""
        return self.exact > 0 or self.score > NAMED


@dataclass(frozen=True)
class Divergence:
    """Where a divergence begins.

    Attributes:
        relation: The relation that failed.
        row: Of the batch.
        position: In the text, 0-based.
        chunk: Which step of the left side fed it.
        layer: The first layer whose cache or output differs; None for the head or when unknown.
        point: `k`, `v`, `attn`, `resid`, `logits`, ...
        inherited: Whether it came in with that layer's inputs; None where it could not be told.
        origin: Where an inherited difference arises, by canonical name; None where unknown.
        isolated: How `inherited` was found out, or why not, in words.
    """

    relation: str
    row: int
    position: int
    chunk: int | None
    layer: int | None
    point: str
    inherited: bool | None
    origin: str | None = None
    isolated: str = ""


@dataclass(frozen=True)
class RelationResult:
    """One relation on one subject.

    Attributes:
        name: The relation.
        verdict: pass, fail, blind, inconclusive, unsupported or error.
        worst: The largest error, as the level measures it; None where nothing was compared.
        required_tolerance: What would have passed.
        cases: How many cases were run.
        reason: One sentence for every verdict but pass.
        comparison: The failing case's numbers (the first one found, then shrunk).
        case: The failing case as JSON data.
        divergence: Where it begins.
        diagnosis: Likely faults, best first.
        documented: What the package says about it.
        axis: "self" (one subject against itself) or "parity" (two subjects).
        dtype: In which it was judged.
        tolerance: The rule that judged, as printed.
        kills: Planted faults that it saw.
        near_ties: Greedy ids that differ where rounding explains it; None where not counted.
        curve: Of a failure as it was first found: errors along positions, the cache's edges and
            the margins (JSON data).
        late: Whether the budget ended before all of it was tried.
    """

    name: str
    verdict: Verdict
    worst: float | None = None
    required_tolerance: float | None = None
    cases: int = 0
    reason: str = ""
    comparison: Comparison | None = None
    case: Mapping[str, Any] | None = None
    divergence: Divergence | None = None
    diagnosis: tuple[Diagnosis, ...] = ()
    documented: tuple[str, str] | None = None
    axis: str = "self"
    dtype: str = "float64"
    tolerance: str = ""
    kills: tuple[str, ...] = ()
    near_ties: int | None = None
    curve: Mapping[str, Any] | None = None
    late: bool = False


class NotPassedError(AssertionError):
    """A report's verdict is not pass; the message says which relations, `report` holds all."""

    def __init__(self, message: str, report: "Report") -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True)
class Report:
    """All results of one run on one subject.

    Attributes:
        subject: Its name.
        against: The reference's name; None in metamorphic mode.
        rows: One result a relation, dtype and axis.
        oracle: What is known about the oracle: "checked", "unchecked", "capped at float32 by ...".
        notes: The subject's notes and the run's (budget spent, relations not reached).
        coverage: relation -> faults that it was shown to kill here.
        env: Versions, platform, threads.
        seconds: How long it took.
    """

    subject: str
    against: str | None
    rows: tuple[RelationResult, ...]
    oracle: str = "unchecked"
    notes: tuple[str, ...] = ()
    coverage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole: the gravest of the rows, and never a pass of nothing.

        fail, error, inconclusive, blind, pass in this order; unsupported where nothing was
        compared, but inconclusive where that was for want of time.
        """
        found = {row.verdict for row in self.rows}
        for verdict in _GRAVEST_FIRST[:2]:
            if verdict in found:
                return verdict
        if not any(row.cases for row in self.rows):
            late = any(row.late for row in self.rows)
            return "inconclusive" if late else "unsupported"
        return next(verdict for verdict in _GRAVEST_FIRST if verdict in found)

    def __bool__(self) -> NoReturn:
        raise TypeError("Report: use .verdict or raise_for_failure()")

    def raise_for_failure(self) -> None:
        """Raise unless the verdict is pass.

        Raises:
            NotPassedError: With a line for each row that is neither pass nor unsupported.
        """
        if self.verdict == "pass":
            return
        told = [
            f"  {row.verdict} {row.name} ({row.axis}, {row.dtype}): {row.reason}"
            for row in self.rows
            if row.verdict not in ("pass", "unsupported")
        ]
        against = f" against {self.against}" if self.against else ""
        head = f"raise_for_failure: {self.subject}{against}: verdict is {self.verdict}."
        raise NotPassedError("\n".join((head, *told)), self)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return the report as JSON data, and write it to a file where one is given.

        Raises:
            CrosscheckError: The file can't be written.
        """
        import json

        from crosscheck.results_json import to_json

        data = to_json(self)
        if path is not None:
            try:
                Path(path).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
            except OSError as error:
                raise CrosscheckError(f"to_json: path {str(path)!r}: {error.strerror}.") from None
        return data

    def to_html(self, path: str | Path) -> None:
        """Write the report as one self-contained page.

        Raises:
            CrosscheckError: The file can't be written, or matplotlib is not installed.
        """
        from crosscheck.page import write_html

        write_html(self.to_json(), path)


_GRAVEST_FIRST: tuple[Verdict, ...] = (
    "fail",
    "error",
    "inconclusive",
    "blind",
    "pass",
    "unsupported",
)
