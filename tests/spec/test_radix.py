"""The radix tree against a dictionary: what matches, who is locked, what goes first."""

import random

import pytest

from jaxkv.spec.radix import RadixTree
from tests.prefix.model import Dictionary
from tests.tiny import DEEP

SIZES = (1, 2, 4)
OPERATIONS = 500
SEEDS = range(20 if DEEP else 3)


def text(rng, size):
    """Return a text of few tokens, so that most share a prefix."""
    return [rng.randrange(2) for _ in range(rng.randrange(6 * size + 2))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", SIZES)
def test_any_program_leaves_the_tree_equal_to_a_dictionary(size, seed):
    """KV-41: sizes drifted at splits and at page edges; a key below a page matched anything."""
    rng = random.Random(f"{size} {seed}")
    tree, model, fresh, handles, seen = RadixTree(size), Dictionary(size), 0, [], set()
    for _ in range(OPERATIONS):
        name, tokens = rng.choice("ab"), text(rng, size)
        what = rng.choice(("match", "insert", "insert", "lock", "release", "evict"))
        if what == "match":
            _, pages = tree.match(name, tokens)
            assert pages == model.match(name, tokens)
        elif what == "insert":
            whole = tokens[: len(tokens) // size * size]
            pages = list(range(fresh, fresh + len(whole) // size))
            fresh += len(pages)
            assert tree.insert(name, whole, pages) == model.insert(name, whole, pages)
        elif what == "lock":
            node, pages = tree.match(name, tokens)
            assert pages == model.match(name, tokens)
            held = tokens[: len(pages) * size]
            tree.lock(node)
            model.lock(name, held, 1)
            handles.append((node, name, held))
        elif what == "release" and handles:
            node, name, held = handles.pop(rng.randrange(len(handles)))
            tree.unlock(node)
            model.lock(name, held, -1)
        elif what == "evict":
            count = rng.randrange(5)
            assert tree.evict(count) == model.evict(count)
        seen.add((what, len(handles) > 0))
        entries = model.pages.values()
        assert tree.held == len(entries)
        assert tree.locked == sum(entry[2] > 0 for entry in entries)
    assert len(seen) == 9, "an operation never ran with a lock held, or without"


def test_whoever_is_locked_survives_with_all_above_it():
    """KV-40: the lock began at the parent, and an in-use prefix was evicted."""
    tree = RadixTree(2)
    tree.insert("x", [1, 2], [10])
    tree.insert("x", [1, 2, 3, 4], [10, 11])
    node, pages = tree.match("x", [1, 2, 3, 4, 5])
    tree.lock(node)

    kept = tree.evict(9)
    tree.unlock(node)
    gone = tree.evict(9)

    assert (pages, kept) == ([10, 11], [])
    assert gone == [("x", 11), ("x", 10)]
    assert (tree.held, tree.locked) == (0, 0)


def test_a_node_that_is_split_keeps_its_locks():
    tree = RadixTree(1)
    tree.insert("x", [1, 2, 3, 4], [10, 11, 12, 13])
    whole, _ = tree.match("x", [1, 2, 3, 4])
    tree.lock(whole)

    half, pages = tree.match("x", [1, 2])
    tree.lock(half)
    tree.unlock(whole)

    assert pages == [10, 11]
    assert tree.locked == 2
    assert tree.evict(9) == [("x", 13), ("x", 12)]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]], ids=str)
def test_less_than_a_page_matches_nothing(tokens):
    tree = RadixTree(4)
    tree.insert("x", [1, 2, 3, 4], [10])

    assert tree.match("x", tokens)[1] == []


def test_equal_hashes_are_no_match():
    """KV-38: only a hash was compared. -1 and -2 have one hash in CPython."""
    tree = RadixTree(1)
    tree.insert("x", [-1, 5], [10, 11])

    assert hash((-1,)) == hash((-2,))
    assert tree.match("x", [-2, 5])[1] == []
    assert tree.match("x", [-1, 5])[1] == [10, 11]


def test_another_first_token_invalidates_all_that_follows():
    tree = RadixTree(2)
    tree.insert("x", [1, 2, 3, 4, 5, 6], [10, 11, 12])

    assert tree.match("x", [9, 2, 3, 4, 5, 6])[1] == []


def test_another_root_finds_nothing_and_a_forgotten_one_is_gone():
    tree = RadixTree(1)
    tree.insert("x", [1, 2], [10, 11])
    tree.insert("y", [1, 2], [12, 13])

    assert tree.match("z", [1, 2])[1] == []
    assert sorted(tree.forget("x")) == [10, 11]
    assert tree.match("x", [1, 2])[1] == []
    assert tree.match("y", [1, 2])[1] == [12, 13]
    assert tree.held == 2
