"""docs/bug-reports.md and the tests say the same about public bug reports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

NUMBER = re.compile(r"KV-\d\d")
ROW = re.compile(r"^\| (KV-\d\d) \| (.*?) \| (.+?) \| `([^`]+)::([^`]+)` \|$")
LINK = re.compile(r"\[[^]]+\]\(https://github\.com/[\w./-]+/(?:issues|pull)/\d+\)")
OWED = tuple(f"KV-{number:02}" for number in range(1, 82))
TABLE = "docs/bug-reports.md"
TEST_A = 'def test_a():\n    """KV-01: short."""\n'
ROW_A = "| KV-01 | [a#1](https://github.com/o/a/issues/1) | a | `tests/test_a.py::test_a` |"


def disagreements(root: Path, owed: tuple[str, ...] = ()) -> list[str]:
    """Return each way in which the table and the tests under `root` disagree."""
    covered = set(mentions(root))
    found, listed = [], []
    for line in (root / TABLE).read_text("utf-8").splitlines():
        if not line.startswith("| KV-"):
            continue
        row = ROW.match(line)
        if row is None or not LINK.search(row[2]):
            found.append(f"no number, link, words and test: {line[:40]}")
            continue
        number, test = row[1], f"{row[4]}::{row[5]}"
        listed.append(number)
        if (number, test) not in covered:
            found.append(f"{number}: {test} does not exist or does not mention it")
    numbers = {number for number, _ in covered}
    found += [
        f"{number}: listed twice" for number in sorted(set(listed)) if listed.count(number) > 1
    ]
    found += [f"{number}: in a test, not in the table" for number in sorted(numbers - {*listed})]
    return found + [f"{number}: not in the table" for number in owed if number not in listed]


def mentions(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each number in a test's docstring, and the test."""
    for file, tree in modules(root, "tests"):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in NUMBER.findall(ast.get_docstring(node) or ""):
                    yield number, f"{file}::{node.name}"


def test_the_table_and_the_tests_agree():
    assert disagreements(ROOT, OWED) == []


@pytest.mark.parametrize(
    ("test", "row", "found"),
    [
        (TEST_A, ROW_A, []),
        (
            TEST_A.replace("KV-01", "no number"),
            ROW_A,
            ["KV-01: tests/test_a.py::test_a does not exist or does not mention it"],
        ),
        (
            TEST_A.replace("test_a", "test_b"),
            ROW_A,
            ["KV-01: tests/test_a.py::test_a does not exist or does not mention it"],
        ),
        (
            TEST_A.replace("KV-01", "KV-01, KV-02"),
            ROW_A,
            ["KV-02: in a test, not in the table"],
        ),
        (TEST_A, f"{ROW_A}\n{ROW_A}", ["KV-01: listed twice"]),
        (
            TEST_A,
            f"{ROW_A}\n{ROW_A.replace('github.com', 'example.org')}",
            ["no number, link, words and test: | KV-01 | [a#1](https://example.org/o/a/"],
        ),
        (TEST_A, f"# Nothing\n{ROW_A.replace('KV-01', 'KV-03')}", None),
    ],
)
def test_a_planted_disagreement_is_seen(tmp_path: Path, test: str, row: str, found: list | None):
    root = plant(tmp_path, {"tests/test_a.py": test, TABLE: f"{row}\n"})

    assert disagreements(root) == (
        found
        if found is not None
        else [
            "KV-03: tests/test_a.py::test_a does not exist or does not mention it",
            "KV-01: in a test, not in the table",
        ]
    )


def test_an_owed_number_without_a_row_is_seen(tmp_path: Path):
    root = plant(tmp_path, {"tests/test_a.py": TEST_A, TABLE: f"{ROW_A}\n"})

    assert disagreements(root, ("KV-01", "KV-08")) == ["KV-08: not in the table"]
