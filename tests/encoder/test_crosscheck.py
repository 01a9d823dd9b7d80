"""crosscheck drives the twins beside an encoder: it sees its faults there, and nothing else."""

import pytest

from crosscheck.selftest import selftest
from tests.encoder.test_cross_cache import CELLS, subject_of
from tests.tiny import DEEP

# jaxkv compiles each width anew; what differs between the families is the model, not the cache.
FEW = [cell for cell in CELLS if DEEP or cell.twin == "torchkv" or cell.model == "bart"]


@pytest.mark.parametrize("cell", FEW, ids=str)
def test_another_rows_or_requests_source_is_seen_and_faults_know_of_the_source(cell):
    faults = "cross.*,work.recomputed,append.swap_kv"
    matrix = selftest(subject_of(cell), relations="core", faults=faults, depth="first")

    assert (matrix.survivors, matrix.blind, matrix.notes) == ((), (), ())
    assert matrix.killed == matrix.planted == 4
