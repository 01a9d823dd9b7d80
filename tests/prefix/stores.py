"""Stores on the tiny llama, and what a store owes: the books of a dictionary."""

import importlib

from tests.prefix.model import Dictionary
from tests.tiny import PAGE, Cell, make_model, make_subject

CAPACITY = 44


def make_store(twin: str, *, pool_pages: int = 33, model: str = "llama", capacity: int = CAPACITY):
    made = make_model(twin, model)
    return importlib.import_module(f"{twin}.caches").PrefixStore(
        made.config, dtype=made.dtype, capacity=capacity, pool_pages=pool_pages, page_size=PAGE
    )


def subject_of(twin: str):
    return make_subject(Cell(twin, "llama", "paged"))


def generated(twin: str, prompts, budget: int | list[int] = 5, *, model=None, **options):
    generate = importlib.import_module(f"{twin}.generation").generate
    model = make_model(twin, "llama") if model is None else model
    return generate(model, prompts, max_new_tokens=budget, **options)


class Books:
    """What one text after the other finds in a pool, on a dictionary of whole prefixes.

    Attributes:
        counts: tenant -> hits, misses, reused, shared, kept.
        evicted: Pages given up, of all.
    """

    def __init__(self, pool_pages: int):
        self.pool_pages, self.pages = pool_pages, Dictionary(PAGE)
        self.counts: dict[str, list[int]] = {}
        self.evicted = 0

    def serve(self, tenant: str, text: list[int], budget: int = 1) -> int:
        """Return how many tokens are reused."""
        mine = self.counts.setdefault(tenant, [0] * 5)
        known = self.pages.match(tenant, text)
        reused = min(len(known) * PAGE, len(text) - 1)
        held = text[: len(known) * PAGE]
        self.pages.lock(tenant, held, 1)
        need = -(-(len(text) + budget - 1) // PAGE) - reused // PAGE
        missing = need - (self.pool_pages - len(self.pages.pages))
        self.evicted += len(self.pages.evict(missing))
        whole = text[: (len(text) + budget - 1) // PAGE * PAGE]
        taken = self.pages.insert(tenant, whole, [0] * (len(whole) // PAGE))
        self.pages.lock(tenant, held, -1)
        found = (reused > 0, reused == 0, reused, -(-reused // PAGE), len(taken))
        mine[:] = [old + new for old, new in zip(mine, found, strict=True)]
        return reused
