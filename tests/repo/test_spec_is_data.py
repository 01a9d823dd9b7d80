"""`spec` shares data, never mathematics: what a twin could get wrong is written in each twin."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

# Reading and writing checkpoints and counting bytes is what these are for.
EXEMPT = {
    "jaxkv/spec/checkpoint.py",
    "jaxkv/spec/gguf_file.py",
    "jaxkv/spec/huggingface_save.py",
    "jaxkv/spec/memory.py",
    "jaxkv/spec/safetensors_files.py",
}
# file: finding -> reason.
EXCEPTIONS = {
    "jaxkv/spec/gguf_rope.py: log": "GGUF states a quotient of the number that a config states",
    "jaxkv/spec/random_weights.py: **": "spread of seeded noise, the same arrays for both twins",
}
_TRIGONOMETRIC = {"sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan2", "outer"}
_EXPONENTIAL = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logsumexp"}
_ROOTS = {"sqrt", "rsqrt", "isqrt", "cbrt", "hypot", "square", "pow", "power", "float_power"}
_PRODUCTS = {"matmul", "dot", "vdot", "vecdot", "inner", "tensordot", "einsum", "kron", "linalg"}
_TURNS = {"T", "mT", "transpose", "matrix_transpose", "swapaxes", "moveaxis", "rollaxis", "permute"}
_ACTIVATIONS = {"softmax", "log_softmax", "sigmoid", "expit", "erf", "gelu", "silu", "relu"}
_STATISTICS = {"mean", "var", "std", "norm", "cumsum", "triu", "tril"}
FORBIDDEN = {
    *_TRIGONOMETRIC,
    *_EXPONENTIAL,
    *_ROOTS,
    *_PRODUCTS,
    *_TURNS,
    *_ACTIVATIONS,
    *_STATISTICS,
}


def mathematics(root: Path) -> list[str]:
    return [
        f"{file}: {what}"
        for file, tree in modules(root, "jaxkv/spec")
        if file not in EXEMPT
        for what in formulas(tree)
    ]


def formulas(tree: ast.Module) -> Iterator[str]:
    """Yield each formula's function or operator; words in strings and keywords are data."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name in FORBIDDEN:
                # A field of a config is data too: `config.norm`, not `np.linalg.norm`.
                if not (name == "norm" and ast.unparse(node.value).endswith("config")):
                    yield name
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN:
                yield name
            case ast.ImportFrom(names=names):
                yield from (each.name for each in names if each.name in FORBIDDEN)
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                yield "@"
            case ast.BinOp(op=ast.Pow(), right=power) | ast.AugAssign(op=ast.Pow(), value=power):
                if not (isinstance(power, ast.Constant) and isinstance(power.value, int)):
                    yield "**"


def test_spec_holds_no_mathematics():
    found = mathematics(ROOT)

    assert [each for each in found if each not in EXCEPTIONS] == []
    assert [each for each in EXCEPTIONS if each not in found] == [], "stale exception"


PLANTED = [
    pytest.param("np.sin(x)", "sin", id="sin"),
    pytest.param("math.cos(x)", "cos", id="cos"),
    pytest.param("np.exp(x)", "exp", id="exp"),
    pytest.param("from math import exp as e", "exp", id="exp-imported"),
    pytest.param("f = np.log", "log", id="log-passed-on"),
    pytest.param("math.sqrt(x)", "sqrt", id="sqrt"),
    pytest.param("x ** -0.5", "**", id="root-as-power"),
    pytest.param("theta ** -fraction", "**", id="exponential-as-power"),
    pytest.param("x **= 0.5", "**", id="power-in-place"),
    pytest.param("np.matmul(x, w)", "matmul", id="matmul"),
    pytest.param("y = x @ w", "@", id="matmul-operator"),
    pytest.param("x @= w", "@", id="matmul-operator-in-place"),
    pytest.param("x.dot(w)", "dot", id="dot"),
    pytest.param("np.einsum('ij,jk', x, w)", "einsum", id="einsum"),
    pytest.param("np.tensordot(x, w)", "tensordot", id="tensordot"),
    pytest.param("np.outer(position, frequency)", "outer", id="outer"),
    pytest.param("np.transpose(w)", "transpose", id="transpose"),
    pytest.param("w.transpose(1, 0)", "transpose", id="transpose-method"),
    pytest.param("w.T", "T", id="transpose-attribute"),
    pytest.param("w.mT", "mT", id="transpose-of-matrices"),
    pytest.param("w.swapaxes(0, 1)", "swapaxes", id="swapaxes"),
    pytest.param("np.moveaxis(w, 0, 1)", "moveaxis", id="moveaxis"),
    pytest.param("np.tanh(x)", "tanh", id="tanh"),
    pytest.param("def f(x):\n    return softmax(x)", "softmax", id="softmax"),
    pytest.param("special.erf(x)", "erf", id="erf"),
    pytest.param("x.mean(-1)", "mean", id="mean"),
    pytest.param("np.tril(x)", "tril", id="causal-triangle"),
]


@pytest.mark.parametrize(("source", "what"), PLANTED)
def test_planted_formula_is_seen(tmp_path: Path, source: str, what: str):
    root = plant(tmp_path, {"jaxkv/spec/families/planted.py": source})

    assert mathematics(root) == [f"jaxkv/spec/families/planted.py: {what}"]


@pytest.mark.parametrize("source", ["kind = 'tanh'", "f(exp=1)", "2 ** 10", "config.norm", "a * b"])
def test_data_is_not_taken_for_a_formula(tmp_path: Path, source: str):
    assert mathematics(plant(tmp_path, {"jaxkv/spec/planted.py": source})) == []


def test_reading_checkpoints_may_compute(tmp_path: Path):
    assert mathematics(plant(tmp_path, {"jaxkv/spec/gguf_file.py": "x.T @ np.exp(y)"})) == []
