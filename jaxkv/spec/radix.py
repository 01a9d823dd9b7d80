"""A radix tree of exact token prefixes over whole pages: plain host data, no array and no formula.

A node holds a run of pages and the tokens that stand in them; a path from a root spells a prefix.
Roots keep identities apart: nothing below one is ever found from another. Children are found by the
tokens of their first page, compared token by token (a dict compares keys, whatever their hashes).
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Run = tuple[int, ...]
Name = TypeVar("Name", bound=Hashable)


@dataclass(eq=False)
class Node:
    """A run of whole pages after everything above it.

    Attributes:
        tokens: What stands in the pages; () for a root.
        pages: Their numbers in the pool.
        parent: None for a root, and for a node that was evicted.
        children: By the tokens of their first page.
        locks: How many holders need this node or one below it.
        used: When it was last matched or inserted, by the tree's clock.
    """

    tokens: Run
    pages: Run
    parent: "Node | None" = None
    children: "dict[Run, Node]" = field(default_factory=dict)
    locks: int = 0
    used: int = 0

    def path(self) -> "Iterator[Node]":
        """Yield this node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class RadixTree(Generic[Name]):
    """Which pages hold which prefix, for whom, who needs them, and which go first.

    Attributes:
        page_size: Tokens of a page; every length here is a multiple of it.
        held: Pages in the tree.
        locked: Pages among them that somebody needs.
    """

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.held = self.locked = 0
        self._roots: dict[Name, Node] = {}
        self._clock = 0

    def match(self, name: Name, tokens: Sequence[int]) -> tuple[Node, list[int]]:
        """Return the node in which the longest stored prefix ends, and the prefix's pages.

        A node that goes on beyond the prefix is split there, so that it can be locked alone.

        Args:
            name: Of the root.
            tokens: The text; only whole pages of it can match.
        """
        node, pages = self._roots.get(name, Node((), ())), []
        rest = tuple(tokens)
        self._clock += 1
        while (child := node.children.get(rest[: self.page_size])) is not None:
            same = self._agreeing(child, rest)
            node = self._split(child, same)
            node.used = self._clock
            pages.extend(node.pages)
            rest = rest[len(node.tokens) :]
        return node, pages

    def insert(self, name: Name, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Return which of the pages the tree took: those of tokens that it did not hold yet.

        Args:
            name: Of the root.
            tokens: A text of whole pages.
            pages: Where each page's tokens stand; not in the tree yet, unless for the same tokens.
        """
        self._roots.setdefault(name, Node((), ()))
        node, known = self.match(name, tokens)
        taken = tuple(pages[len(known) :])
        if not taken:
            return []
        run = tuple(tokens[len(known) * self.page_size :])
        child = Node(run, taken, node, used=self._clock)
        node.children[run[: self.page_size]] = child
        self.held += len(taken)
        return list(taken)

    def lock(self, node: Node) -> None:
        """Keep a node and all above it from eviction, until as many calls of `unlock`."""
        for each in node.path():
            self.locked += 0 if each.locks else len(each.pages)
            each.locks += 1

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        for each in node.path():
            each.locks -= 1
            self.locked -= 0 if each.locks else len(each.pages)

    def evict(self, count: int) -> list[tuple[Name, int]]:
        """Return up to `count` pages that the tree gave up, each with its root's name.

        The leaf that was used longest ago goes first, its last page before the others; a node that
        thereby becomes a leaf is next in its turn. Locked nodes stay.
        """
        gone: list[tuple[Name, int]] = []
        leaves = [
            (node.used, order, name, node)
            for order, (name, node) in enumerate(self.nodes())
            if not node.children and not node.locks
        ]
        heapq.heapify(leaves)
        while leaves and len(gone) < count:
            _, order, name, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            gone.extend((name, page) for page in self._trim(leaf, count - len(gone)))
            if leaf.pages or parent is None or parent.parent is None:
                continue
            if not parent.children and not parent.locks:
                heapq.heappush(leaves, (parent.used, order, name, parent))
        self._roots = {name: root for name, root in self._roots.items() if root.children}
        return gone

    def forget(self, name: Name) -> list[int]:
        """Return all pages below a root, which is gone with them.

        Not checked here: that nothing below it is locked.
        """
        pages = [page for root, node in self.nodes() if root == name for page in node.pages]
        self._roots.pop(name, None)
        self.held -= len(pages)
        return pages

    def nodes(self) -> Iterator[tuple[Name, Node]]:
        """Yield every node but the roots, with its root's name."""
        for name, root in self._roots.items():
            waiting = list(root.children.values())
            while waiting:
                node = waiting.pop()
                waiting.extend(node.children.values())
                yield name, node

    def _agreeing(self, node: Node, tokens: Run) -> int:
        """Return how many whole pages of a node a text begins with."""
        size = self.page_size
        for i in range(len(node.pages)):
            span = slice(i * size, (i + 1) * size)
            if node.tokens[span] != tokens[span]:
                return i
        return len(node.pages)

    def _split(self, node: Node, pages: int) -> Node:
        """Return the node of a node's first pages; the node itself keeps the rest below it."""
        assert node.parent is not None  # a root has no page to split
        if pages == len(node.pages):
            return node
        end, size = pages * self.page_size, self.page_size
        upper = Node(
            node.tokens[:end], node.pages[:pages], node.parent, locks=node.locks, used=node.used
        )
        node.parent.children[node.tokens[:size]] = upper
        node.tokens, node.pages, node.parent = node.tokens[end:], node.pages[pages:], upper
        upper.children[node.tokens[:size]] = node
        return upper

    def _trim(self, leaf: Node, count: int) -> Run:
        """Return the pages that a leaf gave up, its last first; an empty one leaves the tree."""
        assert leaf.parent is not None  # a root is no leaf
        kept = max(len(leaf.pages) - count, 0)
        gone, first = leaf.pages[kept:], leaf.tokens[: self.page_size]
        leaf.pages, leaf.tokens = leaf.pages[:kept], leaf.tokens[: kept * self.page_size]
        self.held -= len(gone)
        if not kept:
            del leaf.parent.children[first]
            leaf.parent = None
        return gone[::-1]
