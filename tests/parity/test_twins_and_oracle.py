"""Both twins and the independent numpy decoder give one result, at every position and layer."""

import numpy as np
import pytest

from crosscheck import assert_agree, assert_greedy_agree, close, decode, semantic
from crosscheck.decoder import greedy
from tests.tiny import (
    BATCH,
    CAPACITY,
    CELLS,
    CONFIGS,
    LONGEST,
    TWINS,
    Cell,
    feed,
    ids_of,
    make_subject,
    weights,
)


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("sizes", [[24], [5, 3, 1, 15], [1] * 24], ids=["whole", "chunks", "ones"])
def test_cached_logits_agree_with_the_oracle_at_every_position(cell, sizes):
    ids = ids_of(cell, 11)

    logits, _ = feed(cell.subject, cell.subject.init(BATCH, CAPACITY), ids, sizes)

    oracle = decode(cell.config.to_dict(), weights(cell.model), ids)
    assert_agree(logits, oracle, semantic(), name="logits", names=(str(cell), "numpy"))


@pytest.mark.parametrize("model", CONFIGS)
def test_the_twins_agree_layer_by_layer(model):
    left, right = (Cell(twin, model, "contiguous") for twin in TWINS)
    ids = ids_of(left, 12)

    sides = [cell.subject.capture(ids) for cell in (left, right)]

    assert_agree(*sides, semantic(), name="captures", names=TWINS)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("model", CONFIGS)
def test_captures_agree_with_the_oracles_by_name(twin, model):
    cell, taps = Cell(twin, model, "contiguous"), {}
    ids = ids_of(cell, 13)
    decode(cell.config.to_dict(), weights(model), ids, taps=taps)

    seen = cell.subject.capture(ids)

    shared = [name for name in seen if name in taps]
    assert len(shared) == len(seen)
    assert_agree(
        {name: seen[name] for name in shared},
        {name: taps[name] for name in shared},
        semantic(),
        name="captures",
        names=(twin, "numpy"),
    )


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_greedy_ids_equal_the_oracles(cell):
    prompt = ids_of(cell, 14, batch=1, length=9)[0].tolist()

    got = cell.subject.generate([prompt], 20).new_tokens[0]

    assert got == greedy(cell.config.to_dict(), weights(cell.model), prompt, 20)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("model", CONFIGS)
def test_float32_stays_close_to_its_own_float64(twin, model):
    cell = Cell(twin, model, "contiguous")
    ids = ids_of(cell, 15)

    single = make_subject(cell, dtype="float32").full(ids)
    double = cell.subject.full(ids)

    assert single.dtype == np.float32
    # 24 positions through 2 or 3 layers: rounding errors of some 1e-6 of logits near 10.
    tolerance = close(rtol=1e-4, atol=1e-4)
    assert_agree(single.astype(np.float64), double, tolerance, name="logits")
    assert_greedy_agree(single.astype(np.float64), double, bound=1e-4)


def test_a_swapped_weight_is_seen_by_the_oracle():
    """The comparison can fail: two key heads exchanged move the logits."""
    cell = Cell("jaxkv", "llama", "contiguous")
    ids, arrays = ids_of(cell, 16, length=LONGEST), dict(weights("llama"))
    keys = arrays["layers.1.attn.k.weight"].reshape(3, 18, 40)
    arrays["layers.1.attn.k.weight"] = keys[[1, 0, 2]].reshape(54, 40)

    oracle = decode(cell.config.to_dict(), arrays, ids)

    with pytest.raises(AssertionError, match="DISAGREE logits"):
        assert_agree(cell.subject.full(ids), oracle, semantic(), name="logits")
