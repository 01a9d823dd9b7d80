"""Requests that come and go in one pool: a row forked, begun from pages, and pages held outside."""

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError, Unsupported
from tests.paged.verbs import Driver, assert_sound, copied, counts, free, held, table
from tests.tiny import TWINS, Cell

both = pytest.mark.parametrize("twin", TWINS)


def driver(twin):
    return Driver(Cell(twin, "llama", "paged"))


def text(start, length):
    return list(range(start, start + length))


@both
def test_a_forked_row_shares_every_page_until_one_of_the_two_writes(twin):
    """KV-34: a fork on purpose, of a row onto another one's place, whose pages are released."""
    d = driver(twin)
    cache = d.append(d.init(batch=3, capacity=16, page_size=4), [text(1, 10), text(30, 9), []])

    cache = d.caches.fork_row(cache, 0, 1)

    assert held(cache) == [3, 3, 0]
    assert (copied(cache), free(cache)) == (0, 12 - 3)
    assert_sound(cache)
    cache = d.append(cache, [[50], [60], []])
    assert d.texts(cache) == [[*text(1, 10), 50], [*text(1, 10), 60], []]
    assert (copied(cache), free(cache)) == (1, 12 - 4)
    assert_sound(cache)


@both
def test_one_row_is_reset_and_another_request_begins_in_it(twin):
    """Admit and abort: the other rows' pages, tokens and marks are as they were."""
    d = driver(twin)
    cache = d.append(d.init(batch=3, capacity=8, page_size=4), [text(1, 8), text(20, 6), [40]])
    cache = d.append(cache, [[9], [], [41]])
    assert cache.overflow_B.tolist() == [1, 0, 0]
    pages = table(cache)

    aborted = d.caches.reset(cache, d.array(np.array([False, True, False])))

    assert aborted.overflow_B.tolist() == [1, 0, 0]
    assert held(aborted) == [2, 0, 1]
    assert_sound(aborted)
    admitted = d.append(aborted, [[], text(60, 5), [42]])
    assert d.texts(admitted) == [text(1, 8), text(60, 5), text(40, 3)]
    np.testing.assert_array_equal(table(admitted), pages)


@both
def test_pages_freed_and_taken_again_come_in_the_order_of_the_text(twin):
    """As if they had been put back in reverse on a stack: the next request gets the same ones."""
    d = driver(twin)
    cache = d.append(d.init(batch=2, capacity=16, page_size=4), [text(1, 13), text(30, 3)])
    first = table(cache)[0]

    cache = d.append(d.rollback(cache, [0, 3]), [text(50, 13), []])

    np.testing.assert_array_equal(table(cache)[0], first)
    assert first.tolist() == sorted(first.tolist())


@both
def test_a_row_begins_with_pages_that_another_has_filled(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=3, capacity=16, page_size=4), [text(1, 9), [], []])

    cache = d.caches.adopt(cache, 2, table(cache)[0, :2], 8)

    assert d.texts(cache) == [text(1, 9), [], text(1, 8)]
    assert counts(cache)[table(cache)[0]].tolist() == [2, 2, 1, 0]
    assert_sound(cache)
    cache = d.append(cache, [[], [], text(50, 3)])
    assert d.texts(cache) == [text(1, 9), [], text(1, 8) + text(50, 3)]
    assert copied(cache) == 0


@both
def test_a_partly_filled_page_that_was_adopted_is_copied_by_the_first_write(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=2, capacity=16, page_size=4), [text(1, 6), []])

    cache = d.caches.adopt(cache, 1, table(cache)[0, :2], 5)
    cache = d.append(cache, [[], [70, 71]])

    assert d.texts(cache) == [text(1, 6), [*text(1, 5), 70, 71]]
    assert copied(cache) == 1
    assert_sound(cache)


@both
def test_a_held_page_outlives_its_row_and_is_free_when_released(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=2, capacity=8, page_size=4, pool_pages=3), [text(1, 7), []])
    kept = table(cache)[0].copy()

    cache = d.caches.hold(cache, kept)
    cache = d.caches.reset(cache)

    assert free(cache) == 1
    assert np.asarray(d.caches.holders(cache)).tolist() == [0, 1, 1, 0]
    refused = d.append(d.caches.fork(cache), [[], text(40, 5)])
    assert refused.overflow_B.tolist() == [0, 5]
    again = d.append(d.caches.adopt(cache, 1, kept[:1], 4), [[], [50]])
    assert d.texts(again) == [[], [*text(1, 4), 50]]
    let_go = d.caches.release(d.caches.reset(again), kept)
    assert counts(let_go).tolist() == [0, 0, 0, 0]


@both
def test_a_row_that_writes_to_a_held_page_copies_it_first(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=2, capacity=8, page_size=4), [text(1, 3), []])
    kept = table(cache)[0, :1].copy()

    cache = d.append(d.caches.hold(cache, kept), [[90, 91], []])

    assert d.texts(d.caches.adopt(cache, 1, kept, 3)) == [[*text(1, 3), 90, 91], text(1, 3)]
    assert copied(cache) == 1
    assert kept[0] not in table(cache)


@both
@pytest.mark.parametrize("probe", ["scrub", "poison"])
def test_what_a_holder_has_is_not_taken_for_unused(twin, probe):
    d = driver(twin)
    cache = d.append(d.init(batch=1, capacity=8, page_size=4), [text(1, 8)])
    kept = table(cache)[0].copy()
    cache = d.caches.reset(d.caches.hold(cache, kept))

    cache = getattr(d.caches, probe)(cache)

    assert d.texts(d.caches.adopt(cache, 0, kept, 8)) == [text(1, 8)]


CALLS = {
    "fork-source": (
        lambda caches, cache: caches.fork_row(cache, 2, 0),
        "fork_row: source is 2, expected 0 to 1 (the cache has 2 rows). Name one of them.",
    ),
    "fork-target": (
        lambda caches, cache: caches.fork_row(cache, 0, -1),
        "fork_row: target is -1, expected 0 to 1 (the cache has 2 rows). Name one of them.",
    ),
    "adopt-row": (
        lambda caches, cache: caches.adopt(cache, 5, [1], 4),
        "adopt: row is 5, expected 0 to 1 (the cache has 2 rows). Name one of them.",
    ),
    "adopt-full": (
        lambda caches, cache: caches.adopt(cache, 0, [1], 4),
        "adopt: row 0 holds 6 tokens, expected an empty one. Reset it first.",
    ),
    "adopt-length": (
        lambda caches, cache: caches.adopt(cache, 1, [1], 9),
        "adopt: length is 9, expected 0 to 8, the cache's capacity. Adopt fewer tokens, or make "
        "the cache larger.",
    ),
    "adopt-few": (
        lambda caches, cache: caches.adopt(cache, 1, [1], 5),
        "adopt: page_M names 1 pages in 1 entries, expected 2 different ones: 5 tokens take so "
        "many of 4. Name each of them once.",
    ),
    "adopt-twice": (
        lambda caches, cache: caches.adopt(cache, 1, [1, 1], 8),
        "adopt: page_M names 1 pages in 2 entries, expected 2 different ones: 8 tokens take so "
        "many of 4. Name each of them once.",
    ),
    "adopt-trash": (
        lambda caches, cache: caches.adopt(cache, 1, [1, 0], 8),
        "adopt: page_M has 0, the trash page, expected pages with tokens. Name those of the row "
        "that the tokens were written in.",
    ),
    "adopt-free": (
        lambda caches, cache: caches.adopt(cache, 1, [1, 3], 8),
        "adopt: page 3 is free, expected one that a row or a holder has. Hold it before its row "
        "is reset.",
    ),
    "hold-free": (
        lambda caches, cache: caches.hold(cache, [4]),
        "hold: page 4 is free, expected one that a row or a holder has. Hold it before its row "
        "is reset.",
    ),
    "hold-range": (
        lambda caches, cache: caches.hold(cache, [5]),
        "hold: page_M has 5, expected 0 to 4 (the pool has 4 pages beside the trash page). Name "
        "pages of this cache's table.",
    ),
    "release-unheld": (
        lambda caches, cache: caches.release(cache, [2]),
        "release: page 2 is released 1 times, it has 0 holders outside the table. Hold it first.",
    ),
}


@both
@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_shared_is_refused_with_both_numbers(twin, call):
    d, (action, message) = driver(twin), CALLS[call]
    cache = d.append(d.init(batch=2, capacity=8, page_size=4), [text(1, 6), []])

    with pytest.raises(RequestError) as error:
        action(d.caches, cache)

    assert str(error.value) == message


@both
def test_a_layout_without_pages_refuses_to_share_them(twin):
    d = driver(twin)
    cache = d.init(batch=2, capacity=8, layout="contiguous")

    for name, given in (("adopt", (0, [1], 4)), ("hold", ([1],)), ("release", ([1],))):
        with pytest.raises(Unsupported) as error:
            getattr(d.caches, name)(cache, *given)
        assert str(error.value) == (
            f"{name}: the cache has no pages, each row has slots of its own. Make it with "
            "layout='paged'."
        )


def test_the_verbs_of_a_shared_pool_work_under_jit():
    """With row numbers that are not known when the program is compiled."""
    import jax
    import jax.numpy as jnp

    d = driver("jaxkv")
    cache = d.append(d.init(batch=3, capacity=8, page_size=4), [text(1, 6), [40], []])
    page_M = jnp.array([1, 2, 0])

    def program(cache, source, target, page_M):
        cache = d.caches.fork_row(d.caches.hold(cache, page_M), source, target)
        cache = d.caches.reset(cache, jnp.arange(3) == source)
        return d.caches.release(d.caches.adopt(cache, source, page_M[:2], 6), page_M)

    found = jax.jit(program)(cache, 0, 1, page_M)

    assert d.texts(found) == [text(1, 6), text(1, 6), []]
    assert_sound(found)
