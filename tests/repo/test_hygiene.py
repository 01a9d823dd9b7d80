"""What a reader trusts without looking: short files, no private paths, no pickle, sorted names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

FOLDERS = ("jaxkv", "torchkv", "crosscheck", "bench", "tests")
TEXTS = (*FOLDERS, "docs", ".ci")
SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".json", ".cfg", ".yml", ".yaml", ".csv", ".sh"}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# Folders of people and machines, not of a system (`/usr/bin/env`), nor parts of an address.
PRIVATE = re.compile(
    r"(?<![\w.:/~{}<>-])/(?:home|root|Users|work|opt|mnt|tmp|var|srv|scratch|workspace)/\w"
)


def long_files(root: Path) -> list[str]:
    found = long_text(root / "README.md", 149, root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found += long_text(path, 400, root)
    return found


def long_text(path: Path, most: int, root: Path) -> list[str]:
    lines = len(path.read_text("utf-8").splitlines()) if path.is_file() else 0
    too_long = lines > most
    return [f"{path.relative_to(root)}: {lines} lines, at most {most}"] if too_long else []


def private_paths(root: Path) -> list[str]:
    inside = [path for folder in TEXTS for path in sorted((root / folder).rglob("*"))]
    # In a second working tree of the repository `.git` is a file that names the first one.
    top = [path for path in sorted(root.glob("*")) if path.name != ".git"]
    return [
        f"{path.relative_to(root)}:{i}: {line.strip()}"
        for path in [*top, *inside]
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts
        for i, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    ]


def pickles(root: Path) -> list[str]:
    return [
        f"{file}: {what}"
        for file, tree in modules(root, *FOLDERS)
        for node in ast.walk(tree)
        for what in unpickling(node)
    ]


def unpickling(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names if each.name.split(".")[0] in PICKLES)
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLES:
            yield module
        case ast.keyword(arg="allow_pickle", value=value):
            if not (isinstance(value, ast.Constant) and value.value is False):
                yield "allow_pickle"
        case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as name):
            yield f"torch.{name}"


def unsorted_names(root: Path) -> list[str]:
    found: list[str] = []
    for file, tree in modules(root, *FOLDERS):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.Call(func=function)):
                    found += [] if ast.unparse(function) == "sorted" else [file]
                case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                    names = ast.literal_eval(value)
                    found += [] if list(names) == sorted(set(names), key=rank) else [file]
    return found


def rank(name: str) -> tuple[bool, bool, str]:
    """Sort as ruff does: CONSTANTS, Classes, functions."""
    return not name.isupper(), not name[0].isupper(), name


def test_files_are_short():
    assert long_files(ROOT) == []


def test_no_path_of_a_machine_is_written_down():
    assert private_paths(ROOT) == []


def test_nothing_is_pickled():
    assert pickles(ROOT) == []


def test_public_names_are_sorted():
    assert unsorted_names(ROOT) == []


@pytest.mark.parametrize(
    ("file", "lines", "found"),
    [
        ("jaxkv/a/b.py", 400, []),
        ("jaxkv/a/b.py", 401, ["jaxkv/a/b.py: 401 lines, at most 400"]),
        ("tests/a.py", 401, ["tests/a.py: 401 lines, at most 400"]),
        ("README.md", 149, []),
        ("README.md", 150, ["README.md: 150 lines, at most 149"]),
    ],
)
def test_planted_long_file_is_seen(tmp_path: Path, file: str, lines: int, found: list[str]):
    assert long_files(plant(tmp_path, {file: "\n" * lines})) == found


@pytest.mark.parametrize("file", ["README.md", "Makefile", ".ci/run", "docs/a.md", "bench/a.py"])
@pytest.mark.parametrize("folder", ["home", "root", "Users", "work", "tmp"])
def test_planted_private_path_is_seen(tmp_path: Path, file: str, folder: str):
    line = f"see /{folder}/me, or elsewhere"

    assert private_paths(plant(tmp_path, {file: line})) == [f"{file}:1: {line}"]


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("#!/usr/bin/env bash", ""),
        ("https://a.org/{}/b", "home"),
        ("tests/{}/a", "tmp"),
        ("tokens/s", ""),
        ("~/{}/a", "work"),
    ],
)
def test_other_path_is_left_alone(tmp_path: Path, line: str, folder: str):
    line = line.format(folder)

    assert private_paths(plant(tmp_path, {"docs/a.md": line})) == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import pickle", "pickle"),
        ("def f():\n    from dill.source import a", "dill.source"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("torch.save(cache, path)", "torch.save"),
        ("torch.load(path)", "torch.load"),
    ],
)
def test_planted_pickle_is_seen(tmp_path: Path, source: str, what: str):
    assert pickles(plant(tmp_path, {"torchkv/a.py": source})) == [f"torchkv/a.py: {what}"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("__all__ = ['a', 'b']", []),
        ("__all__ = ['LAYOUTS', 'Cache', 'begin']", []),
        ("__all__ = sorted(names)", []),
        ("__all__ = ['b', 'a']", ["jaxkv/a.py"]),
        ("__all__ = ['a', 'a']", ["jaxkv/a.py"]),
        ("__all__ = list(names)", ["jaxkv/a.py"]),
    ],
)
def test_planted_unsorted_names_are_seen(tmp_path: Path, source: str, found: list[str]):
    assert unsorted_names(plant(tmp_path, {"jaxkv/a.py": source})) == found
