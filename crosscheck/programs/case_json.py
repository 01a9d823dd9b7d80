"""A case as JSON data and back: what a saved failure holds."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from crosscheck.errors import CrosscheckError
from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Grow,
    Op,
    Pad,
    PermutePages,
    Rollback,
    Speculate,
)

SCHEMA_VERSION = 1
_OPS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Append,
        AppendRagged,
        Rollback,
        Gather,
        Fork,
        Pad,
        Grow,
        PermutePages,
        Speculate,
    )
}


def case_to_json(case: Case) -> dict[str, Any]:
    """Return a case as data that `json.dumps` takes.

    >>> case = Case(np.array([[3, 4]]), (Append(1), Rollback((0,))))
    >>> case_to_json(case)["ops"]
    [{'op': 'Append', 'n': 1}, {'op': 'Rollback', 'to': [0]}]
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "ids": np.asarray(case.ids).tolist(),
        "ops": [{"op": type(op).__name__} | _listed(asdict(op)) for op in case.ops],
        "lengths": [int(n) for n in case.lengths],
        "capacity": None if case.capacity is None else int(case.capacity),
        "seed": int(case.seed),
        "meta": plain(case.meta),
    }


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Return the case that `case_to_json` wrote.

    Raises:
        CrosscheckError: Another schema version, a key is missing or unknown, or an operation is.
    """
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CrosscheckError(
            f"case_from_json: schema_version is {version!r}, expected {SCHEMA_VERSION}. "
            "Was the file written by another version of crosscheck?"
        )
    known = {each.name for each in fields(Case)}
    if data.keys() - {"schema_version"} != known:
        raise CrosscheckError(
            f"case_from_json: keys are {', '.join(sorted(data))}, expected "
            f"{', '.join(sorted(known | {'schema_version'}))}."
        )
    ids_BT = np.asarray(data["ids"])
    if ids_BT.ndim != 2 or ids_BT.dtype.kind not in "iu" or ids_BT.size == 0:
        raise CrosscheckError(
            f"case_from_json: ids is {ids_BT.dtype} {ids_BT.shape}, expected integers [B, T]."
        )
    return Case(
        ids=ids_BT.astype(np.int32),
        ops=tuple(map(_op, data["ops"])),
        lengths=tuple(data["lengths"]),
        capacity=data["capacity"],
        seed=data["seed"],
        meta=dict(data["meta"]),
    )


def plain(value: Any) -> Any:
    """Return a value with numpy's scalars and arrays, tuples and sets as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _listed(data: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in data.items()}


def _op(data: Mapping[str, Any]) -> Op:
    rest = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items() if key != "op"}
    kind = _OPS.get(data.get("op", ""))
    if kind is None or {each.name for each in fields(kind)} != rest.keys():
        raise CrosscheckError(
            f"case_from_json: operation is {dict(data)}, expected one of {', '.join(_OPS)} with "
            "its own fields."
        )
    return kind(**rest)
