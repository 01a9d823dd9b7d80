"""The verb that gives each row several branches, and what it leaves where it is."""

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.errors import RequestError
from tests.encoder.test_cross_cache import CELLS as ENCODER_CELLS
from tests.encoder.test_cross_cache import subject_of
from tests.kinds.attention import arrays_of
from tests.tiny import DEEP, TWINS, Cell, make_subject, module

TIMES = 3
LAYOUTS = ("contiguous", "paged", "window")
CELLS = [
    Cell(twin, "llama", layout)
    for twin in TWINS
    for layout in LAYOUTS
    if DEEP or twin == "torchkv" or layout != "window"
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_spread_rows_are_gathered_rows(cell):
    """As `cache.fork_gather` asks of every reorder: keys, values, lengths and pages."""
    subject, caches = make_subject(cell), module(cell, "caches")
    ids = np.arange(4 * 8).reshape(4, 8)
    _, state = subject.step(subject.init(4, 24), ids)
    rows = arrays_of(cell)(np.repeat(np.arange(4, dtype=np.int32), TIMES))
    gathered = caches.gather(state, rows)
    spread = caches.spread(state, TIMES)

    assert np.asarray(spread.length_B).tolist() == np.asarray(gathered.length_B).tolist()
    for layer in range(len(spread.sites)):
        for ours, theirs in zip(
            caches.read(spread, layer), caches.read(gathered, layer), strict=True
        ):
            shape = (1, 1, -1)
            pair = (np.asarray(x, np.float64).reshape(shape) for x in (ours, theirs))
            assert_agree(*pair, close(rtol=0, atol=0), name=f"layer {layer}")
    if cell.layout == "paged":
        assert np.asarray(spread.shared.count_A).max() == TIMES


@pytest.mark.parametrize("cell", ENCODER_CELLS if DEEP else ENCODER_CELLS[:3:2], ids=str)
def test_what_an_encoder_read_is_neither_copied_nor_moved(cell):
    subject, caches = subject_of(cell), module(cell, "caches")
    state = subject.init(2, 12, encoder=np.array([[5, 6, 7], [8, 9, -1]]))
    spread = caches.spread(state, TIMES)
    turned = caches.gather(spread, arrays_of(cell)(np.array([2, 0, 0, 3, 5, 4], np.int32)))

    cross = [i for i, site in enumerate(state.sites) if type(site).__name__ == "CrossSite"]
    assert cross
    for i in cross:
        assert turned.sites[i] is spread.sites[i] is state.sites[i]
    with pytest.raises(RequestError, match=r"rows_B\[2\] is 3, a row of another source"):
        caches.gather(spread, arrays_of(cell)(np.array([0, 1, 3, 3, 4, 5], np.int32)))


@pytest.mark.parametrize("twin", TWINS)
def test_a_row_stands_at_least_once(twin):
    cell = Cell(twin, "llama", "contiguous")
    state = make_subject(cell).init(2, 8)

    with pytest.raises(RequestError) as error:
        module(cell, "caches").spread(state, 0)

    assert str(error.value) == "spread: times is 0, expected at least 1. Leave it out."
