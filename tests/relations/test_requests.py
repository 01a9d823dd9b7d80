"""Requests come and go row by row, on every layout: one is given up, another begins there."""

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.errors import ShapeError
from tests.kinds.attention import arrays_of
from tests.tiny import BATCH, CAPACITY, CELLS, feed, ids_of, module

EXACT = close(rtol=1e-10, atol=1e-10)
cells = pytest.mark.parametrize("cell", CELLS, ids=str)


@cells
def test_a_request_begun_in_a_row_that_was_reset_equals_its_solo_run(cell):
    """The rows beside it go on with their own texts, past every window."""
    subject, ids, new = cell.subject, ids_of(cell, 41), ids_of(cell, 42)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [8, 6])
    only_B = arrays_of(cell)(np.array([False, True, False, True]))

    state = module(cell, "caches").reset(state, only_B)
    assert subject.length(state).tolist() == [14, 0, 14, 0]
    chunk = np.where(np.asarray(only_B)[:, None], new[:, :8], ids[:, 14:22])
    logits, state = subject.step(state, chunk)

    assert_agree(logits[::2], subject.full(ids[:, :22])[::2, 14:], EXACT, name="went on")
    assert_agree(logits[1::2], subject.full(new[:, :8])[1::2], EXACT, name="begun anew")


@cells
def test_a_forked_row_goes_on_as_the_row_that_it_was_forked_from(cell):
    subject, ids, more = cell.subject, ids_of(cell, 43), ids_of(cell, 44)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [8, 3])

    state = module(cell, "caches").fork_row(state, 2, 0)
    logits, _ = feed(subject, state, more[:, :4], [1, 3])

    texts = np.concatenate([ids[[2, 1, 2, 3], :11], more[:, :4]], axis=1)
    assert_agree(logits, subject.full(texts)[:, 11:], EXACT, name="logits")


@cells
def test_a_reset_of_another_number_of_rows_is_refused(cell):
    state = cell.subject.init(BATCH, CAPACITY)

    with pytest.raises(ShapeError) as error:
        module(cell, "caches").reset(state, arrays_of(cell)(np.array([True])))

    assert str(error.value) == "reset: only_B has shape (1,), expected (4,), one mark a row."
