"""Random programs of verbs against a dictionary of texts; both twins keep the same tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.paged.verbs import Driver, assert_sound, copied, counts, free, table
from tests.tiny import TWINS, Cell

ROWS, CAPACITY, PAGE, POOL = 3, 10, 3, 7
amounts = st.lists(st.integers(0, 8), min_size=ROWS, max_size=ROWS)
picks = st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS)
DRIVERS = {twin: Driver(Cell(twin, "llama", "paged")) for twin in TWINS}


def new(driver):
    return driver.init(batch=ROWS, capacity=CAPACITY, page_size=PAGE, pool_pages=POOL)


class Histories(RuleBasedStateMachine):
    """A paged cache beside the texts that its rows must hold."""

    twin = "jaxkv"
    events: set[str]

    @initialize()
    def start(self):
        self.driver, self.next = DRIVERS[self.twin], 1
        self.cache, self.texts = new(self.driver), {b: [] for b in range(ROWS)}

    @rule(amounts=amounts)
    def append(self, amounts):
        chunks = [
            list(range(self.next + 10 * b, self.next + 10 * b + n)) for b, n in enumerate(amounts)
        ]
        self.next += 10 * ROWS
        was_refused = np.asarray(self.cache.overflow_B) > 0
        before = copied(self.cache)

        self.cache = self.driver.append(self.cache, chunks)

        lengths = np.asarray(self.cache.length_B).tolist()
        for b, chunk in enumerate(chunks):
            took = lengths[b] - len(self.texts[b])
            refused = int(self.cache.overflow_B[b]) > 0
            assert took == (0 if refused else len(chunk))
            if refused and not was_refused[b]:
                wanted = int(self.cache.shared.wanted_B[b])
                fits = len(self.texts[b]) + len(chunk) <= CAPACITY
                assert (wanted > 0) == fits
                self.events.add("exhausted" if wanted else "full")
            self.texts[b] += chunk[:took]
        if copied(self.cache) > before:
            self.events.add("copied")

    @rule(back=amounts)
    def rollback(self, back):
        lengths = [max(len(self.texts[b]) - n, 0) for b, n in enumerate(back)]
        self.cache = self.driver.rollback(self.cache, lengths)
        self.texts = {b: self.texts[b][:n] for b, n in enumerate(lengths)}

    @rule(rows=picks)
    def gather(self, rows):
        self.cache = self.driver.gather(self.cache, rows)
        self.texts = {b: list(self.texts[row]) for b, row in enumerate(rows)}
        if len(set(rows)) < ROWS:
            self.events.add("shared")

    @precondition(lambda self: any(self.texts.values()))
    @rule(data=st.data(), amounts=st.lists(st.integers(1, 2), min_size=ROWS, max_size=ROWS))
    def branch(self, data, amounts):
        """One row's text goes on in all rows: left to chance, a shared page is seldom written."""
        row = data.draw(st.sampled_from([b for b, text in self.texts.items() if text]))
        self.gather([row] * ROWS)
        self.append(amounts)

    @precondition(lambda self: any(self.texts.values()))
    @rule()
    def reset(self):
        self.cache = self.driver.caches.reset(self.cache)
        self.texts = {b: [] for b in range(ROWS)}
        assert free(self.cache) == POOL
        self.events.add("reset")

    @invariant()
    def the_rows_read_their_own_texts_from_pages_that_are_counted(self):
        assert self.driver.texts(self.cache) == [self.texts[b] for b in range(ROWS)]
        assert_sound(self.cache)
        assert free(self.cache) + len(set(table(self.cache).reshape(-1).tolist()) - {0}) == POOL


@pytest.mark.parametrize("twin", TWINS)
def test_any_history_keeps_every_rows_text_and_exact_counts(twin):
    events: set[str] = set()
    machine = type("Histories", (Histories,), {"twin": twin, "events": events})

    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=30))

    assert events == {"copied", "exhausted", "full", "reset", "shared"}


verbs = st.one_of(
    st.tuples(st.just("append"), amounts),
    st.tuples(st.just("rollback"), amounts),
    st.tuples(st.just("gather"), picks),
)


@given(program=st.lists(verbs, min_size=1, max_size=12))
def test_both_twins_keep_the_same_tables_and_counts_to_the_bit(program):
    caches = {twin: new(driver) for twin, driver in DRIVERS.items()}

    for verb, numbers in program:
        for twin, driver in DRIVERS.items():
            cache = caches[twin]
            if verb == "append":
                cache = driver.append(cache, [[7] * n for n in numbers])
            elif verb == "gather":
                cache = driver.gather(cache, numbers)
            else:
                lengths = np.asarray(cache.length_B) - np.array(numbers)
                cache = driver.rollback(cache, np.maximum(lengths, 0))
            caches[twin] = cache
        left, right = caches.values()
        np.testing.assert_array_equal(table(left), table(right))
        np.testing.assert_array_equal(counts(left), counts(right))
        for name in ("wanted_B", "copied"):
            sides = [np.asarray(getattr(cache.shared, name)) for cache in (left, right)]
            assert sides[0].dtype == sides[1].dtype == np.int32
            np.testing.assert_array_equal(*sides)
        assert left.overflow_B.tolist() == right.overflow_B.tolist()
