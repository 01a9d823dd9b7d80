"""The ring equals full attention under the banded mask, far past its window, and means W keys."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crosscheck import assert_agree, close, decode
from jaxkv.spec.tiny import llama
from tests.tiny import BATCH, CAPACITY, CELLS, TWINS, Cell, feed, ids_of, module, shared_by, weights

EXACT = close(rtol=1e-10, atol=1e-10)
FAR = 41
RINGS = [cell for cell in CELLS if cell.layout == "window"]


@st.composite
def long_partitions(draw):
    sizes, left = [], FAR
    while left:
        size = draw(st.integers(1, min(left, 24)))
        sizes.append(size)
        left -= size
    return sizes


@shared_by(RINGS)
@example(sizes=[1] * FAR, seed=0)
@example(sizes=[24, 17], seed=1)
@example(sizes=[4, 1, 4, 5, 3, 24], seed=2)
@given(sizes=long_partitions(), seed=st.integers(0, 2**16))
def test_the_ring_equals_full_attention_under_the_banded_mask_far_past_w(cell, sizes, seed):
    """KV-08, KV-12, KV-14: prefill, chunks and decode agree on what a window is."""
    subject, ids = cell.subject, ids_of(cell, seed, length=FAR)

    logits, state = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)

    assert_agree(logits, subject.full(ids), EXACT, name="logits", names=("ring", "band"))
    assert subject.length(state).tolist() == [FAR] * BATCH


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("sizes", [[10], [1] * 10, [4, 1, 1, 1, 1, 1, 1], [3, 3, 3, 1]], ids=str)
def test_a_window_of_w_means_w_keys_the_queries_own_among_them(twin, sizes):
    """KV-08, KV-11: with one-hot values the output shows which keys each query saw."""
    cell = Cell(twin, "llama", "window")
    seen = _visible_counts(module(cell, "caches"), twin, sizes)

    np.testing.assert_array_equal(seen, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4])


@pytest.mark.parametrize("cell", RINGS, ids=str)
def test_local_layers_hold_no_more_than_window_and_slack(cell):
    """KV-13, KV-14: memory follows the window, the length every token, whatever the layer order."""
    subject, ids = cell.subject, ids_of(cell, 8)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [24])

    slots = [subject.kv(state, layer).keys_BSKH.shape[1] for layer in range(3)]

    assert slots == [5 + 3, CAPACITY, 8 + 3]
    assert subject.length(state).tolist() == [24] * BATCH


@pytest.mark.parametrize("cell", RINGS, ids=str)
def test_the_ring_reports_the_positions_that_it_holds(cell):
    subject, ids = cell.subject, ids_of(cell, 8)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [20])

    kv = subject.kv(state, 0)

    assert kv.valid_BS.all()
    assert sorted(kv.position_BS[0].tolist()) == list(range(12, 20))
    whole = _keys_of(cell, ids[:, :20])
    rows = np.arange(BATCH)[:, None]
    np.testing.assert_allclose(kv.keys_BSKH, whole[rows, kv.position_BS], rtol=0, atol=1e-12)


def _keys_of(cell, ids):
    taps = {}
    decode(cell.config.to_dict(), weights(cell.model), ids, taps=taps)
    return taps["layers.0.k"]


def _visible_counts(caches, twin, sizes):
    """Feed equal keys and one-hot values of the position: the output averages what was seen."""
    tokens = sum(sizes)
    config = llama(4)
    site_config = type(config.layers[0].attention)(1, 1, 18, 4, None, False, False)
    config = type(config)(
        **{
            **config.__dict__,
            "layers": (type(config.layers[0])(site_config, config.layers[0].mlp),),
        }
    )
    cache = caches.init(config, batch=1, capacity=32, dtype="float64", layout="window")
    array = _array(twin)
    counts, at = [], 0
    for size in sizes:
        cache, step = caches.begin(cache, array(np.full(1, size, np.int32)), T=size)
        values = np.zeros((1, size, 1, 18))
        values[0, np.arange(size), 0, at + np.arange(size)] = 1.0
        zeros = array(np.zeros((1, size, 1, 18)))
        out, site = caches.attend(
            cache.sites[0], step, zeros, zeros, array(values), rule=caches.Rule(scale=1.0, window=4)
        )
        cache = caches.commit(cache, step, (site,))
        counts += [int((row > 1e-9).sum()) for row in np.asarray(out)[0, :, 0]]
        at += size
    assert at == tokens
    return counts


def _array(twin):
    if twin == "torchkv":
        import torch

        return torch.from_numpy
    import jax.numpy as jnp

    return jnp.asarray


@pytest.mark.parametrize("twin", TWINS)
def test_without_causality_a_fresh_step_sees_every_key(twin):
    """In every block of queries, of which 200 tokens need two."""
    caches = module(Cell(twin, "llama", "window"), "caches")
    config, array = llama(None), _array(twin)
    cache = caches.init(config, batch=1, capacity=200, dtype="float64", layout="uncached")
    cache, step = caches.begin(cache, array(np.full(1, 200, np.int32)), T=200, fresh=True)
    k = array(np.zeros((1, 200, 3, 18)))
    values = np.random.default_rng(0).standard_normal((1, 200, 3, 18))
    q = array(np.zeros((1, 200, 6, 18)))
    rule = caches.Rule(scale=1.0, causal=False)

    out, _ = caches.attend(cache.sites[0], step, q, k, array(values), rule=rule)

    mean = values.mean(1).repeat(2, axis=1)
    np.testing.assert_allclose(
        np.asarray(out), np.broadcast_to(mean[:, None], (1, 200, 6, 18)), atol=1e-12
    )
