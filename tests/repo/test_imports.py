"""Imports run one way: each rule holds in the repository, and is broken once on purpose.

```
numpy  <-  jaxkv.spec  <-  jaxkv.*  (+ jax, flax)     never torch, torchkv, crosscheck
           jaxkv.spec  <-  torchkv.* (+ torch)        never jax, flax, nor jaxkv outside spec
numpy  <-  crosscheck                                 never jaxkv or torchkv; a framework only
                                                      inside its adapter, hypothesis in programs
bench, tests -> everything; nothing imports them
```
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

STANDARD = frozenset(sys.stdlib_module_names) | {"numpy"}
FRAMEWORKS = frozenset({"jax", "flax", "torch", "transformers"})


@dataclass(frozen=True)
class Zone:
    """Folders or files with one rule: what they import anywhere, and inside functions only."""

    start: str
    anywhere: frozenset[str]
    in_functions: frozenset[str] = frozenset()


def zone(start: str, *anywhere: str, in_functions: tuple[str, ...] = ()) -> Zone:
    return Zone(start, STANDARD | frozenset(anywhere), frozenset(in_functions))


# The first whose start fits a file holds for it. What is not listed is refused.
ZONES = (
    zone(
        "jaxkv/spec/",
        "jaxkv.spec",
        in_functions=("gguf", "huggingface_hub", "jinja2", "rich", "safetensors", "tokenizers"),
    ),
    zone("jaxkv/", "jaxkv", "jax", "flax", "jaxtyping", in_functions=("rich", "safetensors")),
    zone("torchkv/", "torchkv", "jaxkv.spec", "torch", "jaxtyping", in_functions=("safetensors",)),
    zone(
        "crosscheck/adapters/",
        "crosscheck",
        *FRAMEWORKS,
        in_functions=("keras", "mlx", "mlx_lm", "onnxruntime"),
    ),
    zone("crosscheck/programs/", "crosscheck", "hypothesis"),
    zone("crosscheck/page/", "crosscheck", in_functions=("jinja2", "matplotlib")),
    zone("crosscheck/pytest_plugin.py", "crosscheck", "pytest"),
    zone("crosscheck/", "crosscheck", in_functions=("hypothesis", "jinja2", "pytest", "rich")),
)


def violations(root: Path) -> list[str]:
    found: list[str] = []
    for file, tree in modules(root, "jaxkv", "torchkv", "crosscheck"):
        rule = next(each for each in ZONES if file.startswith(each.start))
        for line, name, nested in imports(tree, file):
            if covers(rule.anywhere, name) or (nested and covers(rule.in_functions, name)):
                continue
            why = "inside functions only" if covers(rule.in_functions, name) else "never"
            found.append(f"{file}:{line}: imports {name}, in {rule.start} {why}")
    return found


def covers(allowed: frozenset[str], name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


def imports(node: ast.AST, file: str, *, nested: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Yield line, absolute dotted name, and whether it is run by a function or by no one."""
    for child in ast.iter_child_nodes(node):
        for name in imported_names(child, file):
            yield getattr(child, "lineno", 0), name, nested
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        yield from imports(child, file, nested=nested or inner or typing_only)


def imported_names(node: ast.AST, file: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parts = file.split("/")[:-level] if level else []
            base = ".".join([*parts, *([module] if module else [])])
            return [f"{base}.{each.name}" for each in names]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            called = ast.unparse(function).split(".")[-1]
            return [name] if called in ("import_module", "__import__") else []
    return []


def test_imports_run_one_way():
    assert violations(ROOT) == []


PLANTED = [
    ("jaxkv/spec/a.py", "import jax", "imports jax, in jaxkv/spec/ never"),
    ("jaxkv/spec/a.py", "def f():\n    import torch", "imports torch, in jaxkv/spec/ never"),
    ("jaxkv/spec/a.py", "from jaxkv import ops", "imports jaxkv.ops, in jaxkv/spec/ never"),
    ("jaxkv/spec/a.py", "from .. import ops", "imports jaxkv.ops, in jaxkv/spec/ never"),
    ("jaxkv/spec/b/a.py", "from ...ops import f", "imports jaxkv.ops.f, in jaxkv/spec/ never"),
    ("jaxkv/spec/a.py", "import gguf", "imports gguf, in jaxkv/spec/ inside functions only"),
    ("jaxkv/spec/a.py", "import rich.table", "imports rich.table, in jaxkv/spec/ inside functions"),
    ("jaxkv/spec/a.py", "class A:\n    import tokenizers", "inside functions only"),
    ("jaxkv/spec/a.py", "import scipy", "imports scipy, in jaxkv/spec/ never"),
    ("jaxkv/a.py", "import torch.nn", "imports torch.nn, in jaxkv/ never"),
    ("jaxkv/a.py", "def f():\n    import torchkv", "imports torchkv, in jaxkv/ never"),
    ("jaxkv/a.py", "from crosscheck import compare", "imports crosscheck.compare, in jaxkv/ never"),
    ("jaxkv/a.py", "import transformers", "imports transformers, in jaxkv/ never"),
    ("jaxkv/caches/a.py", "importlib.import_module('torch')", "imports torch, in jaxkv/ never"),
    ("torchkv/a.py", "import jax", "imports jax, in torchkv/ never"),
    ("torchkv/a.py", "f = lambda: __import__('flax')", "imports flax, in torchkv/ never"),
    ("torchkv/a.py", "import jaxkv", "imports jaxkv, in torchkv/ never"),
    ("torchkv/a.py", "from jaxkv import ops, spec", "imports jaxkv.ops, in torchkv/ never"),
    ("torchkv/a.py", "import jaxkv.specials", "imports jaxkv.specials, in torchkv/ never"),
    ("crosscheck/a.py", "import jaxkv.spec", "imports jaxkv.spec, in crosscheck/ never"),
    ("crosscheck/a.py", "def f():\n    import torch", "imports torch, in crosscheck/ never"),
    (
        "crosscheck/adapters/a.py",
        "import torchkv",
        "imports torchkv, in crosscheck/adapters/",
    ),
    ("crosscheck/a.py", "import pytest", "imports pytest, in crosscheck/ inside functions only"),
    ("crosscheck/a.py", "import hypothesis", "in crosscheck/ inside functions only"),
    ("crosscheck/programs/a.py", "import torch", "in crosscheck/programs/ never"),
    ("crosscheck/cli.py", "import rich", "imports rich, in crosscheck/ inside functions only"),
    ("crosscheck/pytest_plugin.py", "import torch", "in crosscheck/pytest_plugin.py never"),
    ("jaxkv/a.py", "import bench", "imports bench, in jaxkv/ never"),
    ("torchkv/a.py", "from tests import tiny", "imports tests.tiny, in torchkv/ never"),
    ("crosscheck/a.py", "import tests.tiny", "imports tests.tiny, in crosscheck/ never"),
]


@pytest.mark.parametrize(("file", "source", "complaint"), PLANTED)
def test_planted_import_is_refused(tmp_path: Path, file: str, source: str, complaint: str):
    found = violations(plant(tmp_path, {file: source}))

    assert len(found) == 1
    assert found[0].startswith(f"{file}:")
    assert complaint in found[0]


ALLOWED = [
    ("jaxkv/spec/a.py", "import json, numpy as np\nfrom jaxkv.spec import errors"),
    ("jaxkv/spec/a.py", "def f():\n    import gguf"),
    ("jaxkv/spec/a.py", "if TYPE_CHECKING:\n    import gguf"),
    ("jaxkv/a.py", "import jax.numpy as jnp\nfrom flax import nnx\nfrom . import ops"),
    ("torchkv/a.py", "from torch import Tensor\nfrom jaxkv.spec.config import ModelConfig"),
    ("crosscheck/adapters/a.py", "import jax, torch"),
    ("crosscheck/pytest_plugin.py", "import pytest"),
    ("bench/a.py", "import jaxkv, torchkv, crosscheck, transformers"),
]


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_import_with_the_stream_is_accepted(tmp_path: Path, file: str, source: str):
    assert violations(plant(tmp_path, {file: source})) == []


def heavy_imports(program: str, heavy: frozenset[str]) -> str:
    """Return which of the heavy packages a program imports, seen in a child process."""
    report = f"\nimport sys\nprint(*sorted({set(heavy)!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout.strip()


LIGHT = [
    "jaxkv",
    "torchkv",
    "crosscheck",
    "crosscheck.cli, crosscheck.select, crosscheck.subjects, crosscheck.faults",
    "crosscheck.check, crosscheck.selftest, crosscheck.subjects.sources, crosscheck.adapters",
    "crosscheck.pytest_plugin",
]


@pytest.mark.parametrize("package", LIGHT)
def test_importing_a_package_imports_no_framework(package: str):
    assert heavy_imports(f"import {package}", FRAMEWORKS) == ""


def test_importing_spec_imports_no_reader_of_a_format():
    heavy = FRAMEWORKS | {"gguf", "jinja2", "rich", "safetensors", "tokenizers"}

    assert heavy_imports("import jaxkv.spec.source, jaxkv.spec.command", heavy) == ""


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        pytest.param("import jaxkv, torch", "torch", id="beside-it"),
        pytest.param("import jaxkv\njaxkv.generate", "flax jax", id="by-a-lazy-name"),
        pytest.param("import jaxkv.ops", "jax", id="by-a-module-inside"),
    ],
)
def test_a_framework_in_the_child_is_seen(program: str, seen: str):
    assert set(seen.split()) <= set(heavy_imports(program, FRAMEWORKS).split())
