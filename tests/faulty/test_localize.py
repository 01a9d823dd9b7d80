"""Localizing finds the layer, the point and the position where a source edit takes effect."""

import pytest

from crosscheck.diagnosis.localize import localize
from tests.faulty.rates import failing
from tests.faulty.test_diagnosis import BY_NAME

# Steps of 3, 1, 4, 2, 4 tokens: the first case of cache.partition. Last, whether it was inherited:
# None where the subject captures nothing, and GPT-2's positions are added before its layers.
PLACES = {
    "torch-pos.reset-cache.partition-0-alone": (3, 1, 0, "k", None),
    "torch-mask.top_left-cache.partition-0-alone": (3, 1, 0, "attn", None),
    "torch-append.stale-cache.partition-0-alone": (3, 1, 0, "v", None),
    "torch-append.swap_kv-cache.partition-0-alone": (3, 1, 0, "k", None),
    "torch-head.scale-cache.partition-0-alone": (0, 0, None, "logits", None),
    "torch-gather.partial-cache.fork_gather-0-alone": (7, 1, 0, "v", False),
    "llama-mask.off_by_one-cache.partition-0-alone": (4, 2, 0, "attn", False),
    "gpt2-pos.off_by_one-cache.partition-0-alone": (3, 1, 0, "k", True),
}


@pytest.mark.parametrize("name", PLACES)
def test_localize_names_position_chunk_layer_and_point(name):
    case = BY_NAME[name]
    candidate, reference, tried = failing(case)

    found = localize(candidate, reference, case.relation, tried)

    place = found.position, found.chunk, found.layer, found.point, found.inherited
    assert place == PLACES[name], found.isolated
    assert found.row == 0
