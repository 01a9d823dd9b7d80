"""Every fault shows in the cache as its row of the first-differing-entry table says."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck.errors import CrosscheckError
from crosscheck.faults import FAULTS
from tests.faults.entries import (
    BACK,
    CHUNKS,
    FORKED,
    IDS_BT,
    LATE,
    ORDER,
    OVERFULL,
    PADDED,
    RAGGED,
    First,
    first_difference,
)
from tests.toys import FLAVORS, Toy, ToyConfig

PLAIN, RING = FLAVORS["gqa"], Toy(ToyConfig(windows=(5, 5, 5)), slack=20)
POSITIONS = {
    "pos.reset": (PLAIN, CHUNKS),
    "pos.off_by_one": (PLAIN, CHUNKS),
    "pos.off_by_one.early": (PLAIN, CHUNKS),
    "pos.single_reset": (PLAIN, CHUNKS),
    "pos.pad_shift": (PLAIN, PADDED),
    "pos.shared_length": (PLAIN, RAGGED),
    "rope.twice": (PLAIN, CHUNKS),
    "rope.dynamic": (PLAIN, CHUNKS),
    "rollback.positions": (PLAIN, BACK),
    "window.slot_position": (RING, CHUNKS),
}
ATTENTION = {
    "pos.reset.queries": (PLAIN, CHUNKS),
    "mask.top_left": (PLAIN, CHUNKS),
    "mask.none": (PLAIN, CHUNKS),
    "mask.none.later": (PLAIN, CHUNKS),
    "mask.off_by_one": (PLAIN, CHUNKS),
    "mask.off_by_one.narrow": (PLAIN, CHUNKS),
    "mask.prompt_hidden": (PLAIN, CHUNKS),
    "pad.attended": (PLAIN, PADDED),
    "mask.empty_row_nan": (PLAIN, PADDED),
    "state.dropped": (PLAIN, CHUNKS),
    "window.off_by_one": (RING, CHUNKS),
    "window.off_by_one.wide": (RING, CHUNKS),
    "window.cache_only": (PLAIN, CHUNKS),
    "window.chunk_drops_past": (RING, (("feed", 4), ("feed", 6))),
    "window.chunk_drops_past.shifted": (RING, (("feed", 4), ("feed", 6))),
    "window.chunk_too_wide": (RING, CHUNKS),
    "window.evicts_newest": (RING, CHUNKS),
    "capacity.as_length": (PLAIN, CHUNKS),
    "capacity.shrinks_window": (PLAIN, OVERFULL),
}
WRITE = {
    "append.stale": (PLAIN, CHUNKS),
    "append.stale.values": (PLAIN, CHUNKS),
    "append.swap_kv": (PLAIN, CHUNKS),
    "append.dtype": (PLAIN, CHUNKS),
    "append.dtype.float16": (PLAIN, CHUNKS),
    "concat.axis": (PLAIN, CHUNKS),
    "rows.leak": (PLAIN, CHUNKS),
    "gqa.tile": (PLAIN, CHUNKS),
    "layout.transposed": (PLAIN, CHUNKS),
    "mla.scale": (FLAVORS["mla"], CHUNKS),
}
OVERWRITE = {
    "write.overlap": (PLAIN, CHUNKS),
    "page.alias": (PLAIN, (("feed", 2), ("feed", 1))),
    "capacity.clamp": (PLAIN, OVERFULL),
    "rollback.leak": (PLAIN, BACK),
    "rollback.evicted": (RING, LATE),
    "fork.alias": (PLAIN, FORKED),
}
BOOKKEEPING = {
    "append.double": (PLAIN, CHUNKS),
    "append.double.counted": (PLAIN, CHUNKS),
    "prompt.reprocessed": (PLAIN, CHUNKS),
    "rollback.reset": (PLAIN, BACK),
    "rollback.ignored": (PLAIN, BACK),
    "count.ignored": (PLAIN, RAGGED),
    "length.from_ring": (RING, CHUNKS),
}
OUTPUT = {
    name: (PLAIN, CHUNKS)
    for name in ("head.scale", "head.cap", "head.slice", "head.slice.shifted", "train.mode")
} | {"weights.untied": (PLAIN, CHUNKS)}
ROOM = {"capacity.clamp": 10, "capacity.shrinks_window": 8, "capacity.as_length": 20}


def differs(name: str, subject: Toy, ops: tuple) -> First:
    """Return what a planted fault changes first."""
    found = first_difference(subject, FAULTS[name].plant(subject), ops, ROOM.get(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_show_in_the_first_keys_and_only_later_in_values(name: str) -> None:
    first = differs(name, *POSITIONS[name])

    assert FAULTS[name].shows == "positions"
    assert (first.k_layer, first.v_layer) == (0, 1)
    assert (first.op > 0, first.before, first.new) == (True, False, True)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_wrong_read_leaves_the_first_layer_clean(name: str) -> None:
    first = differs(name, *ATTENTION[name])

    assert FAULTS[name].shows == "attention"
    assert (first.k_layer, first.v_layer) == (1, 1)
    assert first.logits


@pytest.mark.parametrize("name", WRITE)
def test_a_wrong_write_shows_in_the_new_slots_of_the_first_layer(name: str) -> None:
    first = differs(name, *WRITE[name])

    assert FAULTS[name].shows == "write"
    assert 0 in (first.k_layer, first.v_layer)
    assert (first.before, first.new, first.logits) == (False, True, False)


@pytest.mark.parametrize("name", OVERWRITE)
def test_a_write_over_older_tokens_shows_before_the_chunk(name: str) -> None:
    first = differs(name, *OVERWRITE[name])

    assert FAULTS[name].shows == "overwrite"
    assert first.before or first.length


@pytest.mark.parametrize("name", BOOKKEEPING)
def test_bookkeeping_shows_in_the_length(name: str) -> None:
    assert FAULTS[name].shows == "bookkeeping"
    assert differs(name, *BOOKKEEPING[name]).length


@pytest.mark.parametrize("name", OUTPUT)
def test_a_wrong_output_leaves_the_whole_cache_clean(name: str) -> None:
    first = differs(name, *OUTPUT[name])

    assert FAULTS[name].shows == "output"
    assert (first.k_layer, first.v_layer, first.length, first.logits) == (None, None, False, True)


def test_dropout_shows_from_one_run_to_the_next() -> None:
    planted = FAULTS["train.dropout"].plant(PLAIN)

    assert FAULTS["train.dropout"].shows == "run"
    assert (planted.full(IDS_BT) != planted.full(IDS_BT)).any()


class Counting(Toy):
    """A toy that tells how many tokens it has run."""

    forwarded_positions = 0

    def _row(self, ids, b, raw_T, *rest):
        type(self).forwarded_positions += len(raw_T)
        return super()._row(ids, b, raw_T, *rest)


def test_work_done_again_shows_only_in_the_count_of_tokens() -> None:
    planted, before = FAULTS["work.recomputed"].plant(Counting()), Counting.forwarded_positions
    again = sum((4, 5, 9, 12)) * 3

    assert first_difference(PLAIN, planted, CHUNKS) is None
    assert Counting.forwarded_positions - before == sum(n for _, n in CHUNKS) * 3 + again


def test_a_subject_that_does_not_count_cannot_have_it() -> None:
    with pytest.raises(CrosscheckError, match="has no forwarded_positions to show it"):
        FAULTS["work.recomputed"].plant(PLAIN)


def test_a_stale_model_shows_in_the_second_request_only() -> None:
    planted = FAULTS["model.stale"].plant(PLAIN)
    first, second = (planted.step(planted.init(3, 24), IDS_BT)[0] for _ in range(2))

    assert (first == PLAIN.step(PLAIN.init(3, 24), IDS_BT)[0]).all()
    assert (second != first).any()


def test_no_mask_is_invisible_to_single_tokens_and_total_in_chunks() -> None:
    planted = FAULTS["mask.none"].plant(PLAIN)
    ones, chunks = (("feed", 1),) * 12, (("feed", 4), ("feed", 4))

    assert first_difference(PLAIN, planted, ones) is None
    assert first_difference(PLAIN, planted, chunks) is not None


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_subject_leaves_the_right_one_as_it_was(name: str) -> None:
    flavors = (*FLAVORS.values(), RING)
    subject = next(toy for toy in flavors if not FAULTS[name].missing(toy.info))
    if name == "work.recomputed":
        subject = Counting()
    encoder = {"encoder": subject.encoder_inputs(3, 1)} if subject.config.cross else {}
    before = subject.full(IDS_BT[:, :8], **encoder)

    planted = FAULTS[name].plant(subject)
    planted.step(planted.init(3, 24, **encoder), IDS_BT[:, :8])

    assert (subject.full(IDS_BT[:, :8], **encoder) == before).all()
    assert planted.info == replace(subject.info, name=f"{subject.info.name} with {name}")


def test_every_fault_says_what_is_wrong_where_to_look_and_of_which_kind_it_is() -> None:
    for fault in FAULTS.values():
        assert fault.about.endswith(".")
        assert fault.advice.endswith(".")
        assert fault.kinds
        assert fault.kinds <= set("ABCDEFGHIJKLMNOP")
    assert set("ABCDEFGHIJKLMNOP") == {k for fault in FAULTS.values() for k in fault.kinds}


def test_ordering_faults_show_in_the_rows() -> None:
    names = ("gather.partial", "gather.partial.old", "gather.skipped", "gather.inverse")

    found = [first_difference(PLAIN, FAULTS[name].plant(PLAIN), ORDER) for name in names]

    assert all(first is not None and first.op == 1 and first.v_layer == 0 for first in found)
    assert np.array_equal([first.k_layer for first in found if first], [None, 0, 0, 0])
