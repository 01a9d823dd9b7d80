"""Each relation holds on a right toy that declares what it needs, and fails on a faulted copy."""

import json
from dataclasses import replace

import numpy as np
import pytest

from crosscheck import compare
from crosscheck.errors import ComparisonError, CrosscheckError, Refused
from crosscheck.programs.case import Append
from crosscheck.relations import RELATIONS, Sides, core_names, relation, why_not
from crosscheck.relations.texts import partitions, tokens_for
from crosscheck.subjects.protocol import SubjectInfo, describe
from tests.tiny import DEEP
from tests.toys import FLAVORS, Toy, ToyConfig
from tests.toys.edits import EDITS
from tests.toys.faulty import faulted

TABLE = (
    "cache.full",
    "cache.partition",
    "cache.causal",
    "cache.prefix",
    "cache.immutable",
    "cache.write_set",
    "cache.capacity",
    "cache.rollback",
    "cache.fork_gather",
    "batch.rows",
    "pad.left",
    "pad.right",
    "ragged.continue",
    "pos.explicit",
    "pos.shift",
    "window.wide",
    "window.ring",
    "page.permute",
    "prefix.share",
    "spec.greedy",
    "gqa.mha",
    "mla.absorbed",
    "layout.equal",
    "quant.bound",
    "jit.equal",
    "mode.stale",
    "weights.tied",
)


class OneByOne(Toy):
    """Refuses what a subject without chunks need not take."""

    def step(self, state, ids, **options):
        assert ids.shape[1] == 1
        return super().step(state, ids, **options)


SMALL = {
    "one token a step": OneByOne(without=frozenset({"chunk", "prefix", "speculate"})),
    "few positions": Toy(ToyConfig(max_positions=9)),
}

# The first cases are the most telling; the deep suite runs all of them.
CASES = None if DEEP else 4


def cells():
    for flavor, toy in FLAVORS.items():
        for name in TABLE:
            if why_not(RELATIONS[name], describe(toy)) is None:
                yield pytest.param(flavor, name, id=f"{flavor}-{name}")


def judged(name, candidate, reference, case):
    """Return the comparison of one case; None where the subject refused it."""
    each = RELATIONS[name]
    try:
        sides = each.run(candidate, reference, case)
    except Refused:
        return None
    level = sides.level or each.level
    return compare(sides.left, sides.right, level, name=name, names=sides.words, valid=sides.valid)


def all_judged(name, candidate, reference, most=None):
    cases = list(RELATIONS[name].cases(describe(candidate), 0))[:most]
    found = [judged(name, candidate, reference, case) for case in cases]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("limits", ["one token a step", "few positions"])
@pytest.mark.parametrize("name", TABLE)
def test_the_relation_holds_within_a_subjects_limits(name, limits):
    toy = SMALL[limits]
    if why_not(RELATIONS[name], describe(toy)) is None:
        assert [str(each) for each in all_judged(name, toy, toy) if not each.agree] == []


@pytest.mark.parametrize(("flavor", "name"), [*cells()])
def test_the_relation_holds_on_the_right_toy(flavor, name):
    toy = FLAVORS[flavor]

    found = all_judged(name, toy, toy, CASES)

    assert found
    assert [str(each) for each in found if not each.agree] == []


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_the_relation_fails_on_the_faulted_copy(edit):
    found = all_judged(edit.relation, faulted(edit), FLAVORS[edit.flavor])

    assert any(not each.agree for each in found)


def test_every_relation_of_the_table_has_a_faulted_copy():
    assert {edit.relation for edit in EDITS} == set(TABLE)


def test_all_relations_of_the_table_are_registered():
    assert set(TABLE) <= set(RELATIONS)


def test_every_relation_runs_on_some_toy():
    run = {cell.values[1] for cell in cells()}

    assert set(TABLE) - run == {"weights.tied"}


def test_twins_with_equal_weights_are_tied():
    candidate, reference = Toy(), replace(Toy(), layout="paged")

    assert all(each.agree for each in all_judged("weights.tied", candidate, reference))


def test_core_needs_only_what_a_plain_cache_has():
    assert {"cache.partition", "pad.left", "cache.capacity", "window.ring"} <= set(core_names())
    assert not {"cache.immutable", "page.permute", "pos.shift"} & set(core_names())


@pytest.mark.parametrize("name", TABLE)
def test_cases_are_plain_data(name):
    info = describe(FLAVORS["mla"])

    cases = list(RELATIONS[name].cases(info, 3))

    assert all(case.ids.dtype == np.int32 for case in cases)
    assert [json.loads(json.dumps(case.meta)) is not None for case in cases]


LIMITS = {
    "full attention": describe(Toy()),
    "windows": describe(FLAVORS["windowed"]),
    "one token a step": describe(Toy(without=frozenset({"chunk"}))),
    "few positions": describe(Toy(ToyConfig(max_positions=9))),
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", TABLE)
def test_no_case_feeds_an_empty_step_or_more_than_its_text(name, limits):
    info = LIMITS[limits]

    for case in RELATIONS[name].cases(info, 0):
        sizes = [op.n for op in case.ops if isinstance(op, Append)]
        assert all(size > 0 for size in sizes)
        assert case.ids.min() >= info.first_id
        assert case.ids.max() < info.vocab_size
        assert case.ids.shape[1] < info.max_positions


def test_a_user_adds_a_relation():
    @relation(name="mine.finite", needs={"cache"}, cases=RELATIONS["cache.full"].cases)
    def finite(candidate, reference, case):
        """Logits are finite."""
        logits = candidate.full(case.ids)
        return Sides({"finite": np.isfinite(logits) * 1.0}, {"finite": np.ones_like(logits)})

    try:
        assert RELATIONS["mine.finite"].about == "Logits are finite."
        assert all(each.agree for each in all_judged("mine.finite", Toy(), Toy()))
        with pytest.raises(CrosscheckError, match=r"'mine\.finite', which is taken"):
            relation(name="mine.finite", needs=(), cases=RELATIONS["cache.full"].cases)(finite)
    finally:
        del RELATIONS["mine.finite"]


@pytest.mark.parametrize(
    ("toy", "name", "why"),
    [
        (Toy(), "page.permute", "toy/gqa/contiguous does not declare paged (slots lie one after"),
        (FLAVORS["learned"], "pos.shift", "does not declare rope (positions are learned"),
        (Toy(), "weights.tied", "it compares two subjects, and there is one"),
        (Toy(without=frozenset({"capacity"})), "cache.capacity", "left out by the test"),
        (Toy(without=frozenset({"window"})), "window.ring", "left out by the test"),
        (
            Toy(without=frozenset({"left_pad", "count"})),
            "ragged.continue",
            "left out by the test",
        ),
        (FLAVORS["quantized"], "cache.write_set", "a quantized cache rewrites"),
    ],
    ids=["pages", "shift", "one subject", "room", "window", "ragged", "codes"],
)
def test_what_does_not_apply_says_why(toy, name, why):
    assert why in (why_not(RELATIONS[name], describe(toy)) or "")


def test_a_reason_by_the_relations_own_name_keeps_it_out():
    info = replace(describe(Toy()), absent={"batch.rows": "experts have a capacity"})

    assert why_not(RELATIONS["batch.rows"], info) == "experts have a capacity"


def test_a_ring_that_refuses_is_no_divergence():
    toy = FLAVORS["ring"]
    case = next(
        case
        for case in RELATIONS["cache.rollback"].cases(describe(toy), 0)
        if case.ops[1].n > toy.slack and case.ops[0].n > 4
    )

    with pytest.raises(Refused, match="which the ring of 8 slots has evicted"):
        RELATIONS["cache.rollback"].run(toy, toy, case)


def test_an_error_within_the_room_is_no_refusal():
    class Broken(Toy):
        def step(self, state, ids, **options):
            raise IndexError("out of range")

    case = next(iter(RELATIONS["cache.capacity"].cases(describe(Toy()), 0)))

    with pytest.raises(IndexError, match="out of range"):
        RELATIONS["cache.capacity"].run(Broken(), Broken(), case)


def test_nan_fails():
    class NaN(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            return logits * np.nan, state

    assert not any(each.agree for each in all_judged("cache.partition", NaN(), Toy()))


def test_logits_of_another_shape_are_not_compared():
    class Short(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            return logits[:, :, 1:], state

    with pytest.raises(ComparisonError, match="Shapes are never broadcast"):
        all_judged("cache.full", Short(), Toy())


def test_texts_reach_beyond_small_windows_and_within_the_limit():
    def info(windows=(), limit=None):
        return SubjectInfo("a", "numpy", "float64", 9, windows=windows, max_positions=limit)

    assert tokens_for(info()) == 14
    assert tokens_for(info((12, None))) == 21
    assert tokens_for(info((4096,))) == 14
    assert tokens_for(info((), 9)) == 8


def test_partitions_straddle_windows_and_without_chunks_are_steps_of_one():
    info = describe(Toy(ToyConfig(windows=(5,))))
    alone = describe(Toy(without=frozenset({"chunk"})))

    assert {(14,), (1,) * 14, (1, 13), (13, 1), (3, 1, 4, 2, 4), (4, 4, 6)} <= {
        *partitions(info, 14)
    }
    assert {(4, 4, 4, 2), (5, 5, 4), (6, 6, 2)} <= {*partitions(info, 14)}
    assert all(set(sizes[1:]) <= {1} for sizes in partitions(alone, 14))


def test_given_positions_are_the_last_resort_for_padding():
    """A learned position counted from the first column is a convention, and positions are given."""

    class FromColumn(Toy):
        def full(self, ids, **options):
            return super().full(ids, **self.counted(ids, 0, options))

        def step(self, state, ids, **options):
            held = int(state.length_B.max(initial=0))
            return super().step(state, ids, **self.counted(ids, held, options))

        @staticmethod
        def counted(ids, held, options):
            positions = np.broadcast_to(held + np.arange(ids.shape[1]), ids.shape)
            return {"positions": positions, **options}

    toy = FromColumn(ToyConfig(learned=True))
    case = next(iter(RELATIONS["pad.left"].cases(describe(toy), 0)))

    sides = RELATIONS["pad.left"].run(toy, toy, case)

    assert sides.meta["positions"] == "given"
    assert judged("pad.left", toy, toy, case).agree
