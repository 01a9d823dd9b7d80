"""crosscheck's relation on shared prefixes: it holds on both twins, and sees planted faults."""

import pytest

from crosscheck.check import check
from crosscheck.selftest import selftest
from jaxkv.spec.radix import RadixTree
from tests.prefix import test_store
from tests.prefix.stores import subject_of
from tests.prefix.test_store import twins


@twins
def test_planted_faults_of_sharing_are_killed(twin):
    matrix = selftest(subject_of(twin), relations="prefix.share", faults="prefix.*")

    assert (matrix.survivors, matrix.blind, matrix.notes) == ((), (), ())
    assert matrix.killed == matrix.planted == 2


def plant(monkeypatch, change):
    """Let every tree look up and insert what `change` makes of a root's name and a text."""
    match, insert = RadixTree.match, RadixTree.insert
    monkeypatch.setattr(RadixTree, "match", lambda self, *key: match(self, *change(*key)))
    monkeypatch.setattr(
        RadixTree,
        "insert",
        lambda self, name, tokens, pages: insert(self, *change(name, tokens), pages),
    )


def test_a_tree_that_does_not_look_at_the_first_token_is_seen(monkeypatch):
    """The twins share the tree, so it is planted once."""
    plant(monkeypatch, lambda name, tokens: (name, [*[0] * bool(tokens), *tokens[1:]]))

    subject = subject_of("torchkv")
    report = check(subject, relations="prefix.share", dtypes=("float64",), faults="none")

    assert [str(row.verdict) for row in report.rows] == ["fail"]


@twins
def test_a_tree_with_one_root_for_all_tenants_is_seen(twin, monkeypatch):
    plant(monkeypatch, lambda name, tokens: (("", None), tokens))

    with pytest.raises(AssertionError):
        test_store.test_a_store_under_another_salt_forwards_as_much_as_a_cold_one(twin)
