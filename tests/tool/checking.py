"""What the tests of `check` share: a quick run, sides that are given, one row of a report."""

import numpy as np

from crosscheck.check import check
from crosscheck.programs.case import Append, Case
from crosscheck.relations.registry import Sides
from crosscheck.select import load_relations

load_relations()
CASE = Case(np.arange(8, dtype=np.int32).reshape(2, 4), (Append(2), Append(2)))
ONES = np.ones((2, 4, 5))


def row_of(report, name, dtype="float64", axis="self"):
    (row,) = [r for r in report.rows if (r.name, r.dtype, r.axis) == (name, dtype, axis)]
    return row


def quick(candidate, relations, reference=None, **options):
    options = {"dtypes": ("float64",), "budget_seconds": 20.0} | options
    return check(candidate, reference, relations=relations, **options)


def sides(left, right, **fields):
    return lambda candidate, reference, case: Sides({"logits": left}, {"logits": right}, **fields)
