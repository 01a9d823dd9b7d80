"""What `localize` and `diagnose` share: run the relations, take the first that fails."""

import argparse
from dataclasses import dataclass
from typing import Any

from crosscheck.commands.opening import open_subject, seconds_left
from crosscheck.programs.case import Case
from crosscheck.programs.case_json import case_from_json
from crosscheck.results import Diagnosis, Divergence, RelationResult, Report
from crosscheck.screen import progress


@dataclass(frozen=True)
class Found:
    """A failing row, with the subjects to ask again."""

    row: RelationResult
    candidate: Any
    reference: Any

    @property
    def case(self) -> Case:
        """The failing case."""
        return case_from_json(self.row.case or {})

    def localize(self) -> Divergence:
        """Return where the divergence begins."""
        from crosscheck.diagnosis.localize import localize

        return localize(*self._sides(), self.row.name, self.case)

    def diagnose(self) -> tuple[Diagnosis, ...]:
        """Return the likely faults."""
        from crosscheck.diagnosis.diagnose import diagnose

        return diagnose(*self._sides(), self.row.name, self.case)

    def _sides(self) -> tuple[Any, Any]:
        """Return candidate and reference in the row's dtype; no reference on the self axis."""
        candidate = _cast(self.candidate, self.row.dtype)
        if self.row.axis == "self" or self.reference is None:
            return candidate, None
        return candidate, _cast(self.reference, self.row.dtype)


def _cast(subject: Any, dtype: str) -> Any:
    return subject if subject.info.dtype == dtype else subject.cast(dtype)


def failing_row(options: argparse.Namespace) -> tuple[Report, Found | None]:
    """Return the report in float64, and the first failing row.

    Raises:
        CrosscheckError: An option or a spec names nothing.
        SubjectRaised: A model cannot be made.
    """
    from crosscheck.check import check
    from crosscheck.select import select

    select(options.relations)
    candidate = open_subject(options.subject)
    reference = open_subject(options.against) if options.against else None
    with progress(options.command, seconds=options.budget) as advance:
        report = check(
            candidate,
            reference,
            relations=options.relations,
            budget_seconds=seconds_left(options.budget, began=options.began),
            dtypes=("float64",),
            seed=options.seed,
            progress=advance,
        )
    failing = [row for row in report.rows if row.verdict == "fail" and row.case is not None]
    # A row with a diagnosis says more than one whose time had run out.
    failing.sort(key=lambda row: not row.diagnosis)
    return report, Found(failing[0], candidate, reference) if failing else None
