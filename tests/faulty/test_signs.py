"""Signs that name a fault by what the candidate itself holds and says, on the numpy decoder."""

from types import SimpleNamespace

import numpy as np
import pytest

from crosscheck.diagnosis import signs_logits
from crosscheck.diagnosis.diagnose import diagnose
from crosscheck.diagnosis.localize import localize
from crosscheck.explain import explain
from crosscheck.faults import FAULTS
from crosscheck.jobs import make_job
from crosscheck.oracle import examine
from crosscheck.programs.case import Append, Case, Gather, Rollback
from crosscheck.programs.shrink import shrink
from crosscheck.select import select
from tests.toys import FLAVORS, Toy, ToyConfig

PLAIN, RING = FLAVORS["gqa"], Toy(ToyConfig(windows=(5, 5, 5)), slack=20)
IDS_BT = np.random.default_rng(3).integers(1, 23, (2, 12)).astype(np.int32)


def fed(*sizes):
    """Return a case that feeds the text in steps of these sizes."""
    return Case(IDS_BT, tuple(map(Append, sizes)), seed=0)


def gathered(rows=(1, 0)):
    """Return a case that reorders the rows after seven tokens."""
    ops = (Append(6), Append(1), Gather(rows), Append(4), Append(1))
    return Case(IDS_BT, ops, seed=0, meta={"first": 7})


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("gather.partial.old", "in the new order"),
        ("gather.skipped", "stand where they were"),
    ],
)
def test_rows_before_and_after_a_gather_name_what_became_of_them(fault, says):
    planted = FAULTS[fault].plant(PLAIN)

    found = diagnose(planted, None, "cache.fork_gather", gathered())
    place = localize(planted, None, "cache.fork_gather", gathered())

    assert fault.startswith(found[0].fault)
    assert says in found[0].evidence
    assert place.isolated == "right before this gather, wrong after it"
    assert (place.layer, place.position) == (0, 7)


def test_an_inverse_order_is_named_where_it_differs_from_the_one_asked_for():
    ids = np.concatenate([IDS_BT, IDS_BT[:1, ::-1]])
    case = Case(ids, gathered((2, 0, 1)).ops, seed=0, meta={"first": 7})

    found = diagnose(FAULTS["gather.inverse"].plant(PLAIN), None, "cache.fork_gather", case)

    assert found[0].fault == "gather.inverse"
    assert "in the inverse order" in found[0].evidence


def test_a_length_that_is_a_layers_window_is_named():
    mixed = Toy(ToyConfig(windows=(5, None, 5)), slack=20)

    found = diagnose(FAULTS["length.from_ring"].plant(mixed), None, "cache.partition", fed(7, 5))

    assert found[0].fault == "length.from_ring"
    assert "after 7 tokens it tells a length of 5" in found[0].evidence


@pytest.mark.parametrize(("fault", "window"), [("rollback.reset", 5), ("rollback.leak", 30)])
def test_a_rollback_under_unlike_windows_is_named_by_what_it_leaves(fault, window):
    """After a reset the length comes to a window's by chance; an exact replay needs no second."""
    planted = FAULTS[fault].plant(Toy(ToyConfig(windows=(window, None, window)), slack=20))
    ids = np.concatenate([IDS_BT, IDS_BT[:, ::-1]])
    ops = (Append(7), Append(2), Rollback(7), *(Append(1),) * 5)
    case = Case(ids, ops, seed=0, meta={"keep": 7, "dropped": 2})

    found = diagnose(planted, None, "cache.rollback", case)

    assert found[0].fault == fault


def test_a_ring_that_drops_one_token_early_shows_at_the_token_that_fills_it():
    found = diagnose(FAULTS["window.off_by_one"].plant(RING), None, "cache.partition", fed(3, 9))

    assert found[0].fault == "window.off_by_one"
    assert "the last that a window of 5 holds" in found[0].evidence


@pytest.mark.parametrize("fault", ["window.chunk_drops_past", "window.chunk_drops_past.shifted"])
def test_a_dropped_past_is_told_from_one_that_the_mask_still_counts(fault):
    found = diagnose(FAULTS[fault].plant(RING), None, "cache.partition", fed(1, 11))

    assert found[0].fault == fault


def test_shrinking_shortens_a_long_first_chunk_before_a_short_last_one(looks):
    def fails(case):
        sizes = [op.n for op in case.ops]
        return sum(sizes) == case.ids.shape[1] and len(sizes) > 1 and sizes[0] > 5

    small = shrink(fed(11, 1), fails, deadline=looks() + 20)

    assert small.ops == (Append(6), Append(1))


def test_equal_ids_do_not_hide_where_it_begins(looks):
    """In a text of one token over and over the first wrong place can't be seen."""
    planted = FAULTS["window.chunk_drops_past"].plant(RING)
    (relation,) = select(["window.ring"])
    job = make_job(relation, "self", examine(planted), 0)
    job.run(Case(IDS_BT, fed(1, 11).ops, seed=0, meta={"window": None}))

    row = explain(job, job.row(), deadline=looks() + 60)

    assert (row.divergence.layer, row.divergence.position) == (0, 1)


def test_a_cache_that_asks_for_places_is_told_them():
    from crosscheck.adapters.hf_call import _mask_sizes

    now = SimpleNamespace(keys=1, get_mask_sizes=lambda query_length: (query_length, 0))
    then = SimpleNamespace(
        keys=1, get_mask_sizes=lambda cache_position: (len(cache_position), cache_position[0])
    )

    assert _mask_sizes(now, 3, 2) == (2, 0)
    assert _mask_sizes(then, 3, 2) == (2, 3)


def test_windows_are_those_of_the_attentions_where_the_config_has_no_layer_types():
    """Gemma 2 of transformers 4.48: every other layer has the config's window."""
    from torch import nn

    from crosscheck.adapters.hf_facts import windows

    class Attention(nn.Module):
        def __init__(self, window):
            super().__init__()
            self.sliding_window = window

    class Block(nn.Module):
        def __init__(self, window):
            super().__init__()
            self.self_attn = Attention(window)

    model = nn.Module()
    model.layers = nn.ModuleList(Block(window) for window in (5, None, 5))
    model.config = SimpleNamespace(sliding_window=5, num_hidden_layers=3)

    assert windows(model) == (5, None, 5)


def test_a_partition_stays_one_while_it_shrinks(looks):
    def fails(case):
        assert sum(op.n for op in case.ops) == case.ids.shape[1]
        return len(case.ops) > 1 and case.ops[1].n > 1

    small = shrink(fed(3, 4, 5), fails, deadline=looks() + 20)

    assert small.ops == (Append(1), Append(2))


@pytest.mark.parametrize(("wrong", "found"), [(1, []), (2, []), (9, ["head.scale"])], ids=str)
def test_a_factor_is_named_only_where_many_numbers_share_it(wrong, found):
    """As of `spec.greedy`, whose points are single numbers: each is a multiple of another."""
    right = np.arange(1.0, 13.0)[None, :, None]
    left = right.copy()
    left[0, :wrong] *= 0.9
    sides = SimpleNamespace(left={"logits": left}, right={"logits": right})
    trial = SimpleNamespace(sides=sides, wrong=left[..., 0] != right[..., 0])

    assert [each.fault for each in signs_logits.scaled(trial)] == found
