"""Localizing finds the layer, the point and the position where a source edit takes effect."""

import pytest

from crosscheck.diagnosis.localize import localize
from tests.faulty.rates import failing
from tests.faulty.test_diagnosis import BY_NAME

# Steps of 3, 1, 4, 2, 4 tokens: the first case of cache.partition.
PLACES = {
    "torch-pos.reset-cache.partition-0-alone": (3, 1, 0, "k"),
    "torch-mask.top_left-cache.partition-0-alone": (3, 1, 0, "attn"),
    "torch-append.stale-cache.partition-0-alone": (3, 1, 0, "v"),
    "torch-append.swap_kv-cache.partition-0-alone": (3, 1, 0, "k"),
    "torch-head.scale-cache.partition-0-alone": (0, 0, None, "logits"),
    "llama-mask.off_by_one-cache.partition-0-alone": (4, 2, 0, "attn"),
    "gpt2-pos.off_by_one-cache.partition-0-alone": (3, 1, 0, "k"),
}


@pytest.mark.parametrize("name", PLACES)
def test_localize_names_position_chunk_layer_and_point(name):
    case = BY_NAME[name]
    candidate, reference, tried = failing(case)

    found = localize(candidate, reference, case.relation, tried)

    assert (found.position, found.chunk, found.layer, found.point) == PLACES[name]
    assert found.row == 0
    assert found.inherited is not True
