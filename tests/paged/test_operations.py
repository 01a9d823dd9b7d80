"""Thousands of random operations on a shared pool, against dictionaries, both twins side by side.

Requests are admitted, on pages of earlier ones where there are some, go on, fork, go back, are
reordered, aborted, or end and leave their pages to a holder, which evicts them later.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.paged.model import Pool
from tests.paged.verbs import Driver
from tests.tiny import DEEP, TWINS, Cell

ROWS, CAPACITY, PAGE, PAGES = 4, 20, 3, 16
WIDTH = 8
COLUMNS = -(-CAPACITY // PAGE)
OPERATIONS = 100_000 if DEEP else 10_000
WEIGHTS = {
    "append": 0.40,
    "admit": 0.16,
    "free": 0.10,
    "evict": 0.08,
    "fork": 0.08,
    "rollback": 0.07,
    "abort": 0.06,
    "gather": 0.05,
}


class Twin:
    """One twin's cache; in jaxkv every operation is a compiled program."""

    def __init__(self, name):
        self.is_torch, driver = name == "torchkv", Driver(Cell(name, "llama", "paged"))
        self.caches, self.array, self.step = driver.caches, driver.array, driver.step
        self.cache = driver.init(batch=ROWS, capacity=CAPACITY, page_size=PAGE, pool_pages=PAGES)
        verbs = ("rollback", "gather", "fork_row", "reset", "hold", "release", "adopt")
        self.verbs = {verb: getattr(self.caches, verb) for verb in verbs}
        self.look = lambda cache: (*self.caches.read(cache, 0)[:2], *_marks(cache))
        if not self.is_torch:
            import jax

            self.verbs = {verb: jax.jit(call) for verb, call in self.verbs.items()}
            self.look = jax.jit(self.look)

    def append(self, chunks):
        tokens, count = np.zeros((ROWS, WIDTH)), np.zeros(ROWS, np.int32)
        for b, chunk in chunks.items():
            tokens[b, : len(chunk)], count[b] = chunk, len(chunk)
        kv = np.repeat(tokens[:, :, None, None], 3, axis=3)
        self.cache = self.step(self.cache, self.array(kv), self.array(count))

    def do(self, verb, *given):
        self.cache = self.verbs[verb](self.cache, *map(self._argument, given))

    def seen(self):
        """Return texts by the lengths, table, counts, overflow and copies, all numpy."""
        k, v, *marks = map(np.asarray, self.look(self.cache))
        np.testing.assert_array_equal(k, -v)
        lengths, *marks = marks
        return [k[b, :n, 0, 0].astype(int).tolist() for b, n in enumerate(lengths)], *marks

    def _argument(self, given):
        if isinstance(given, list):  # pages: one shape for all numbers of them, where it compiles
            pages = given if self.is_torch else given + [0] * (COLUMNS - len(given))
            return self.array(np.array(pages, np.int32))
        return self.array(given) if isinstance(given, np.ndarray) else given


def _marks(cache):
    shared = cache.shared
    return cache.length_B, shared.table_BC, shared.count_A, cache.overflow_B, shared.copied


class Program:
    """Random operations on both twins and on the dictionaries."""

    def __init__(self, seed):
        self.rng, self.pool, self.token = np.random.default_rng(seed), _pool(), 1
        self.twins = {name: Twin(name) for name in TWINS}
        self.store: list[tuple[list[int], int]] = []
        self.done: Counter = Counter()

    def run(self, operations):
        names, weights = list(WEIGHTS), np.array(list(WEIGHTS.values()))
        for number, name in enumerate(self.rng.choice(names, operations, p=weights)):
            getattr(self, name)()
            self.done[name] += 1
            self.agree(f"after operation {number}, {name}")

    def append(self):
        self._feed({b: int(self.rng.integers(0, 6)) for b in range(ROWS) if self.pool.texts[b]})

    def admit(self):
        for b in (b for b in range(ROWS) if not self.pool.texts[b]):
            if self.store and self.rng.random() < 0.6:
                pages, length = self.store[self.rng.integers(len(self.store))]
                length = int(self.rng.integers(1, length + 1))
                pages = pages[: -(-length // PAGE)]
                self._all("adopt", b, pages, length)
                self.pool.adopt(b, pages, length)
            else:
                self._feed({b: int(self.rng.integers(1, WIDTH + 1))})
            return

    def free(self):
        """A request ends: what it computed is held for those to come."""
        b = self._row()
        if b is None:
            return
        if len(self.store) < 3 and not self.pool.overflow[b]:
            pages, length = list(self.pool.table[b]), len(self.pool.texts[b])
            self._all("hold", pages)
            self.pool.hold(pages)
            self.store.append((pages, length))
        self._reset([b])

    def evict(self):
        if self.store:
            pages, _ = self.store.pop(int(self.rng.integers(len(self.store))))
            self._all("release", pages)
            self.pool.release(pages)

    def abort(self):
        self._reset([b for b in range(ROWS) if self.rng.random() < 0.4])

    def fork(self):
        source, target = (int(b) for b in self.rng.integers(0, ROWS, 2))
        rows = list(range(ROWS))
        rows[target] = source
        self._all("fork_row", source, target)
        self.pool.gather(rows)

    def gather(self):
        rows = self.rng.integers(0, ROWS, ROWS).astype(np.int32)
        self._all("gather", rows)
        self.pool.gather(rows.tolist())

    def rollback(self):
        lengths = [max(len(text) - int(self.rng.integers(0, 6)), 0) for text in self._texts()]
        self._all("rollback", np.array(lengths, np.int32))
        self.pool.rollback(lengths)

    def agree(self, when):
        """Raise unless both twins and the dictionaries say the same of every row and page."""
        pool = self.pool
        assert pool.reads() == pool.texts, f"the model itself is at fault {when}"
        counts = pool.counts()
        table = np.zeros((ROWS, COLUMNS), int)
        for b, pages in pool.table.items():
            table[b, : len(pages)] = pages
        for name, twin in self.twins.items():
            texts, table_BC, count_A, overflow_B, copied = twin.seen()
            label = f"{name} {when}"
            assert texts == self._texts(), label
            np.testing.assert_array_equal(table_BC, table, err_msg=label)
            expected = [counts[page] for page in range(PAGES + 1)]
            assert count_A.tolist() == expected, label
            assert overflow_B.tolist() == list(pool.overflow.values()), label
            assert int(copied) == pool.copied, label
            used = len({*table.ravel().tolist(), *pool.held} - {0})
            assert int((count_A[1:] == 0).sum()) == PAGES - used, label

    def _feed(self, sizes):
        chunks = {}
        for b, n in sorted(sizes.items()):
            chunks[b] = list(range(self.token, self.token + n))
            self.token += n
        for twin in self.twins.values():
            twin.append(chunks)
        self.pool.append(chunks)

    def _reset(self, rows):
        only_B = np.zeros(ROWS, bool)
        only_B[rows] = True
        self._all("reset", only_B)
        self.pool.reset(rows)

    def _all(self, verb, *given):
        for twin in self.twins.values():
            twin.do(verb, *given)

    def _row(self):
        busy = [b for b in range(ROWS) if self.pool.texts[b]]
        return busy[self.rng.integers(len(busy))] if busy else None

    def _texts(self):
        return list(self.pool.texts.values())


def _pool():
    return Pool(rows=ROWS, capacity=CAPACITY, size=PAGE, pages=PAGES)


EVENTS = {
    "a page outlived its row",
    "a page was freed",
    "a page was rolled back",
    "adopted: a part",
    "adopted: whole pages",
    "an evicted page is in use",
    "an evicted page was freed",
    "copied",
    "refused: capacity",
    "refused: pages",
    "shared",
    "the last holder kept the page",
}


def test_random_operations_agree_with_dictionaries_in_both_twins():
    program = Program(seed=6)

    program.run(OPERATIONS)

    assert sum(program.done.values()) == OPERATIONS
    assert min(program.done[name] for name in WEIGHTS) > OPERATIONS / 50
    rare = {event: times for event, times in program.pool.events.items() if times < 20}
    assert set(program.pool.events) == EVENTS
    assert not rare


def _keeps_what_it_should_copy(twin, cache, source, target):
    """A fork whose second row is the first one's buffers, with nobody counted."""
    shared, count_A = cache.shared, cache.shared.count_A
    forked = twin.caches.fork_row(cache, source, target)
    return replace(forked, shared=replace(forked.shared, count_A=count_A + 0 * shared.count_A))


FAULTS = {
    "fork-uncounted": ("fork_row", _keeps_what_it_should_copy),
    "reset-leaks": (
        "reset",
        lambda twin, cache, only_B: replace(
            twin.caches.reset(cache, only_B), shared=replace(cache.shared)
        ),
    ),
    "rollback-keeps-pages": (
        "rollback",
        lambda twin, cache, length_B: replace(
            twin.caches.rollback(cache, length_B), shared=cache.shared
        ),
    ),
    "hold-forgotten": ("hold", lambda twin, cache, page_M: cache),
    "release-forgotten": ("release", lambda twin, cache, page_M: cache),
    "gather-in-place": ("gather", lambda twin, cache, rows_B: twin.caches.fork_row(cache, 0, 1)),
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_pages_is_seen(twin, fault):
    program, (verb, faulty) = Program(seed=6), FAULTS[fault]
    side = program.twins[twin]
    side.verbs[verb] = lambda *given: faulty(side, *given)

    with pytest.raises(AssertionError, match=f"{twin} after operation"):
        program.run(300)
