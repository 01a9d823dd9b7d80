"""Generated programs on right models: whatever is done to the cache, no alarm.

10,000 programs on the twins and 2,000 on ten families of transformers when deep, a twentieth
otherwise.
"""

import pytest

from crosscheck.judging import run_case
from crosscheck.oracle import examine
from crosscheck.programs.engine import search
from crosscheck.select import select
from crosscheck.subjects.protocol import describe
from crosscheck.subjects.sources import load_subject
from tests.tiny import CELLS, DEEP, make_subject

FAMILIES = (
    "gpt2",
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_neox",
    "opt",
)
ON_TWINS, ON_FAMILIES = (10_000, 2_000) if DEEP else (500, 100)
(PROGRAM,) = select("cache.program")


def alarms(subject, programs, seed):
    """Return the first program that is not right, and how many were compared."""
    oracle, told = examine(subject), []

    def wrong(case):
        found = run_case(PROGRAM, subject, subject, case, rtol=oracle.rtol)
        told.append(found)
        return found.verdict not in ("pass", "refused")

    found = search(subject, describe(subject), wrong, programs=programs, seed=seed)
    compared = sum(each.verdict == "pass" for each in told)
    return (found.failing, told[-1].reason) if found.failing else None, compared


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_programs_on_a_right_twin_raise_no_alarm(cell):
    # A compiled twin pays for each shape; the other takes more of the programs.
    share = 0.6 if cell.twin == "jaxkv" else 1.4
    programs = round(share * ON_TWINS / len(CELLS))

    alarm, compared = alarms(make_subject(cell), programs, seed=11)

    assert alarm is None
    assert compared >= programs


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_on_a_right_family_raise_no_alarm(family):
    programs = ON_FAMILIES // len(FAMILIES)

    alarm, compared = alarms(load_subject(f"hf-tiny:{family}"), programs, seed=12)

    assert alarm is None
    assert compared >= 0.9 * programs
