"""Texts far beyond what fits: a ring's memory stays, and its arithmetic holds up to 2^31 - 1."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.errors import CapacityError
from jaxkv.spec.tiny import llama
from tests.kinds.attention import arrays_of
from tests.tiny import TWINS, Cell, module

EXACT = close(rtol=1e-10, atol=1e-10)
WINDOW, SLACK, MOST = 5, 3, 2**31 - 1
twins = pytest.mark.parametrize("twin", TWINS)


def config_of(*windows):
    """Return a config without rotary positions, of as many positions as an int32 has."""
    config = llama(*windows)
    layers = tuple(replace(x, attention=replace(x.attention, rope=None)) for x in config.layers)
    return replace(config, layers=layers, max_positions=MOST)


def ring_at(twin, length, *, capacity=MOST):
    """Return a ring whose two rows have seen `length` tokens."""
    cell = Cell(twin, "llama", "window")
    caches, array = module(cell, "caches"), arrays_of(cell)
    sizes = {"batch": 2, "capacity": capacity, "slack": SLACK, "layout": "window"}
    cache = caches.init(config_of(WINDOW), dtype="float64", **sizes)
    length_B = array(np.full(2, length, np.int32))
    return caches, array, replace(cache, length_B=length_B, peak_B=length_B + 0)


def attended(twin, start, sizes):
    """Return what 24 tokens from a position on see of each other, in chunks of the given sizes."""
    caches, array, cache = ring_at(twin, start)
    rng, outs = np.random.default_rng(8), []
    q, k, v = (rng.normal(size=(2, 24, heads, 18)) for heads in (6, 3, 3))
    at = 0
    for size in sizes:
        count = array(np.full(2, size, np.int32))
        cache, step = caches.begin(cache, count, T=size)
        chunk = (array(x[:, at : at + size]) for x in (q, k, v))
        rule = caches.Rule(scale=0.2, window=WINDOW)
        out, site = caches.attend(cache.sites[0], step, *chunk, rule=rule)
        cache = caches.commit(cache, step, (site,))
        outs.append(np.asarray(out))
        at += size
    caches.check(cache)
    return np.concatenate(outs, axis=1)[:, WINDOW:], cache


@twins
@pytest.mark.parametrize("sizes", [[1] * 24, [3, 1, 9, 11]], ids=["ones", "chunks"])
def test_the_last_positions_of_an_int32_are_as_good_as_the_first(twin, sizes):
    """What a full window shows depends on ages alone, so tokens 0 to 23 and the last 24 agree."""
    first, _ = attended(twin, 0, sizes)
    last, cache = attended(twin, MOST - 24, sizes)

    assert_agree(last, first, EXACT, name="outputs", names=("last 24 positions", "first 24"))
    caches = module(Cell(twin, "llama", "window"), "caches")
    assert cache.length_B.tolist() == [MOST, MOST]
    assert sorted(np.asarray(caches.read(cache, 0)[2])[0].tolist()) == [
        MOST - n for n in range(WINDOW + SLACK, 0, -1)
    ]
    assert np.asarray(caches.read(cache, 0)[3]).all()
    back = caches.rollback(cache, cache.length_B - SLACK)
    assert back.length_B.tolist() == [MOST - SLACK] * 2


@twins
@pytest.mark.parametrize("probe", ["poison", "scrub"])
def test_a_probe_leaves_alone_what_the_next_query_sees(twin, probe):
    _, cache = attended(twin, MOST - 25, [24])
    caches = module(Cell(twin, "llama", "window"), "caches")
    before = [np.asarray(x) for x in caches.read(cache, 0)[:2]]

    cache = getattr(caches, probe)(cache)

    kept = np.asarray(caches.read(cache, 0)[2])[0] > MOST - 1 - WINDOW
    assert kept.sum() == WINDOW - 1  # and its own key, which is still to come
    for old, new in zip(before, caches.read(cache, 0)[:2], strict=True):
        np.testing.assert_array_equal(np.asarray(new)[:, kept], old[:, kept])


@twins
def test_a_step_past_the_last_position_is_refused_and_not_wrapped(twin):
    """Length + count exceeds an int32 here, and would be negative."""
    caches, array, cache = ring_at(twin, MOST - 5)

    cache, step = caches.begin(cache, array(np.array([6, 5], np.int32)), T=8)

    assert step.count_B.tolist() == [0, 5]
    assert step.excess_B.tolist() == [1, 0]
    with pytest.raises(CapacityError, match=f"capacity {MOST} with {MOST - 5} held"):
        caches.check(caches.commit(cache, step, cache.sites))


@twins
def test_a_rings_memory_does_not_follow_the_length(twin):
    """KV-14: W + slack slots in the ring; what stands beside it, contiguous, follows the length."""
    caches = module(Cell(twin, "llama", "window"), "caches")
    sizes = {"batch": 2, "slack": SLACK, "layout": "window", "dtype": "float32"}
    ring = [
        caches.nbytes(caches.init(config_of(WINDOW, WINDOW), capacity=capacity, **sizes))
        for capacity in (64, 1 << 20, MOST)
    ]
    mixed = [
        caches.nbytes(caches.init(config_of(WINDOW, None), capacity=capacity, **sizes))
        for capacity in (64, 128)
    ]

    marks, token = 3 * 4 * 2, 2 * 3 * 2 * 18 * 4
    assert ring == [marks + 2 * (WINDOW + SLACK) * token] * 3
    assert mixed == [marks + (WINDOW + SLACK + capacity) * token for capacity in (64, 128)]
