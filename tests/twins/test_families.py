"""Every family in both twins: each core relation holds, and no planted fault survives.

Here a few families, each in one twin and on one layout, so that every kind of part, every scaling
that a cache has to follow and every layout is met once; the whole product when deep. What the whole
product gave stands in docs/crosscheck.md.
"""

import pytest

from crosscheck.check import check
from crosscheck.relations.registry import RELATIONS
from crosscheck.select import load_relations
from crosscheck.selftest import selftest
from crosscheck.subjects.protocol import describe, steady
from crosscheck.subjects.sources import load_subject
from jaxkv.spec.tiny import subject_names
from tests.tiny import DEEP, TWINS

LAYOUTS = ("contiguous", "window", "paged")
CHECKED = (
    ("torchkv", "gemma3", "window"),
    ("torchkv", "phi3-longrope", "contiguous"),
    ("torchkv", "qwen3_moe", "paged"),
)
PLANTED = (
    ("torchkv", "mixtral", "contiguous"),
    ("torchkv", "llama-dynamic", "paged"),
    ("torchkv", "gemma2", "window"),
    ("jaxkv", "qwen2", "contiguous"),
)
EACH = tuple(
    (twin, family, layout) for family in subject_names() for twin in TWINS for layout in LAYOUTS
)
# What jaxkv compiles for all faults costs half a minute; these need no variant.
FEW = "pos.reset,mask.top_left,append.stale,rollback.leak,gather.partial,head.cap"


def subject(twin, family, layout):
    return load_subject(f"{twin}.subject:{family}?layout={layout}")


@pytest.mark.parametrize(("twin", "family", "layout"), EACH if DEEP else CHECKED)
def test_every_core_relation_holds_and_could_have_failed(twin, family, layout):
    dtypes = ("float64", "float32") if DEEP else ("float64",)

    report = check(subject(twin, family, layout), budget_seconds=300, dtypes=dtypes)

    assert report.verdict == "pass"
    assert report.oracle.startswith("checked against the independent decoder")


@pytest.mark.parametrize(("twin", "family", "layout"), EACH if DEEP else PLANTED)
def test_no_planted_fault_survives(twin, family, layout):
    faults = FEW if twin == "jaxkv" and not DEEP else "all"

    matrix = selftest(subject(twin, family, layout), relations="all", faults=faults, depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted >= (len(FEW.split(",")) if faults == FEW else 50)


def test_where_speeds_follow_the_length_only_sides_of_one_kind_of_steps_go_past_it():
    load_relations()
    info = describe(subject("torchkv", "llama-dynamic", "contiguous"))

    longest = {
        name: max((case.ids.shape[1] for case in relation.examples(info, 0)), default=0)
        for name, relation in RELATIONS.items()
    }

    assert info.steady == 12
    assert longest["cache.partition"] == 11
    assert longest["cache.fork_gather"] == 14
    assert {name for name, relation in RELATIONS.items() if relation.restepped} >= {
        *info.documented
    }


def test_past_that_length_another_partition_gives_other_logits():
    """So the sentence that is documented is true, and the bound is needed."""
    dynamic = subject("torchkv", "llama-dynamic", "contiguous").cast("float64")
    load_relations()
    relation, info = RELATIONS["cache.partition"], describe(dynamic)

    report = check(dynamic, relations="cache.partition", budget_seconds=60, faults="none")
    long = next(iter(relation.cases(info, 0)))
    sides = relation.run(dynamic, dynamic, long)

    assert report.rows[0].verdict in ("pass", "blind")
    assert long.ids.shape[1] > info.steady == steady(info).max_positions
    error = abs(sides.left["logits"] - sides.right["logits"]).max(axis=(0, 2))
    assert error[-1] > 1e-3
