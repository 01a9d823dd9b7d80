"""docs/claims.md: every row resolves, to a test, an error, a page or a type that exists."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

SECTIONS = (
    "The reference decoder",
    "Why a cache is right",
    "What is saved and what is not",
    "When no cache",
    "Fingerprints of failure",
    "Memory",
    "Caches that change the numbers or the information",
    "What crosscheck says",
    "What is shared",
    "Generation",
)
MOST = 3
ROW = re.compile(r"^\| (?P<id>[^|]+) \| (?P<claim>[^|]+) \| (?P<shown>[^|]+) \|$")
REFERENCE = re.compile(
    r"^`(?P<test>tests/[\w/]+\.py::test_\w+)`$"
    r"|^by construction `(?P<type>[\w/]+\.py::\w+)`$"
    r"|^`(?P<page>docs/[\w-]+\.md#[\w-]+)`$"
    r"|^`(?P<error>[A-Z]\w+: [^`]+)`$"
)


@dataclass(frozen=True)
class Row:
    id: str
    section: str
    shown: tuple[str, ...]


def rows(root: Path) -> list[Row]:
    found, section = [], ""
    for line in (root / "docs/claims.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif (match := ROW.match(line)) and match["id"] not in ("id", "---"):
            found.append(Row(match["id"], section, tuple(match["shown"].split("; "))))
        elif line.startswith("|") and not re.match(r"^\|( id |---\|)", line):
            found.append(Row(f"unreadable: {line}", section, ()))
    return found


def faults(root: Path) -> list[str]:
    """Return what is wrong with the claims of a tree."""
    all_rows = rows(root)
    found = [f"{section}: no claim" for section in SECTIONS if not _has_rows(all_rows, section)]
    found += [f"{row.id}: not C-SECTION-NN" for row in all_rows if not _is_id(row.id)]
    ids = Counter(row.id for row in all_rows)
    found += [f"{name}: given {count} times" for name, count in ids.items() if count > 1]
    found += [
        f"{row.id}: {what}"
        for row in all_rows
        for shown in row.shown
        if (what := unresolved(root, shown))
    ]
    uses = Counter(test for row in all_rows for test in {*row.shown} if "::test_" in test)
    return found + [
        f"{test} stands for {count} claims, at most {MOST}"
        for test, count in uses.items()
        if count > MOST
    ]


def unresolved(root: Path, shown: str) -> str | None:
    """Return what one reference lacks, None if it is there."""
    match = REFERENCE.match(shown)
    if match is None:
        return f"no reference: {shown}"
    if match["page"]:
        file, anchor = match["page"].split("#")
        return None if anchor in anchors(root / file) else f"no such heading: {shown}"
    if match["error"]:
        kind, fragment = match["error"].split(": ", 1)
        return None if any(fragment in text for text in raised(root, kind)) else f"no {shown}"
    file, name = (match["test"] or match["type"]).split("::")
    return None if name in defined(root / file) else f"no such name: {shown}"


def anchors(page: Path) -> set[str]:
    if not page.is_file():
        return set()
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def unknown_tests(root: Path, page: str) -> list[str]:
    """Return the tests that a page names and no file has."""
    known = {name for file in (root / "tests").rglob("test_*.py") for name in defined(file)}
    return [
        name
        for name in re.findall(r"`(test_\w+)`", (root / page).read_text("utf-8"))
        if name not in known
    ]


@cache
def defined(file: Path) -> set[str]:
    """Return the functions and classes of a file's top level."""
    if not file.is_file():
        return set()
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {
        node.name for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, kinds)
    }


@cache
def raised(root: Path, kind: str) -> list[str]:
    """Return the messages of the errors of a class, {} for what is filled in.

    A config raises its one class through helpers.
    """
    helpers = {"require"} if kind == "ConfigError" else set()
    return [
        message(argument)
        for _, tree in modules(root, "jaxkv", "torchkv", "crosscheck")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {kind, *helpers}
        for argument in node.args
    ]


def message(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(message(part) for part in parts)
        case _:
            return "{}"


def _has_rows(all_rows: list[Row], section: str) -> bool:
    return any(row.section == section for row in all_rows)


def _is_id(name: str) -> bool:
    return re.fullmatch(r"C-[A-Z]+-\d\d", name) is not None


def test_every_claim_is_shown_where_it_says():
    assert faults(ROOT) == []


def test_claims_are_read():
    """A table that nobody parses has no fault."""
    assert len(rows(ROOT)) >= 60
    assert {row.section for row in rows(ROOT)} == {*SECTIONS}


def test_the_page_names_tests_that_exist(tmp_path: Path):
    page, text = "docs/what-a-cache-is.md", "see `test_it` and `test_no`"
    planted = plant(tmp_path, {page: text, "tests/a/test_a.py": "def test_it():\n    pass\n"})

    assert "`test_" in (ROOT / page).read_text("utf-8")
    assert unknown_tests(ROOT, page) == []
    assert unknown_tests(planted, page) == ["test_no"]


GOOD = {
    "docs/claims.md": "".join(
        f"## {section}\n| id | claim | shown by |\n|---|---|---|\n"
        f"| C-A-0{i} | It holds. | `tests/a.py::test_it` |\n"
        for i, section in enumerate(SECTIONS[:3])
    )
    + f"## {SECTIONS[3]}\n| C-B-01 | It holds. | `docs/a.md#it-is-so`; `ShapeError: has 3` |\n"
    + f"## {SECTIONS[4]}\n| C-B-02 | It holds. | by construction `jaxkv/a.py::A` |\n"
    + f"## {SECTIONS[5]}\n| C-C-01 | It holds. | by construction `jaxkv/a.py::A` |\n"
    + "".join(
        f"## {section}\n| C-C-0{i} | It holds. | by construction `jaxkv/a.py::A` |\n"
        for i, section in enumerate(SECTIONS[6:], 2)
    ),
    "docs/a.md": "# A page\n\n## It is so\n",
    "tests/a.py": "def test_it():\n    pass\n",
    "jaxkv/a.py": "class A:\n    pass\n\nraise ShapeError(f'it {x} ' f'has 3')\n",
}
GOOD_CLAIM = "It holds."


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (GOOD_CLAIM, GOOD_CLAIM, []),
        ("C-A-01", "C-A-00", ["C-A-00: given 2 times"]),
        ("C-A-01", "A-01", ["A-01: not C-SECTION-NN"]),
        (
            "| C-A-01 | It holds. | `tests/a.py::test_it` |",
            "",
            [f"{SECTIONS[1]}: no claim"],
        ),
        ("a.md#it-is-so", "a.md#it", ["C-B-01: no such heading: `docs/a.md#it`"]),
        ("a.md#it-is-so", "b.md#it", ["C-B-01: no such heading: `docs/b.md#it`"]),
        ("ShapeError: has 3", "ShapeError: has 4", ["C-B-01: no `ShapeError: has 4`"]),
        ("ShapeError: has 3", "RollError: has 3", ["C-B-01: no `RollError: has 3`"]),
        (
            "jaxkv/a.py::A",
            "jaxkv/a.py::B",
            ["C-B-02: no such name: by construction `jaxkv/a.py::B`"],
        ),
        ("by construction `jaxkv/a.py::A`", "surely", ["C-B-02: no reference: surely"]),
        (
            "by construction `jaxkv/a.py::A`",
            "`tests/a.py::test_no`",
            ["C-B-02: no such name: `tests/a.py::test_no`"],
        ),
        (
            "by construction `jaxkv/a.py::A`",
            "`tests/a.py::test_it`; `tests/a.py::test_it`",
            ["`tests/a.py::test_it` stands for 4 claims, at most 3"],
        ),
        ("| C-B-02 | It holds. |", "| C-B-02 |", None),
    ],
    ids=str,
)
def test_planted_row_is_seen(tmp_path: Path, old: str, new: str, found: list[str] | None):
    claims = GOOD["docs/claims.md"]
    assert old in claims
    planted = plant(tmp_path, GOOD | {"docs/claims.md": claims.replace(old, new, 1)})

    seen = faults(planted)

    assert seen == found if found is not None else any("unreadable" in fault for fault in seen)
