"""Python files of this repository, or of a planted tree, as syntax trees."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules(root: Path, *folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each Python file under the folders of `root`: its relative path and its tree."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"))


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write files, by relative path, under `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root
