"""What a run found: verdicts, one result a relation, and the whole report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from crosscheck.compare import Comparison

Verdict = Literal["pass", "fail", "blind", "inconclusive", "unsupported", "error"]
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Diagnosis:
    """A fault that would explain a divergence, with how well, and why."""

    fault: str
    score: float
    evidence: str


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
        inherited: Whether that layer's inputs already differed.
    """

    relation: str
    row: int
    position: int
    chunk: int | None
    layer: int | None
    point: str
    inherited: bool | None


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
