"""docs/bug-reports.md: every report has a kind, and every kind relations that can catch it."""

import re
from pathlib import Path

import pytest

from crosscheck.faults import FAULTS
from crosscheck.select import select
from tests.repo.tree import ROOT, plant

TABLE = "docs/bug-reports.md"
ROW = re.compile(r"^\| ([A-Z]) \| KV-(\d\d) to KV-(\d\d) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
REPORTS = 81
# A fault of the tools themselves is no fault of a model.
WITHOUT = "Q"


def kinds(root: Path) -> dict[str, tuple[range, list[str]]]:
    """Return each kind of the table: its numbers, its relations."""
    text = (root / TABLE).read_text("utf-8")
    return {
        kind: (range(int(first), int(last) + 1), re.findall(r"`([\w.]+\.[\w]+)`", names))
        for kind, first, last, names in ROW.findall(text)
    }


def faults_of_the_table(root: Path) -> list[str]:
    """Return what is wrong with the table of kinds."""
    table = kinds(root)
    numbers = [number for span, _ in table.values() for number in span]
    found = [
        f"KV-{i:02}: in {numbers.count(i)} kinds"
        for i in range(1, REPORTS + 1)
        if numbers.count(i) != 1
    ]
    relations = {each.name: each for each in select("all")}
    for kind, (_, names) in table.items():
        if kind == WITHOUT:
            continue
        for name in names:
            if name not in relations:
                found.append(f"{kind}: no relation {name}")
            elif not any(kind in FAULTS[fault].kinds for fault in relations[name].catches):
                found.append(f"{kind}: {name} catches no fault of that kind")
        if not names:
            found.append(f"{kind}: no relation")
    return found


def test_every_report_has_a_kind_and_every_kind_a_relation_that_catches_it():
    assert faults_of_the_table(ROOT) == []


def test_every_fault_is_of_kinds_that_the_table_has():
    unknown = {name for name, fault in FAULTS.items() if not fault.kinds <= kinds(ROOT).keys()}

    assert FAULTS
    assert unknown == set()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("KV-05 to KV-08", "KV-06 to KV-08", "KV-05: in 0 kinds"),
        ("KV-05 to KV-08", "KV-04 to KV-08", "KV-04: in 2 kinds"),
        ("`cache.causal`", "`cache.casual`", "B: no relation cache.casual"),
        ("`mla.absorbed`", "`cache.causal`", "L: cache.causal catches no fault of that kind"),
    ],
)
def test_a_planted_slip_is_seen(tmp_path: Path, old: str, new: str, complaint: str):
    text = (ROOT / TABLE).read_text("utf-8")
    assert old in text

    planted = plant(tmp_path, {TABLE: text.replace(old, new)})

    assert complaint in faults_of_the_table(planted)
