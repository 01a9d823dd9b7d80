"""Diagnose the cases of the corpus and print the rates: of all, and of the third held back.

python -m tests.faulty.rates [PATTERN ...] [--out FILE]
"""

import argparse
import json
import logging
import os
import time
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.faulty.corpus import CASES, FaultyCase, subject_of

RTOL = 1e-6


@dataclass(frozen=True)
class Outcome:
    """One case: which faults were named, best first; () where its relation saw nothing."""

    case: FaultyCase
    shown: bool
    named: tuple[tuple[str, float, str], ...]
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the fault, or a variant of it, is named first."""
        return bool(self.named) and is_named(self.case.copy.fault, self.named[0][0])


def is_named(fault: str, found: str) -> bool:
    """Return whether a name is the fault's, or that of a variant of it (`mask.none.later`)."""
    return f"{found}.".startswith(f"{fault}.")


def failing(case: FaultyCase):
    """Return the candidate, the reference or None, and the relation's first case that fails."""
    from crosscheck.judging import run_case
    from crosscheck.select import select
    from crosscheck.subjects.protocol import describe

    candidate = subject_of(case.copy.base, case.copy.fault)
    reference = subject_of(case.copy.base) if case.against else None
    (relation,) = select([case.relation])
    info = describe(candidate)
    if relation.needs <= info.capabilities:
        for tried in relation.cases(info, case.seed):
            other = candidate if reference is None else reference
            if run_case(relation, candidate, other, tried, rtol=RTOL).verdict == "fail":
                return candidate, reference, tried
    return candidate, reference, None


def diagnosed(case: FaultyCase) -> Outcome:
    """Return what the diagnosis names on the first case that its relation fails."""
    from crosscheck.diagnosis.diagnose import diagnose

    began = time.monotonic()
    candidate, reference, tried = failing(case)
    if tried is None:
        return Outcome(case, False, (), time.monotonic() - began)
    found = diagnose(candidate, reference, case.relation, tried)
    named = tuple((d.fault, d.score, d.evidence) for d in found)
    return Outcome(case, True, named, time.monotonic() - began)


def rate(outcomes) -> tuple[int, int]:
    """Return how many of the shown cases are named rightly, and how many there are."""
    shown = [each for each in outcomes if each.shown]
    return sum(each.right for each in shown), len(shown)


def summary(outcomes) -> str:
    """Return the two rates in words."""
    lines = []
    for words, part in (
        ("all cases", outcomes),
        ("held back", [each for each in outcomes if each.case.copy.held]),
    ):
        right, shown = rate(part)
        lines.append(f"{words}: {right} of {shown} named first ({right / max(shown, 1):.1%})")
    copies = {each.case.copy.name for each in outcomes if each.shown}
    return "\n".join([*lines, f"over {len(copies)} source-edited copies"])


def main() -> None:
    """Print one line a case, then the rates."""
    # As under pytest: without it flax would compute in float32 what is judged as float64.
    os.environ["JAX_ENABLE_X64"] = "1"
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--tuning", action="store_true", help="leave out what is held back")
    parser.add_argument("--held", action="store_true", help="only what is held back")
    parser.add_argument("--out")
    given = parser.parse_args()
    outcomes = []
    for case in CASES:
        if not any(fnmatch(str(case), pattern) for pattern in given.patterns):
            continue
        if (given.tuning and case.copy.held) or (given.held and not case.copy.held):
            continue
        outcomes.append(diagnosed(case))
        last = outcomes[-1]
        word = "--" if not last.shown else "ok" if last.right else "XX"
        named = ", ".join(f"{fault} {score:.2f}" for fault, score, _ in last.named[:3])
        print(f"{word} {case}: {named} ({last.seconds:.1f} s)", flush=True)
        if given.out:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps([str(case), word, last.named]) + "\n")
    print(summary(outcomes))


if __name__ == "__main__":
    main()
