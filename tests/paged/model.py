"""What a pool of pages must do, as plain Python: dictionaries, one token and one page at a time.

Nothing is taken from the code under test: who gets which page, when a page is copied and when a row
is refused is decided here again, from the rules in docs/contract.md.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Pool:
    """Rows, the pages that they hold in order, and what stands in every page's slots."""

    rows: int
    capacity: int
    size: int
    pages: int
    texts: dict[int, list[int]] = field(default_factory=dict)
    table: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[int, list[int]] = field(default_factory=dict)
    held: Counter = field(default_factory=Counter)
    overflow: dict[int, int] = field(default_factory=dict)
    copied: int = 0
    events: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.texts = {b: [] for b in range(self.rows)}
        self.table = {b: [] for b in range(self.rows)}
        self.overflow = dict.fromkeys(range(self.rows), 0)
        self.slots = {page: [0] * self.size for page in range(1, self.pages + 1)}

    def counts(self):
        """Return the references to every page, from rows and from holders outside."""
        return Counter(page for pages in self.table.values() for page in pages) + self.held

    def free(self):
        counts = self.counts()
        return [page for page in range(1, self.pages + 1) if not counts[page]]

    def append(self, chunks):
        counts, free, earlier, is_blocked = self.counts(), self.free(), Counter(), False
        copies, writes = [], []
        for b, chunk in chunks.items():
            length, n = len(self.texts[b]), len(chunk)
            if n and length + n > self.capacity:
                self.events["refused: capacity"] += not self.overflow[b]
                self.overflow[b] += length + n - self.capacity
                continue
            if self.overflow[b] or not n:
                continue
            new = self._needed(length + n) - self._needed(length)
            last = self.table[b][-1] if length % self.size else None
            is_shared = last is not None and counts[last] > 1
            is_copied = is_shared and counts[last] - earlier[last] > 1
            earlier[last] += is_shared
            if not (new or is_shared):
                writes.append((b, chunk))
                continue
            if is_blocked or new + is_copied > len(free):
                is_blocked, self.overflow[b] = True, n
                self.events["refused: pages"] += 1
                continue
            if is_copied:
                page = free.pop(0)
                copies.append((last, page))
                self.table[b][-1] = page
            elif is_shared:
                self.events["the last holder kept the page"] += 1
            for _ in range(new):
                self.table[b].append(free.pop(0))
            writes.append((b, chunk))
        kept = {source: list(self.slots[source]) for source, _ in copies}
        for source, page in copies:
            self.slots[page] = list(kept[source])
        self.copied += len(copies)
        self.events["copied"] += len(copies)
        for b, chunk in writes:
            for token in chunk:
                at = len(self.texts[b])
                self.slots[self.table[b][at // self.size]][at % self.size] = token
                self.texts[b].append(token)

    def rollback(self, lengths):
        for b, length in enumerate(lengths):
            self.events["a page was rolled back"] += self._needed(length) < len(self.table[b])
            self.texts[b] = self.texts[b][:length]
            self.table[b] = self.table[b][: self._needed(length)]
        self.overflow = dict.fromkeys(range(self.rows), 0)

    def gather(self, rows):
        self.events["shared"] += len({b for b in rows if self.texts[b]}) < len(
            [b for b in rows if self.texts[b]]
        )
        self.texts = {i: list(self.texts[b]) for i, b in enumerate(rows)}
        self.table = {i: list(self.table[b]) for i, b in enumerate(rows)}
        self.overflow = {i: self.overflow[b] for i, b in enumerate(rows)}

    def reset(self, rows):
        for b in rows:
            counts = self.counts()
            self.events["a page outlived its row"] += any(counts[p] > 1 for p in self.table[b])
            self.events["a page was freed"] += any(counts[p] == 1 for p in self.table[b])
            self.texts[b], self.table[b], self.overflow[b] = [], [], 0

    def hold(self, pages):
        self.held.update(pages)

    def release(self, pages):
        self.held -= Counter(pages)
        counts = self.counts()
        self.events["an evicted page was freed"] += any(not counts[page] for page in pages)
        self.events["an evicted page is in use"] += any(counts[page] for page in pages)

    def adopt(self, b, pages, length):
        self.texts[b] = self._read(pages, length)
        self.table[b], self.overflow[b] = list(pages), 0
        self.events["adopted: whole pages" if length % self.size == 0 else "adopted: a part"] += 1

    def reads(self):
        """Return what each row reads from its pages: its text, if no page was written by others."""
        return {b: self._read(self.table[b], len(text)) for b, text in self.texts.items()}

    def _read(self, pages, length):
        return [token for page in pages for token in self.slots[page]][:length]

    def _needed(self, length):
        return -(-length // self.size)
