"""A stream on a store gives what `generate` gives, and its pages come back, however it ends."""

import importlib

import pytest

from jaxkv.spec.prefix_book import PrefixBook
from tests.prefix.stores import generated, make_store
from tests.prefix.test_store import text, twins
from tests.tiny import make_model


def streamed(twin, ids, budget, store, **options):
    stream = importlib.import_module(f"{twin}.streaming").stream
    model = make_model(twin, "llama")
    return stream(model, [ids], max_new_tokens=budget, store=store, steps=2, **options)


@twins
def test_a_stream_finds_and_leaves_prefixes(twin):
    store, ids = make_store(twin), text(1)

    first = [token for items in streamed(twin, ids, 5, store, chunk=8) for token in items[0]]
    second = [token for items in streamed(twin, ids, 5, store) for token in items[0]]

    assert first == second == generated(twin, [ids]).new_tokens[0]
    counts = store.counts()
    assert (counts.hits, counts.misses, counts.reused, counts.kept) == (1, 1, 16, 5)


@pytest.mark.parametrize("items", [0, 1, 2])
@twins
def test_a_stream_that_is_closed_early_gives_the_store_back(twin, items):
    store, ids = make_store(twin), text(1)
    tokens = streamed(twin, ids, 9, store)
    for _ in range(items):
        next(tokens)

    tokens.close()

    assert store.usage.locked == 0
    run = generated(twin, [ids], store=store)
    assert run.reused_B.tolist() == [16 if items else 0]
    assert run.tokens == generated(twin, [ids]).tokens


@pytest.mark.parametrize("how", ["closed", "read to the end"])
@twins
def test_a_stream_whose_settling_fails_gives_the_store_back(twin, how, monkeypatch):
    store, ids = make_store(twin), text(1)
    generated(twin, [ids], store=store)
    tokens = streamed(twin, [*ids, 5], 9, store)
    next(tokens)

    def fail(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PrefixBook, "keep", fail)
        with pytest.raises(KeyboardInterrupt):
            tokens.close() if how == "closed" else list(tokens)

    assert store.usage.locked == 0
    assert generated(twin, [ids], store=store).tokens == generated(twin, [ids]).tokens
