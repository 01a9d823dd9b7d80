"""Which pages a row holds, when it gets them, when it is refused, and when they are free again."""

import numpy as np
import pytest

from jaxkv.spec.errors import CapacityError, RequestError
from tests.paged.verbs import Driver, assert_sound, copied, counts, free, held, table
from tests.tiny import TWINS, Cell

pytestmark = pytest.mark.parametrize("twin", TWINS)


def driver(twin):
    return Driver(Cell(twin, "llama", "paged"))


def text(start, length):
    return list(range(start, start + length))


def test_a_growing_row_holds_the_pages_of_its_tokens_and_no_more(twin):
    """KV-31: 6, 11, 11 again, the maximum, one past it; then all pages are free again."""
    d = driver(twin)
    cache = d.init(batch=1, capacity=16, page_size=4)
    seen = []

    for length in (6, 5, 0, 5):
        cache = d.append(cache, [text(1, length)])
        seen.append(held(cache)[0])
    pages, before = table(cache), d.texts(cache)
    refused = d.append(cache, [[9]])

    assert seen == [2, 3, 3, 4]
    with pytest.raises(CapacityError) as error:
        d.caches.check(refused)
    assert str(error.value) == (
        "check: row 0 was refused, 1 tokens too many for capacity 16 with 16 held. "
        "Make the cache with capacity 17, or feed 1 fewer."
    )
    np.testing.assert_array_equal(table(refused), pages)
    assert d.texts(refused) == before
    assert free(d.caches.reset(refused)) == 4


def test_a_shorter_request_in_the_place_of_a_longer_one_finds_none_of_its_pages(twin):
    """KV-32: stale table entries are gone, and the row decodes across its page's end."""
    d = driver(twin)
    cache = d.init(batch=2, capacity=16, page_size=4)
    cache = d.append(cache, [text(1, 16), text(40, 2)])

    cache = d.rollback(cache, [0, 2])
    assert table(cache)[0].tolist() == [0, 0, 0, 0]
    cache = d.append(cache, [text(60, 4), []])
    cache = d.append(cache, [text(64, 3), text(42, 5)])

    assert d.texts(cache) == [text(60, 7), text(40, 7)]
    assert held(cache) == [2, 2]
    assert_sound(cache)


def test_a_row_at_full_capacity_is_refused_before_any_write(twin):
    """KV-33: two pages of 4; lengths 7 and 8 work, the append at 8 does not."""
    d = driver(twin)
    cache = d.init(batch=1, capacity=8, page_size=4)
    cache = d.append(d.append(cache, [text(1, 7)]), [[8]])
    assert d.texts(cache) == [text(1, 8)]

    refused = d.append(cache, [[9]])

    assert refused.overflow_B.tolist() == [1]
    assert d.texts(refused) == [text(1, 8)]
    with pytest.raises(CapacityError, match="capacity 8 with 8 held"):
        d.caches.check(refused)


def test_an_exhausted_pool_refuses_the_row_and_says_how_many_pages_are_missing(twin):
    d = driver(twin)
    cache = d.init(batch=3, capacity=16, page_size=4, pool_pages=5)
    cache = d.append(cache, [text(1, 8), text(20, 7), text(40, 1)])
    pages = table(cache)

    refused = d.append(cache, [[9], [27], text(41, 3)])

    assert refused.overflow_B.tolist() == [1, 0, 0]
    with pytest.raises(CapacityError) as error:
        d.caches.check(refused)
    assert str(error.value) == (
        "check: row 0 was refused 1 tokens with 8 held: they need 1 pages of 4, of the pool's 5 "
        "there are 0 free. Make the cache with pool_pages 6, or roll back, reset or leave out rows "
        "that are done."
    )
    np.testing.assert_array_equal(table(refused)[0], pages[0])
    assert d.texts(refused) == [text(1, 8), text(20, 8), text(40, 4)]
    assert_sound(refused)
    freed = d.rollback(refused, [8, 0, 4])
    assert d.texts(d.append(freed, [[9], [], []])) == [text(1, 9), [], text(40, 4)]


def test_rows_are_served_in_order_and_none_after_one_that_was_refused(twin):
    d = driver(twin)
    cache = d.init(batch=4, capacity=16, page_size=4, pool_pages=5)

    refused = d.append(cache, [text(1, 8), text(10, 16), text(30, 1), []])

    assert refused.overflow_B.tolist() == [0, 16, 1, 0]
    assert np.asarray(refused.shared.wanted_B).tolist() == [0, 4, 1, 0]
    assert d.texts(refused) == [text(1, 8), [], [], []]
    assert free(refused) == 3
    assert_sound(refused)


def test_rows_that_share_a_prompt_copy_only_its_last_page_once_per_writer(twin):
    """KV-34: the last holder to write finds the page its own; all counts return to 0."""
    d = driver(twin)
    cache = d.append(d.init(batch=4, capacity=16, page_size=4), [text(1, 6), [], [], []])
    cache = d.gather(cache, [0, 0, 0, 0])
    assert counts(cache).tolist()[:3] == [0, 4, 4]

    kept = cache
    for i in range(5):
        kept = d.append(kept, [[20 + i], [40 + i], [60 + i], []])

    assert counts(kept)[1] == 4
    assert copied(kept) == 3
    assert d.texts(kept) == [
        text(1, 6) + text(20, 5),
        text(1, 6) + text(40, 5),
        text(1, 6) + text(60, 5),
        text(1, 6),
    ]
    assert_sound(kept)
    assert counts(d.caches.reset(kept)).tolist() == [0] * 17


def test_the_last_holder_to_write_needs_no_copy(twin):
    """KV-34: three rows, all of which write: two copies, and the pool of three rows suffices."""
    d = driver(twin)
    cache = d.append(d.init(batch=3, capacity=8, page_size=8), [text(1, 6), [], []])
    cache = d.gather(cache, [0, 0, 0])

    cache = d.append(cache, [[20], [40], [60]])

    assert d.texts(cache) == [[*text(1, 6), last] for last in (20, 40, 60)]
    assert copied(cache) == 2
    assert free(cache) == 0
    assert_sound(cache)


def test_gather_copies_no_page_and_releases_the_rows_left_out(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=3, capacity=8, page_size=4), [text(1, 5), text(20, 8), [40]])

    cache = d.gather(cache, [0, 2, 0])

    assert copied(cache) == 0
    assert held(cache) == [2, 1, 2]
    assert free(cache) == 6 - 3
    assert_sound(cache)


def test_rolling_back_a_sharer_leaves_the_others_tokens_alone(twin):
    d = driver(twin)
    cache = d.append(d.init(batch=2, capacity=16, page_size=4), [text(1, 10), []])
    cache = d.rollback(d.gather(cache, [0, 0]), [10, 6])

    cache = d.append(cache, [[], text(50, 4)])

    assert d.texts(cache) == [text(1, 10), text(1, 6) + text(50, 4)]
    assert copied(cache) == 1
    assert_sound(cache)


@pytest.mark.parametrize(
    ("sizes", "kind", "message"),
    [
        (
            {"page_size": 0},
            RequestError,
            "init: page_size is 0, expected at least 1.",
        ),
        (
            {"page_size": True},
            RequestError,
            "init: page_size is True, expected a whole number of at least 1.",
        ),
        (
            {"slack": True},
            RequestError,
            "init: slack is True, expected a whole number of at least 0.",
        ),
        (
            {"page_size": 4, "pool_pages": 3},
            CapacityError,
            "init: pool_pages is 3, expected at least 4: a row of capacity 16 takes 4 pages of 4. "
            "Raise pool_pages by 1 or lower capacity to 12.",
        ),
    ],
    ids=["page-size", "page-size-kind", "slack-kind", "pool"],
)
def test_sizes_that_cannot_be_are_refused(twin, sizes, kind, message):
    with pytest.raises(kind) as error:
        driver(twin).init(batch=2, capacity=16, **sizes)

    assert str(error.value) == message
