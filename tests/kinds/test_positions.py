"""Positions, padding and ragged batches: reports of kind A."""

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.errors import ShapeError
from tests.kinds.attention import (
    HEADS,
    arrays_of,
    attend_in_chunks,
    attend_uncached,
    draw,
    one_layer,
)
from tests.tiny import (
    BATCH,
    CAPACITY,
    CELLS,
    CONFIGS,
    TWINS,
    Cell,
    feed,
    ids_of,
    module,
    new_subject,
    weights,
)

EXACT = close(rtol=1e-10, atol=1e-10)
LENGTHS = (3, 7)
LAYERS = [cell for cell in CELLS if cell.model == "llama"]


@pytest.mark.parametrize("side", ["left", "right", "rows"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_first_real_token_of_a_padded_row_has_position_0(cell, side):
    """KV-01: the stored positions and keys of a padded row are those of its solo run."""
    subject, ids = cell.subject, ids_of(cell, 1, batch=2, length=7)

    batch = subject.generate(_prompts(ids, side), 1, keep_cache=True, **_mask(side))

    for b, length in enumerate(LENGTHS):
        solo = subject.generate([_real(ids, b, side)], 1, keep_cache=True)
        for layer in range(subject.info.num_layers):
            left, right = subject.kv(batch.cache, layer), subject.kv(solo.cache, layer)
            held = left.valid_BS[b]
            assert left.position_BS[b][held].tolist() == list(range(length))
            assert right.position_BS[0][right.valid_BS[0]].tolist() == list(range(length))
            np.testing.assert_allclose(
                left.keys_BSKH[b][held], right.keys_BSKH[0][right.valid_BS[0]], rtol=0, atol=1e-10
            )


@pytest.mark.parametrize("side", ["left", "right", "rows"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_padded_row_gets_the_ids_of_its_solo_run(cell, side):
    """KV-01: eight greedy tokens after prompts of 3 and 7."""
    subject, ids = cell.subject, ids_of(cell, 1, batch=2, length=7)

    batch = subject.generate(_prompts(ids, side), 8, **_mask(side))

    solo = [subject.generate([_real(ids, b, side)], 8).new_tokens[0] for b in range(2)]
    assert batch.new_tokens == solo


@pytest.mark.parametrize("sizes", [[5, 1, 1, 1], [6, 2], [1] * 8], ids=str)
@pytest.mark.parametrize("place", [0, 5, 6, 7])
@pytest.mark.parametrize("twin", TWINS)
def test_token_number_n_uses_position_row_n(twin, place, sizes):
    """KV-02: another row n moves the logits from token n on, whatever the call it came in."""
    cell = Cell(twin, "reference", "contiguous")
    ids, arrays = ids_of(cell, 2, length=8), weights("reference")
    moved = arrays["position.weight"].copy()
    moved[place] += np.linspace(-3, 3, moved.shape[1])
    model = module(cell, "weights").from_arrays(
        CONFIGS["reference"], dict(arrays) | {"position.weight": moved}, dtype="float64"
    )
    other, subject = new_subject(model, cell), cell.subject

    was, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)
    now, _ = feed(other, other.init(BATCH, CAPACITY), ids, sizes)

    np.testing.assert_array_equal(was[:, :place], now[:, :place])
    assert (np.abs(was[:, place:] - now[:, place:]).max(axis=(0, 2)) > 1e-6).all()
    assert_agree(now, other.full(ids), EXACT, name="logits", names=("cached", "full"))


@pytest.mark.parametrize("chunk", [1, 3, 4, 10, 999])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_chunk_size_changes_neither_the_final_logits_nor_the_cache(cell, chunk):
    """KV-03: rows of 10, 7, 4 and 1 tokens, chunks up to far beyond the prompt."""
    subject, ids = cell.subject, ids_of(cell, 3, length=10)
    lengths = np.array([10, 7, 4, 1])

    whole, at_once = subject.step(subject.init(BATCH, CAPACITY), ids, count=lengths)
    last, state = _in_chunks(subject, ids, lengths, chunk)

    final = whole[np.arange(BATCH), lengths - 1]
    assert_agree(last[:, None], final[:, None], EXACT, name="final logits")
    full = subject.full(ids, count=lengths)[np.arange(BATCH), lengths - 1]
    assert_agree(last[:, None], full[:, None], EXACT, name="final logits", names=("chunks", "full"))
    assert subject.length(state).tolist() == lengths.tolist()
    for layer in range(subject.info.num_layers):
        left, right = subject.kv(state, layer), subject.kv(at_once, layer)
        np.testing.assert_array_equal(left.position_BS, right.position_BS)
        np.testing.assert_array_equal(left.valid_BS, right.valid_BS)
        sides = [{"k": kv.keys_BSKH, "v": kv.values_BSKH} for kv in (left, right)]
        assert_agree(*sides, EXACT, name="cache", valid=left.valid_BS)


@pytest.mark.parametrize("kind", ["distance", "key"])
@pytest.mark.parametrize("cell", LAYERS, ids=str)
def test_a_bias_over_keys_survives_a_query_of_one_token(cell, kind):
    """KV-04: one query against 6 cached keys equals the last query of the uncached forward."""
    window = 5 if cell.layout == "window" else None
    config, qkv = one_layer(window), draw(4, 7)
    rule, bias = module(cell, "caches").Rule(scale=0.2, window=window), BIASES[kind](cell)

    whole = attend_uncached(cell, config, qkv, rule=rule, bias=bias)
    cached = attend_in_chunks(cell, config, qkv, [6, 1], rule=rule, bias=bias)
    plain = attend_uncached(cell, config, qkv, rule=rule)

    np.testing.assert_allclose(cached, whole, rtol=0, atol=1e-10)
    assert np.abs(whole[:, -1] - plain[:, -1]).max() > 1e-2


@pytest.mark.parametrize("sizes", [[6, 1], [3, 4], [7]], ids=str)
@pytest.mark.parametrize("cell", LAYERS, ids=str)
def test_a_bias_of_one_key_is_refused_while_more_are_held(cell, sizes):
    """KV-04: it would be added to every key alike, which softmax cancels: no bias at all."""
    window = 5 if cell.layout == "window" else None
    rule, full = module(cell, "caches").Rule(scale=0.2, window=window), BIASES["distance"](cell)

    def narrow(query_BT, key_BS):
        return full(query_BT, key_BS)[..., :1]

    with pytest.raises(ShapeError, match=r"attend: bias .*, 1\).*expected"):
        attend_in_chunks(cell, one_layer(window), draw(5, 7), sizes, rule=rule, bias=narrow)


def _distance(cell):
    def bias(query_BT, key_BS):
        slope_N11 = _slopes(cell)[:, None, None]
        return -slope_N11 * (query_BT[:, None, :, None] - key_BS[:, None, None, :])

    return bias


def _per_key(cell):
    def bias(query_BT, key_BS):
        slope_N11 = _slopes(cell)[:, None, None]
        zeros = 0 * query_BT[:, None, :, None]
        return slope_N11 * (key_BS[:, None, None, :] * 5 % 7) + zeros

    return bias


BIASES = {"distance": _distance, "key": _per_key}


def _slopes(cell):
    return arrays_of(cell)(0.15 * np.arange(1, HEADS + 1))


def _real(ids, b, side):
    return ids[b, 7 - LENGTHS[b] :] if side == "left" else ids[b, : LENGTHS[b]]


def _prompts(ids, side):
    return [_real(ids, b, side) for b in range(2)] if side == "rows" else ids


def _mask(side):
    """Return the padding mask of `generate`, or nothing where each row has its own length."""
    if side == "rows":
        return {}
    mask_BT = np.zeros((2, 7), bool)
    for b, n in enumerate(LENGTHS):
        mask_BT[b, slice(7 - n, 7) if side == "left" else slice(0, n)] = True
    return {"mask_BT": mask_BT}


def _in_chunks(subject, ids, lengths, chunk):
    state, at = subject.init(BATCH, CAPACITY), np.zeros(BATCH, int)
    last = np.zeros((BATCH, subject.info.vocab_size))
    while (at < lengths).any():
        count = np.minimum(chunk, lengths - at)
        part = np.zeros((BATCH, chunk), int)
        for b, n in enumerate(count):
            part[b, :n] = ids[b, at[b] : at[b] + n]
        logits, state = subject.step(state, part, count=count)
        done = count > 0
        last[done] = logits[done, count[done] - 1]
        at += count
    return last, state
