"""Every fault that a subject can have is seen; a relation that sees nothing is called blind."""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from crosscheck.errors import CrosscheckError
from crosscheck.faults import FAULTS
from crosscheck.programs.case import Append, Case
from crosscheck.relations.registry import RELATIONS, Sides, relation
from crosscheck.select import load_relations, select
from crosscheck.selftest import selftest
from crosscheck.subjects.protocol import CAPABILITIES
from crosscheck.subjects.sources import load_subject
from tests.conftest import DEEP
from tests.toys import FLAVORS

OWN = {
    "ring": "window.*,length.*,rollback.*",
    "windowed": "window.*,length.*,rollback.evicted",
    "learned": "pos.*",
    "mla": "mla.*,append.*",
    "cross": "cross.*,pos.reset",
    "paged": "page.*,write.*,fork.*",
    "quantized": "quant.*",
}
FAMILIES = ("llama", "gpt2", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3")
FAMILIES += ("gpt_neox", "opt", "olmo2", "starcoder2")
PLAIN_TOY, RING_TOY = FLAVORS["gqa"], FLAVORS["ring"]
IN_CI = FAMILIES if DEEP else FAMILIES[:2]
FEW = "pos.reset,mask.top_left,append.stale,rollback.leak,gather.partial,head.cap,pad.attended"


def test_every_fault_is_seen_in_the_toy_that_can_do_most() -> None:
    matrix = selftest(FLAVORS["gqa"], relations="all")

    assert (matrix.survivors, matrix.blind, matrix.notes) == ((), (), ())
    assert matrix.killed == matrix.planted >= 65


@pytest.mark.parametrize("flavor", OWN)
def test_faults_of_a_layout_are_seen_in_its_toy(flavor: str) -> None:
    matrix = selftest(FLAVORS[flavor], relations="all", faults=OWN[flavor], depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted


def test_no_fault_of_the_dictionary_is_left_out_of_the_toys() -> None:
    planted = {
        name
        for name, fault in FAULTS.items()
        if not fault.missing(FLAVORS["gqa"].info)
        or any(fault.missing(FLAVORS[flavor].info) == "" for flavor in OWN)
    }

    assert planted == set(FAULTS)


POOR = {
    "no-kv": (PLAIN_TOY, {"kv", "kv_write"}, "write.overlap,append.double,capacity.as_length"),
    "no-visible": (PLAIN_TOY, {"visible", "positions"}, "append.double,write.overlap"),
    "not-persistent": (PLAIN_TOY, {"persistent"}, "capacity.as_length,pos.reset.queries"),
    "cache-alone": (PLAIN_TOY, set(CAPABILITIES) - {"cache", "chunk", "f64"}, "all"),
    "ring-no-visible": (RING_TOY, {"visible"}, "window.off_by_one"),
}


@pytest.mark.parametrize("name", POOR)
def test_a_fault_is_seen_whichever_way_it_is_planted(name: str) -> None:
    toy, without, faults = POOR[name]
    poor = replace(toy, without=frozenset(without))

    matrix = selftest(poor, relations="all", faults=faults, depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted >= min(10, len(faults.split(",")) if faults != "all" else 10)


def test_every_fault_is_seen_in_the_torch_twin() -> None:
    matrix = selftest(load_subject("torchkv.subject:reference"), relations="all", depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted >= 55


def test_every_fault_is_seen_in_the_jax_twin() -> None:
    matrix = selftest(
        load_subject("jaxkv.subject:reference"),
        relations="all" if DEEP else "cache.partition,cache.rollback,cache.fork_gather,pad.left",
        faults="all" if DEEP else FEW,
        depth="first",
    )

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted >= (55 if DEEP else 7)


@pytest.mark.parametrize("family", IN_CI)
def test_every_fault_is_seen_in_a_model_of_transformers(family: str) -> None:
    matrix = selftest(load_subject(f"hf-tiny:{family}"), relations="all", depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted >= 40


def test_every_name_in_a_relation_is_a_fault_and_every_fault_is_in_a_relation() -> None:
    load_relations()
    named = {name for each in RELATIONS.values() for name in each.catches}

    assert named <= set(FAULTS)
    assert {base(name) for name in named} == {base(name) for name in FAULTS}


def base(name: str) -> str:
    """Return a fault's name without its variant: pos.reset of pos.reset.queries."""
    return ".".join(name.split(".")[:2])


@pytest.fixture
def lazy() -> Iterator[str]:
    """A relation that compares a constant with itself, and claims to catch a fault."""

    def cases(info, seed):
        yield Case(np.ones((2, 4), np.int32), (Append(4),))

    @relation(name="lazy.one", needs={"cache"}, cases=cases, catches={"pos.reset"})
    def one(candidate, reference, case):
        """One is one."""
        candidate.step(candidate.init(2, 4), case.ids)
        return Sides({"logits": np.ones((2, 4, 3))}, {"logits": np.ones((2, 4, 3))})

    yield "lazy.one"
    del RELATIONS["lazy.one"]


def test_a_relation_that_cannot_see_its_fault_is_blind(lazy: str) -> None:
    matrix = selftest(FLAVORS["gqa"], relations=[lazy], faults="pos.*")

    assert matrix.blind == ("lazy.one",)
    assert matrix.unseen == {"lazy.one": ("pos.reset",)}
    assert (matrix.killed, matrix.score) == (0, 0.0)
    assert matrix.survivors == tuple(matrix.cells)


class Mixed(type(FLAVORS["gqa"])):
    """A toy that has a fault before any is planted: its steps forget their positions."""

    def step(self, state, ids, **options):
        """Step at positions from 0."""
        options.setdefault("positions", np.broadcast_to(np.arange(np.shape(ids)[1]), np.shape(ids)))
        return super().step(state, ids, **options)


def test_a_relation_that_fails_before_planting_shows_nothing() -> None:
    matrix = selftest(Mixed(), relations="cache.partition", faults="mask.none,head.scale")

    assert matrix.notes == ("cache.partition does not hold before a fault is planted",)
    assert matrix.cells["mask.none"]["cache.partition"] >= 10


def test_a_fault_that_cannot_be_planted_is_listed_with_its_reason() -> None:
    matrix = selftest(FLAVORS["mla"], relations="cache.full", faults="concat.axis,cross.rows")

    assert matrix.planted == 0
    assert matrix.skipped == {
        "concat.axis": "one head of keys has no other to be mixed with",
        "cross.rows": "the subject does not declare cross",
    }


def test_the_whole_matrix_tries_every_relation() -> None:
    chosen = "cache.full,cache.partition,cache.causal"
    matrix = selftest(FLAVORS["gqa"], relations=chosen, faults="mask.none", depth="every")

    assert list(matrix.cells["mask.none"]) == [each.name for each in select(chosen)]


def test_the_data_is_strict_json_and_the_table_names_every_fault() -> None:
    matrix = selftest(FLAVORS["gqa"], relations="mode.stale,cache.full", faults="train.*,model.*")
    data = json.loads(json.dumps(matrix.to_json(), allow_nan=False))

    assert data["killed"] == data["planted"] == 3
    assert data["cells"]["train.dropout"]["mode.stale"] == "inf"
    assert matrix.table().row_count == 3


def test_the_budget_ends_the_planting() -> None:
    matrix = selftest(FLAVORS["gqa"], relations="cache.full", budget_seconds=1e-6)

    assert matrix.planted == 0
    assert set(matrix.skipped.values()) == {"the budget ended before it was planted"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"faults": "pos.rest"}, r"selftest: faults has 'pos.rest', which names none of"),
        ({"faults": " , "}, "selftest: faults is empty, expected names, globs or 'all'."),
        ({"budget_seconds": 0.0}, "selftest: budget_seconds is 0.0, expected above 0."),
        ({"depth": "deep"}, "selftest: depth is 'deep', expected one of 'first', 'named', 'every'"),
    ],
    ids=["unknown", "empty", "budget", "depth"],
)
def test_a_wrong_argument_is_refused_in_words(options: dict, words: str) -> None:
    with pytest.raises(CrosscheckError, match=words):
        selftest(FLAVORS["gqa"], **options)
