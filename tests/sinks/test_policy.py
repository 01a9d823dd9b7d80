"""Sinks equal StreamingLLM's own loop, positions included, and are no full attention."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxkv.spec.config import Rope
from jaxkv.spec.errors import RequestError, RollbackError, ShapeError, Unsupported
from jaxkv.spec.identity import Identity
from jaxkv.spec.scaling import DynamicScaling
from tests.quantized.alone import (
    HEADS,
    KV_HEADS,
    ROWS,
    WIDTH,
    Alone,
    attend_in_chunks,
    config,
    draw,
    parts_of,
    slope,
)
from tests.sinks.streaming import after, before, stream, stream_in_chunks
from tests.tiny import TWINS, Cell, module, shared_by

T, THETA = 30, 50.0
ROPE = Rope(THETA, WIDTH)
SIZES: dict[str, Any] = {"sinks": 2, "window": 6}
LAYOUTS = ("sinks", "sinks_absolute")
each = pytest.mark.parametrize("twin", TWINS)
both = pytest.mark.parametrize("layout", LAYOUTS)


def alone(twin, layout, *, slack=0, **options):
    return Alone(twin, layout, slack=slack, rope=ROPE, **{**SIZES, **options})


def owed(qkv, layout, evict=before):
    return stream(qkv, **SIZES, theta=THETA, evict=evict, absolute=layout == "sinks_absolute")[0]


@each
@both
@pytest.mark.parametrize("evict", [before, after])
@pytest.mark.parametrize("sizes", [[T], [1] * T, [1, 29], [7, 9, 3, 11], [9, 1, 1, 1, 18]], ids=len)
@pytest.mark.parametrize("slack", [0, 3])
def test_every_chunking_equals_the_published_loop(twin, layout, evict, sizes, slack):
    qkv = draw(0, T)

    rows = attend_in_chunks(alone(twin, layout, slack=slack), qkv, sizes)

    np.testing.assert_allclose(np.stack(rows), owed(qkv, layout, evict), rtol=0, atol=1e-13)


@shared_by([(twin, layout) for twin in TWINS for layout in LAYOUTS])
@example(counts=[[3, 0, 9], [9, 9, 9], [0, 18, 2], [1, 1, 1]], seed=0)
@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=7),
    seed=st.integers(0, 2**16),
)
def test_no_ragged_partition_changes_an_output(cell, counts, seed):
    qkv, left, kept = draw(seed, T), np.full(ROWS, T), []
    for counts_B in counts:
        counts_B = np.minimum(counts_B, left)
        left = left - counts_B
        kept.append(counts_B)

    rows = attend_in_chunks(alone(*cell, slack=3), qkv, [*kept, left], width=32)

    np.testing.assert_allclose(np.stack(rows), owed(qkv, cell[1]), rtol=0, atol=1e-13)


@each
@pytest.mark.parametrize("sizes", [[1] * T, [9, 1, 1, 1, 18]], ids=len)
def test_places_are_indices_in_the_cache_and_the_newest_key_is_no_exception(twin, sizes):
    """KV-16: keys and query were turned by two clocks: the new key kept its old rotation.

    Keys (1, -place) and queries (place, 1) have their distance as score, and one-hot values show
    each key's weight. The places that anything is turned by stay within the ring's two laps.
    """
    one, turned = alone(twin, "sinks", slack=2), []

    def show(x, at):
        turned.append(int(np.asarray(at).max()))
        # Keys alone, queries alone, or queries and behind them keys.
        is_key = np.arange(x.shape[2]) >= (0 if x.shape[2] == KV_HEADS else HEADS)
        held_NH, fixed_NH = np.eye(WIDTH)[is_key * 1], np.eye(WIDTH)[1 - is_key]
        signed_NH = one.array((1.0 - 2.0 * is_key)[:, None] * held_NH)
        return x * 0 + at[:, :, None, None] * signed_NH + one.array(fixed_NH)

    q, k, _ = draw(0, T)
    # Of the tokens that one query sees no two share a channel.
    shown = [t if t < 2 else 2 + (t - 2) % (WIDTH - 2) for t in range(T)]
    v = np.broadcast_to(np.eye(WIDTH)[shown][None, :, None], k.shape)
    scale, at = WIDTH**-0.5, 0
    seen = stream(draw(0, T), **SIZES, theta=THETA)[1]
    for size in sizes:
        cache, step = one.caches.begin(one.cache, one.array(np.full(ROWS, size, np.int32)), T=size)
        parts = [one.array(np.ascontiguousarray(x[:, at : at + size])) for x in (q, k, v)]
        out, site = one.caches.attend(cache.sites[0], step, *parts, rule=one.rule, rotate=show)
        one.cache = one.caches.commit(cache, step, (site,))
        for i, (own, places) in enumerate(seen[at : at + size]):
            weight = np.zeros(WIDTH)
            for p, place in places.items():
                weight[shown[p]] = np.exp((own - place) * scale)
            owed = weight / weight.sum()
            np.testing.assert_allclose(np.asarray(out)[0, i, 0], owed, rtol=0, atol=1e-13)
        at += size

    assert max(turned) < 2 + 2 * 8


@each
@both
def test_a_bias_is_of_positions_in_the_text(twin, layout):
    """Not of places in the cache, which keys are turned by."""
    qkv = draw(11, T)

    rows = attend_in_chunks(alone(twin, layout, bias=slope), qkv, [11, 1, 18])

    how = {**SIZES, "theta": THETA, "absolute": layout == "sinks_absolute"}
    expected, without = stream(qkv, **how, bias=slope)[0], stream(qkv, **how)[0]
    np.testing.assert_allclose(np.stack(rows), expected, rtol=0, atol=1e-13)
    assert np.abs(expected - without).max() > 1e-2


@pytest.mark.parametrize("sizes", [[1] * T, [9, 1, 1, 1, 18], [T]], ids=len)
def test_the_published_loop_over_chunks_is_another_policy(sizes):
    """`evict_for_space(n)` drops for all n tokens at once, and the first of them sees fewer keys.

    Ours applies the policy to each query, so that a chunk is as good as its tokens one by one; the
    loop over chunks depends on how a text was cut, and equals ours for forwards of one token.
    """
    qkv = draw(12, T)

    theirs = stream_in_chunks(qkv, sizes, **SIZES, theta=THETA)

    away = np.abs(theirs - owed(qkv, "sinks")).max()
    assert away < 1e-13 if max(sizes) == 1 else away > 1e-3


@each
@both
def test_the_oldest_tokens_after_the_sinks_are_dropped(twin, layout):
    """KV-17: sinks 2 and 4 recent of 0..9, by values that are one-hot of the token: 0 1 6 7 8 9."""
    one = Alone(twin, layout, rope=ROPE, sinks=2, window=4)
    q, k, _ = (np.zeros_like(x) for x in draw(0, 10))
    v = np.zeros_like(k)
    v[:, np.arange(10), :, np.arange(10)] = 1.0

    outs = [one.feed((q, k, v), 1)[0, 0, 0] for _ in range(10)]

    kept = [np.flatnonzero(out > 0).tolist() for out in outs]
    assert kept[-1] == [0, 1, 6, 7, 8, 9]
    assert kept[:7] == [*[list(range(n + 1)) for n in range(6)], [0, 1, 3, 4, 5, 6]]


@each
@both
def test_with_room_for_everything_it_is_full_attention_and_past_it_is_not(twin, layout):
    qkv = draw(2, T)
    full = np.stack(attend_in_chunks(Alone(twin, "contiguous", rope=ROPE), qkv, [T]))

    roomy = np.stack(attend_in_chunks(alone(twin, layout, window=T - 2), qkv, [11, 1, 18]))
    tight = np.stack(attend_in_chunks(alone(twin, layout), qkv, [11, 1, 18]))

    np.testing.assert_allclose(roomy, full, rtol=0, atol=1e-13)
    np.testing.assert_allclose(tight[:, :8], full[:, :8], rtol=0, atol=1e-13)
    assert (np.abs(tight[:, 8:] - full[:, 8:]).max((0, 2, 3)) > 1e-3).all()


@each
def test_the_two_variants_differ_once_something_is_dropped(twin):
    qkv = draw(3, T)

    left, right = (np.stack(attend_in_chunks(alone(twin, layout), qkv, [T])) for layout in LAYOUTS)

    np.testing.assert_allclose(left[:, :8], right[:, :8], rtol=0, atol=1e-13)
    assert (np.abs(left - right).max((0, 2, 3))[8:] > 1e-3).all()


@both
def test_the_twins_hold_the_same_keys_and_values_slot_by_slot(layout):
    held = []
    for twin in TWINS:
        one = alone(twin, layout, slack=2)
        for counts in ([14, 9, 3], 1, 7):
            one.feed(draw(13, T), counts)
        held.append([np.asarray(x) for x in one.caches.read(one.cache, 0)])

    (k, v, position, valid), (other_k, other_v, *marks) = held
    np.testing.assert_array_equal(position[valid], marks[0][valid])
    np.testing.assert_array_equal(valid, marks[1])
    np.testing.assert_allclose(k[valid], other_k[valid], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(v[valid], other_v[valid])


@each
@both
def test_the_promises_fresh_and_clean_change_nothing(twin, layout):
    qkv, one = draw(4, T), alone(twin, layout)

    outs = [one.feed(qkv, 13, fresh=True, clean=True), one.feed(qkv, 17, clean=True)]

    np.testing.assert_allclose(np.concatenate(outs, 1), owed(qkv, layout), rtol=0, atol=1e-13)


@each
@both
def test_nan_in_unused_slots_reaches_no_output(twin, layout):
    qkv, one, outs = draw(5, T), alone(twin, layout, slack=2), []
    for size in (5, 1, 8, 1, 15):
        one.cache = one.caches.poison(one.cache)
        outs.append(one.feed(qkv, size))

    np.testing.assert_allclose(np.concatenate(outs, 1), owed(qkv, layout), rtol=0, atol=1e-13)


@each
@both
@pytest.mark.parametrize("back", [1, 3])
def test_rollback_within_the_slack_is_exact_and_past_it_refused(twin, layout, back):
    wrong, right = draw(6, T), draw(7, T)
    mixed = tuple(
        np.concatenate([a[:, :16], b[:, 16:]], 1) for a, b in zip(right, wrong, strict=True)
    )
    one = alone(twin, layout, slack=3)
    one.feed(mixed, 16 + back)
    with pytest.raises(RollbackError, match=f"has evicted what lies below {16 + back - 3}"):
        one.caches.rollback(one.cache, one.array(np.full(ROWS, 16 + back - 4, np.int32)))

    one.cache = one.caches.rollback(one.cache, one.array(np.full(ROWS, 16, np.int32)))
    one.cache = one.caches.poison(one.cache)
    outs = [one.feed(right, size) for size in (1, 1, 12)]

    expected = owed(right, layout)[:, 16:]
    np.testing.assert_allclose(np.concatenate(outs, 1), expected, rtol=0, atol=1e-13)


@each
@both
def test_rows_can_be_gathered_and_forked(twin, layout):
    qkv, one = draw(8, T), alone(twin, layout)
    one.feed(qkv, 14)
    fork = one.caches.fork(one.cache)

    one.cache = one.caches.gather(fork, one.array(np.array([2, 0, 0], np.int32)))
    rows = [2, 0, 0]
    out = one.feed(tuple(x[rows] for x in qkv), 5)

    np.testing.assert_allclose(out, owed(qkv, layout)[rows, 14:19], rtol=0, atol=1e-13)


@each
@both
@pytest.mark.parametrize("whose", ["fork", "first"])
def test_a_fork_and_its_first_live_on_apart(twin, layout, whose):
    """One goes on with other tokens, in place where the twin writes so: the other sees none."""
    qkv, other, one = draw(8, T), draw(9, T), alone(twin, layout)
    one.feed(qkv, 14)
    first, fork = one.cache, one.caches.fork(one.cache)

    one.cache = first if whose == "fork" else fork
    one.feed(other, 1)
    one.feed(other, 9)
    one.cache = fork if whose == "fork" else first
    outs = [one.feed(qkv, size) for size in (1, 9)]

    np.testing.assert_allclose(
        np.concatenate(outs, 1), owed(qkv, layout)[:, 14:24], rtol=0, atol=1e-13
    )


@each
@both
def test_a_cache_from_disk_goes_on_as_the_one_that_was_saved(twin, layout, tmp_path):
    """Past the window: sinks, the ring in its own order, and peaks, which say where it stands."""
    qkv, one = draw(10, T), alone(twin, layout, slack=2)
    one.feed(qkv, [14, 9, 3])
    whose = {"identity": Identity(config(ROPE), "none", "float64", layout)}
    one.caches.save(one.cache, tmp_path / "cache", **whose, tokens=[[0] * n for n in (14, 9, 3)])
    empty = alone(twin, layout, slack=2)

    empty.cache = empty.caches.load(tmp_path / "cache", empty.cache, **whose)

    for name, x in parts_of(one.cache).items():
        np.testing.assert_array_equal(parts_of(empty.cache)[name], x, err_msg=name)
    out, held = empty.feed(qkv, 7), (14, 9, 3)
    expected = np.stack([owed(qkv, layout)[b, n : n + 7] for b, n in enumerate(held)])
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13)


@each
def test_a_file_of_keys_from_before_rotation_is_refused_by_what_they_are_turned_by(twin, tmp_path):
    """Earlier, arrays of the same names and shapes held keys as they came."""
    one = alone(twin, "sinks")
    one.feed(draw(10, T), 14)
    whose = {"identity": Identity(config(ROPE), "none", "float64", "sinks")}
    one.caches.save(one.cache, tmp_path / "cache", **whose, tokens=[[0] * 14] * ROWS)
    with safe_open(tmp_path / "cache", "numpy") as file:
        notes = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no mapping
    old = {**notes, "form": notes["form"].replace("turned_by=slot", "turned=False")}
    save_file(arrays, tmp_path / "cache", metadata=old)

    with pytest.raises(ShapeError, match=r"turned=False.*turned_by=slot"):
        one.caches.load(tmp_path / "cache", one.cache, **whose)


BAD = {
    "no sinks": (
        {"sinks": 0},
        "init: sinks is 0, expected at least 1. Without sinks there is no such layout: use 4.",
    ),
    "no window": (
        {"window": 0},
        "init: window is 0, expected a whole number of at least 1. Use 1020.",
    ),
    "room": (
        {"sinks": 44},
        "init: sinks is 44, expected at most 43 (capacity 44 with room for one recent token). "
        "Raise capacity or lower sinks.",
    ),
    "half": (
        {"window": 2.5},
        "init: window is 2.5, expected a whole number of at least 1. Use 1020.",
    ),
}


@each
@both
@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_kept_is_refused(twin, layout, options, message):
    with pytest.raises(RequestError) as error:
        alone(twin, layout, **options)

    assert str(error.value).startswith(message)


@each
@pytest.mark.parametrize(
    ("rope", "what"),
    [(None, "no rotary positions"), ("dynamic", "rotary speeds by the length")],
    ids=["learned", "dynamic"],
)
def test_positions_that_cannot_be_turned_by_index_are_refused(twin, rope, what):
    caches = module(Cell(twin, "llama", "sinks"), "caches")
    if rope is not None:
        rope = replace(ROPE, scaling=DynamicScaling(2.0, 16))
    with pytest.raises(Unsupported, match=what):
        caches.init(config(rope), batch=1, capacity=20, dtype="float64", layout="sinks", **SIZES)

    caches.init(config(rope), batch=1, capacity=20, dtype="float64", layout=LAYOUTS[1], **SIZES)
