"""The prefix store's books: whose pages are whose, what a request may take, and exact counts.

Plain host data: page numbers and token ids. The pages' contents are the store's of each twin.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxkv.spec.errors import CapacityError, RequestError
from jaxkv.spec.identity import Identity
from jaxkv.spec.radix import Node, RadixTree

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Counts:
    """What a tenant's requests found, exactly.

    Attributes:
        hits: Prompts of which something was known.
        misses: Prompts of which nothing was.
        reused: Prompt tokens that did not enter the model again.
        shared: Pages that prompts took from the tree.
        kept: Pages that the tree took from texts.
    """

    hits: int = 0
    misses: int = 0
    reused: int = 0
    shared: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Usage:
    """Where the pages of the pool are; the first three add up to the pool.

    Attributes:
        free: Of no prefix.
        evictable: Of prefixes that nobody needs now.
        locked: Of prefixes that the request under way began with.
        evicted: Given up so far for want of room, of all tenants' prefixes.
    """

    free: int
    evictable: int
    locked: int
    evicted: int


@dataclass(frozen=True)
class Entry:
    """What is known of one request's prompts.

    Attributes:
        prompts: Token ids of each row.
        root: Of the tree: an identity's digest, and the identity itself, which is compared too.
        nodes: Where each row's known prefix ends; locked.
        tables: Each row's pages.
        reused: Tokens of each row that stand in them, fewer than the prompt has.
        need: Pages that all rows may take besides.
    """

    prompts: Prompts
    root: tuple[str, Identity]
    nodes: tuple[Node, ...]
    tables: tuple[tuple[int, ...], ...]
    reused: tuple[int, ...]
    need: int


class PrefixBook:
    """The books of one pool.

    Attributes:
        pool_pages: Pages, numbered from 1.
        page_size: Tokens of a page.
        capacity: Tokens that a row can hold.
        held_A: Which pages, 0 to pool_pages, belong to a prefix.
    """

    def __init__(self, *, pool_pages: int, page_size: int, capacity: int):
        self.pool_pages, self.page_size, self.capacity = pool_pages, page_size, capacity
        self._counts: dict[str, Counts] = {}
        self._evicted = 0
        self.clear()

    def clear(self) -> None:
        """Forget every prefix, and keep the counts."""
        self._tree: RadixTree[tuple[str, Identity]] = RadixTree(self.page_size)
        self.held_A = np.zeros(self.pool_pages + 1, bool)

    @property
    def usage(self) -> Usage:
        """The pages by who needs them."""
        held, locked = self._tree.held, self._tree.locked
        return Usage(self.pool_pages - held, held - locked, locked, self._evicted)

    def counts(self, tenant: str) -> Counts:
        """Return a tenant's own counts."""
        return self._counts.get(tenant, Counts())

    def open(self, prompts: Prompts, budgets: Sequence[int], identity: Identity) -> Entry:
        """Return what is known of the prompts, locked, after making room for the rest.

        At least one token of each prompt is left to be computed; a row without budget gets nothing.

        Args:
            prompts: Token ids of each row.
            budgets: New tokens of each row at most.
            identity: Whose texts are looked at.

        Raises:
            CapacityError: A row does not fit its capacity, or all rows the pool.
        """
        root, size = (identity.digest(), identity), self.page_size
        found = [
            self._tree.match(root, prompt if budget else ())
            for prompt, budget in zip(prompts, budgets, strict=True)
        ]
        pairs = list(zip(found, prompts, strict=True))
        reused = tuple(min(len(pages) * size, max(len(row) - 1, 0)) for (_, pages), row in pairs)
        nodes = tuple(node for node, _ in found)
        need = self._need(prompts, budgets, reused)
        for node in nodes:
            self._tree.lock(node)
        try:
            self._make_room(need)
        except CapacityError:
            self._unlock(nodes)
            raise
        tables = tuple(
            tuple(pages[: -(-n // size)]) for (_, pages), n in zip(found, reused, strict=True)
        )
        for table, n, budget in zip(tables, reused, budgets, strict=True):
            if budget:
                found_one = {"hits": int(n > 0), "misses": int(n == 0)}
                self._count(identity.tenant, **found_one, reused=n, shared=len(table))
        return Entry(prompts, root, nodes, tables, reused, need)

    def keep(
        self,
        entry: Entry,
        texts: Sequence[Sequence[int]],
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
    ) -> None:
        """Let the tree take the whole pages of a request's texts that it does not hold yet.

        Args:
            entry: The request's.
            texts: Each row's tokens from the first prompt token on.
            tables: Each row's pages.
            lengths: Tokens of each row that stand in them.

        Raises:
            RequestError: A text does not begin with its prompt, or has fewer tokens than its row.
        """
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            _check_text(row, entry.prompts[row], text, length)
        for text, table, length in zip(texts, tables, lengths, strict=True):
            full = length // self.page_size
            whole = [int(token) for token in text[: full * self.page_size]]
            taken = self._tree.insert(entry.root, whole, [int(page) for page in table[:full]])
            self.held_A[taken] = True
            self._count(entry.root[1].tenant, kept=len(taken))

    def close(self, entry: Entry) -> None:
        """Unlock what a request began with."""
        self._unlock(entry.nodes)

    def forget(self, tenant: str) -> int:
        """Return how many pages a tenant's prefixes had; they and its counts are gone.

        Not checked here: that no request is under way.
        """
        roots = {root for root, _ in self._tree.nodes() if root[1].tenant == tenant}
        pages = [page for root in roots for page in self._tree.forget(root)]
        self.held_A[pages] = False
        self._counts.pop(tenant, None)
        return len(pages)

    def _unlock(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._tree.unlock(node)

    def _need(self, prompts: Prompts, budgets: Sequence[int], reused: Sequence[int]) -> int:
        """Return the pages that all rows may take; one that goes on inside a page copies it."""
        pages = 0
        for row, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
            if not budget:
                continue
            tokens = len(prompt) + budget - 1
            if tokens > self.capacity:
                raise CapacityError(
                    f"lease: prompts[{row}] and its new tokens need {tokens} slots, the store's "
                    f"capacity is {self.capacity}. Make the store with capacity {tokens}."
                )
            pages += -(-tokens // self.page_size) - reused[row] // self.page_size
        return pages

    def _make_room(self, need: int) -> None:
        usage = self.usage
        available = usage.free + usage.evictable
        if need > available:
            # Free and evictable apart would tell a tenant how much the others hold.
            raise CapacityError(
                f"lease: the request may take {need} pages of {self.page_size}, the pool of "
                f"{self.pool_pages} can give {available}. Make the store with pool_pages "
                f"{self.pool_pages + need - available}, or ask for less at once."
            )
        for _, page in self._tree.evict(need - usage.free):
            self.held_A[page] = False
            self._evicted += 1

    def _count(self, tenant: str, **more: int) -> None:
        counts = self.counts(tenant)
        self._counts[tenant] = dataclasses.replace(
            counts, **{name: getattr(counts, name) + n for name, n in more.items()}
        )


def _check_text(row: int, prompt: Sequence[int], text: Sequence[int], length: int) -> None:
    if length and [int(token) for token in text[: len(prompt)]] != list(prompt):
        raise RequestError(
            f"settle: texts[{row}] does not begin with the prompt that was leased. Give prompt and "
            "new tokens."
        )
    if len(text) < length:
        raise RequestError(
            f"settle: texts[{row}] has {len(text)} tokens, the cache holds {length}. Give all that "
            "entered the model."
        )
