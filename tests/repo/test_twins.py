"""The twins mirror each other: files, public functions, classes, methods, fields, parameters."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, plant

# reason -> findings, word by word. One that is no longer found is a failure too.
EXCEPTIONS: dict[str, list[str]] = {
    "JAX has to be told how to take a state apart; PyTorch keeps objects as they are": [
        "pytree.py: jaxkv has it, torchkv not",
    ],
    "every size is another program for XLA; PyTorch compiles nothing here": [
        "testing/compiling.py: jaxkv has it, torchkv not",
    ],
    (
        "jaxkv's buffers have rank 3, rows and heads in one axis X, which XLA writes in place; "
        "torchkv's have rank 4"
    ): [
        (
            "caches/contiguous.py: ContiguousSite is class(k_XHS, v_XSH, rank) in jaxkv, "
            "class(k_BKSH, v_BKSH, rank) in torchkv"
        ),
        (
            "caches/cross.py: CrossSite is class(k_XHS, v_XSH, source_length_U) in jaxkv, "
            "class(k_UKSH, v_UKSH, source_length_U) in torchkv"
        ),
        (
            "caches/paged.py: PagedSite is class(k_YHP, v_YPH, num_kv_heads, rank) in jaxkv, "
            "class(k_AKPH, v_AKPH, rank) in torchkv"
        ),
        (
            "caches/page_reads.py: Carried is class(out_XMH, peak_XM, total_XM) in jaxkv, "
            "class(out_BKMH, peak_BKM1, total_BKM1) in torchkv"
        ),
        (
            "caches/slots.py: attend_slots is (q_BTNH, k_XHS, v_XSH, *, query_BT, key_BS, "
            "valid_BS, rule, clean, bias=) in jaxkv, (q_BTNH, k_BKSH, v_BKSH, *, query_BT, "
            "key_BS, valid_BS, rule, clean, bias=) in torchkv"
        ),
        (
            "caches/slots.py: by_row is (k_XHS, v_XSH, *, rows) in jaxkv, (k_BKSH, v_BKSH) in "
            "torchkv"
        ),
        (
            "caches/slots.py: expanded is (k_XHS, expand, *, rows) in jaxkv, (k_BKSH, expand) "
            "in torchkv"
        ),
        (
            "caches/slots.py: values_of is (k_XHS, v_XSH, *, rank) in jaxkv, (k_BKSH, v_BKSH, *, "
            "rank) in torchkv"
        ),
        (
            "caches/slots.py: gather_rows is (x_X, rows_B, *, batch) in jaxkv, (x_B, rows_B) "
            "in torchkv"
        ),
        (
            "caches/slots.py: poison is (k_XHS, v_XSH, valid_BS) in jaxkv, (k_BKSH, v_BKSH, "
            "valid_BS) in torchkv"
        ),
        (
            "caches/slots.py: scrub_values is (v_XSH, valid_BS) in jaxkv, (v_BKSH, valid_BS) "
            "in torchkv"
        ),
        (
            "caches/window.py: WindowSite is class(k_XHC, v_XCH, window, slack) in jaxkv, "
            "class(k_BKCH, v_BKCH, window, slack) in torchkv"
        ),
        ("ops.py: score is (q_XMH, k_XHS, *, rule) in jaxkv, (q_BKMH, k_BKSH, *, rule) in torchkv"),
        (
            "ops.py: softmax is (score_XMS, visible_XMS) in jaxkv, (score_BKMS, visible_B1MS) "
            "in torchkv"
        ),
        (
            "ops.py: spread is (visible_BTS, *, num_kv_heads, groups) in jaxkv, (visible_BTS, "
            "*, groups) in torchkv"
        ),
        "ops.py: ungroup is (o_XMH, *, rows, tokens) in jaxkv, (o_BKMH, *, tokens) in torchkv",
    ],
    "writing in place needs the real tokens by index, writing by value drops the others": [
        (
            "caches/slots.py: write_slice is (k_XHS, v_XSH, new_k_XTH, new_v_XTH, *, start, "
            "keep_X) in jaxkv, (k_BKSH, v_BKSH, new_k_BTKH, new_v_BTKH, *, start) in torchkv"
        ),
        (
            "caches/slots.py: write_slots is (k_XHS, v_XSH, new_k_XTH, new_v_XTH, *, slot_BT) "
            "in jaxkv, (k_BKSH, v_BKSH, new_k_BTKH, new_v_BTKH, *, row_P, token_P, slot_P) in "
            "torchkv"
        ),
    ],
    (
        "torchkv writes in place: an epoch tells which of the caches that share buffers still "
        "stands"
    ): [
        (
            "caches/state.py: Cache is class(length_B, peak_B, overflow_B, shared, sites, "
            "capacity) in jaxkv, class(length_B, peak_B, overflow_B, shared, sites, capacity, "
            "epoch=) in torchkv"
        ),
        "caches/state.py: Epoch: torchkv has it, jaxkv not",
        "caches/state.py: Ledger: torchkv has it, jaxkv not",
        (
            "caches/state.py: Step is class(length_B, count_B, excess_B, position_BT, "
            "valid_BT, shared, fresh, rectangular, clean) in jaxkv, class(length_B, count_B, "
            "excess_B, position_BT, valid_BT, shared, fresh, rectangular, clean, epoch=) in "
            "torchkv"
        ),
    ],
    "torchkv reads a step's lengths on the host once; under jit they are never known": [
        (
            "caches/pages.py: PagePlan is class(pages, source_B, target_B, owner_A, column_A, "
            "left_BC, left_column_BC, left) in jaxkv, class(pages, source_B, target_B) in torchkv"
        ),
        "caches/pages.py: PagePlan.copies: torchkv has it, jaxkv not",
        "caches/pages.py: PagePlan.left: torchkv has it, jaxkv not",
        "caches/pages.py: PagePlan.owners: torchkv has it, jaxkv not",
        "caches/state.py: Step.oldest: torchkv has it, jaxkv not",
        "caches/state.py: Step.real: torchkv has it, jaxkv not",
        "caches/state.py: Step.spans: torchkv has it, jaxkv not",
        "caches/state.py: Step.start: torchkv has it, jaxkv not",
        "caches/state.py: Step.used: torchkv has it, jaxkv not",
    ],
    "torchkv copies between fixed buffers, and takes PyTorch's fused attention where it applies": [
        "caches/slots.py: attend_all: torchkv has it, jaxkv not",
        "caches/slots.py: copy_front: torchkv has it, jaxkv not",
    ],
    "torchkv compiles nothing, so it keeps and counts no programs": [
        "programs.py: jaxkv has it, torchkv not",
    ],
    "torch has to be told the device of each new tensor": [
        ("request.py: device_arrays is (request) in jaxkv, (request, device) in torchkv"),
        ("request.py: device_sources is (request) in jaxkv, (request, device) in torchkv"),
    ],
}

KINDS = ("property", "cached_property", "classmethod", "staticmethod")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def differences(root: Path) -> list[str]:
    ours, theirs = (surface(root, twin) for twin in ("jaxkv", "torchkv"))
    found = [
        f"{file}: {here} has it, {there} not"
        for here, there, files in (
            ("jaxkv", "torchkv", ours.keys() - theirs.keys()),
            ("torchkv", "jaxkv", theirs.keys() - ours.keys()),
        )
        for file in sorted(files)
    ]
    for file in sorted(ours.keys() & theirs.keys()):
        found += [f"{file}: {each}" for each in differing(ours[file], theirs[file])]
    return found


def differing(ours: dict[str, str], theirs: dict[str, str]) -> Iterator[str]:
    for name in sorted(ours.keys() | theirs.keys()):
        # A missing class is one finding, not one a method.
        owner = name.split(".")[0]
        if owner != name and not (owner in ours and owner in theirs):
            continue
        if name not in theirs:
            yield f"{name}: jaxkv has it, torchkv not"
        elif name not in ours:
            yield f"{name}: torchkv has it, jaxkv not"
        elif ours[name] != theirs[name]:
            yield f"{name} is {ours[name]} in jaxkv, {theirs[name]} in torchkv"


def surface(root: Path, twin: str) -> dict[str, dict[str, str]]:
    """Return, for each file outside spec, what stands for each public name in it."""
    return {
        file.removeprefix(f"{twin}/"): dict(definitions(tree.body))
        for file, tree in modules(root, twin)
        if not file.startswith("jaxkv/spec/")
    }


def definitions(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node in body:
        if not isinstance(node, Definition) or not is_public(node.name):
            continue
        if not isinstance(node, ast.ClassDef):
            yield node.name, signature(node)
            continue
        yield node.name, f"class({', '.join(fields(node))})"
        for name, text in definitions(node.body):
            yield f"{node.name}.{name}", text


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the annotated fields: parameters of a dataclass, in their order."""
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if is_public(name):
                yield f"{name}=" if has_default(value) else name


def has_default(value: ast.expr | None) -> bool:
    """Return whether a field may be left out; `static()` and a bare `field()` are no default."""
    match value:
        case ast.Call(func=ast.Name(id="static" | "field"), keywords=keywords):
            return any(each.arg in ("default", "default_factory") for each in keywords)
    return value is not None


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the parameters as `(a, /, b, c=, *args, d, e=, **rest)`, led by what decorates them.

    Only decorators that change how a name is called count; `jit` and `no_grad` do not.
    """
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    first_default = len(plain) - len(given.defaults)
    parts = [each.arg + "=" * (i >= first_default) for i, each in enumerate(plain)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{given.vararg.arg if given.vararg else ''}")
    parts += [
        each.arg + "=" * (default is not None)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    parts += [f"**{given.kwarg.arg}"] if given.kwarg else []
    called = [ast.unparse(each) for each in node.decorator_list]
    kinds = [f"@{each} " for each in called if each in KINDS]
    return f"{''.join(kinds)}({', '.join(parts)})"


def faults(found: Collection[str], exceptions: Collection[str]) -> list[str]:
    """Return the differences that no exception names, and the exceptions that name none."""
    stale = [f"stale exception: {each}" for each in exceptions if each not in found]
    return [each for each in found if each not in exceptions] + stale


def test_twins_mirror_each_other():
    excepted = [each for findings in EXCEPTIONS.values() for each in findings]

    assert faults(differences(ROOT), excepted) == []


def test_every_exception_has_a_reason():
    assert [
        reason for reason, found in EXCEPTIONS.items() if len(reason.split()) < 4 or not found
    ] == []


OPS = """
def rope(x_BTNH, position_BT, *, theta=10.0):
    pass

def _hidden():
    pass

class Cache:
    length_B: int
    shared: int = 0

    def read(self, site, *, dtype):
        pass

    @property
    def nbytes(self):
        pass
"""
HAS_NOT = "ops.py: {}: jaxkv has it, torchkv not"
ROPE = "ops.py: rope is (x_BTNH, position_BT, *, theta=) in jaxkv, {} in torchkv"
READ = "ops.py: Cache.read is (self, site, *, dtype) in jaxkv, {} in torchkv"
FIELDS = "ops.py: Cache is class(length_B, shared=) in jaxkv, class({}) in torchkv"
CHANGES = [
    pytest.param("position_BT", "at_BT", ROPE.format("(x_BTNH, at_BT, *, theta=)"), id="renamed"),
    pytest.param(
        "x_BTNH, position_BT",
        "position_BT, x_BTNH",
        ROPE.format("(position_BT, x_BTNH, *, theta=)"),
        id="other-order",
    ),
    pytest.param(
        "*, theta", "theta", ROPE.format("(x_BTNH, position_BT, theta=)"), id="other-kind"
    ),
    pytest.param("=10.0", "", ROPE.format("(x_BTNH, position_BT, *, theta)"), id="default-missing"),
    pytest.param(
        "=10.0", "=1, **kw", ROPE.format("(x_BTNH, position_BT, *, theta=, **kw)"), id="more"
    ),
    pytest.param("def rope", "def _rope", HAS_NOT.format("rope"), id="function-missing"),
    pytest.param("def read", "def _read", HAS_NOT.format("Cache.read"), id="method-missing"),
    pytest.param("site,", "site=None,", READ.format("(self, site=, *, dtype)"), id="default-more"),
    pytest.param(
        "@property",
        "@staticmethod",
        "ops.py: Cache.nbytes is @property (self) in jaxkv, @staticmethod (self) in torchkv",
        id="no-property",
    ),
    pytest.param("length_B", "length", FIELDS.format("length, shared="), id="field-renamed"),
    pytest.param(" = 0", " = static()", FIELDS.format("length_B, shared"), id="field-required"),
    pytest.param(" = 0", "", FIELDS.format("length_B, shared"), id="field-without-default"),
    pytest.param(
        "def _hidden",
        "def shown",
        "ops.py: shown: torchkv has it, jaxkv not",
        id="function-too-many",
    ),
]


@pytest.mark.parametrize(("old", "new", "finding"), CHANGES)
def test_planted_difference_is_seen(tmp_path: Path, old: str, new: str, finding: str):
    root = plant(tmp_path, {"jaxkv/ops.py": OPS, "torchkv/ops.py": OPS.replace(old, new)})

    assert old in OPS
    assert differences(root) == [finding]


@pytest.mark.parametrize(
    ("files", "finding"),
    [
        (["jaxkv/a/ops.py"], "a/ops.py: jaxkv has it, torchkv not"),
        (["torchkv/ops.py"], "ops.py: torchkv has it, jaxkv not"),
        (["torchkv/spec/ops.py"], "spec/ops.py: torchkv has it, jaxkv not"),
    ],
)
def test_missing_file_is_seen(tmp_path: Path, files: list[str], finding: str):
    assert differences(plant(tmp_path, dict.fromkeys(files, OPS))) == [finding]


@pytest.mark.parametrize(
    ("old", "new"), [("_hidden", "_other"), ("=10.0", "=1e4"), ("site", "site: object"), ("", "")]
)
def test_private_names_values_and_annotations_may_differ(tmp_path: Path, old: str, new: str):
    root = plant(tmp_path, {"jaxkv/ops.py": OPS, "torchkv/ops.py": OPS.replace(old, new)})

    assert differences(root) == []


def test_spec_has_no_twin(tmp_path: Path):
    assert differences(plant(tmp_path, {"jaxkv/spec/config.py": OPS})) == []


def test_exception_counts_only_while_it_is_found():
    assert faults(["a", "b"], ["b", "c"]) == ["a", "stale exception: c"]
