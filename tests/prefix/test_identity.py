"""Whose pages may be shared: other weights, adapters, hashes and callers share none."""

import pkgutil
import threading
import time

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError
from jaxkv.spec.identity import Identity
from jaxkv.spec.random_weights import random_arrays
from tests.prefix.stores import generated, make_store
from tests.prefix.test_store import text, twins
from tests.tiny import CONFIGS, Cell, module


def other_model(twin: str):
    return module(Cell(twin, "llama", "paged"), "weights").from_arrays(
        CONFIGS["llama"], random_arrays(CONFIGS["llama"], seed=8), dtype="float64"
    )


@twins
def test_adapters_share_no_page(twin):
    """KV-36: one adapter's keys and values were reused under another."""
    store, ids = make_store(twin), text(1, 8)

    runs = [generated(twin, [ids], store=store, adapter=name) for name in ("", "a", "b", "a")]

    assert [int(run.reused_B[0]) for run in runs] == [0, 0, 0, 7]
    assert [run.tokens for run in runs] == [generated(twin, [ids]).tokens] * 4


@twins
def test_other_weights_under_the_same_name_share_no_page(twin):
    """KV-37: the key was the model's name, not what had been loaded under it."""
    store, ids, second = make_store(twin), text(1, 8), other_model(twin)
    generated(twin, [ids], store=store, adapter="m")

    run = generated(twin, [ids], store=store, adapter="m", model=second)

    assert run.reused_B.tolist() == [0]
    assert run.tokens == generated(twin, [ids], model=second).tokens


def test_weights_written_in_place_share_no_page_with_what_they_were():
    """KV-37 again: an adapter that was reloaded into the same tensors."""
    import torch

    store, ids, model = make_store("torchkv"), text(1, 8), other_model("torchkv")
    generated("torchkv", [ids], store=store, model=model)
    with torch.no_grad():
        model.embed.mul_(1.5)

    run = generated("torchkv", [ids], store=store, model=model)

    assert run.reused_B.tolist() == [0]
    assert run.tokens == generated("torchkv", [ids], model=model).tokens


def test_weights_are_hashed_once_while_they_are_the_same():
    from jaxkv.model import params_of
    from tests.tiny import make_model

    store, calls = make_store("jaxkv"), []
    first, second = make_model("jaxkv", "llama"), other_model("jaxkv")

    def hash_of(model):
        import jax

        leaves = jax.tree.leaves(params_of(model))
        return store.weights_of(leaves, lambda: str(calls.append(model) or len(calls)))

    assert [hash_of(model) for model in (first, first, second, first)] == ["1", "1", "2", "1"]


@twins
def test_a_collision_of_digests_shares_no_page(twin, monkeypatch):
    """KV-38: the hash hit was accepted; here identities and tokens are compared."""
    monkeypatch.setattr(Identity, "digest", lambda self: "00")
    store, ids = make_store(twin), text(1, 8)
    generated(twin, [ids], store=store, tenant="a")

    other = generated(twin, [ids], store=store, tenant="b")
    own = generated(twin, [ids], store=store, tenant="a")

    assert [int(run.reused_B[0]) for run in (other, own)] == [0, 7]


@twins
def test_two_threads_get_their_own_answers_or_are_told_that_the_store_is_in_use(twin):
    """KV-42: concurrent callers wrote into one prompt cache and got each other's answers."""
    store, prompts = make_store(twin, pool_pages=64), [text(1, 9), text(2, 9)]
    alone = [generated(twin, [ids], 3).tokens for ids in prompts]
    answers: list[list] = [[], []]
    told: list[set[str]] = [set(), set()]
    start = threading.Barrier(2)

    def ask(who):
        start.wait()
        for _ in range(10_000):  # whoever is refused goes on, until the other has all its answers
            try:
                answers[who].append(generated(twin, [prompts[who]], 3, store=store).tokens)
            except RequestError as error:
                told[who].add(str(error))
                time.sleep(0.01)
            if len(answers[who]) == 10:
                break

    threads = [threading.Thread(target=ask, args=(who,)) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for who in (0, 1):
        assert answers[who] == [alone[who]] * 10
        assert told[who] <= {
            "lease: the store is in use by another request. Settle or abandon that one first, or "
            "give each thread a store of its own."
        }


@twins
def test_a_second_request_before_the_first_is_settled_is_refused(twin):
    store = make_store(twin)
    lease = store.lease([text(1)], [2], weights="w")

    with pytest.raises(RequestError, match="lease: the store is in use by another request"):
        store.lease([text(2)], [2], weights="w")
    with pytest.raises(RequestError, match="forget: the store is in use"):
        store.forget("")
    store.abandon(lease)

    assert store.usage.locked == 0
    assert generated(twin, [text(2)], store=store).reused_B.tolist() == [0]


FAILING = {
    "planning": "prefixed.plan",
    "the model": "generation.caches.check",
    "collecting": "generation.collect",
    "settling": "caches.prefix.PrefixBook.keep",
    "ending": "caches.prefix.PrefixBook.close",
}


@pytest.mark.parametrize("where", FAILING)
@twins
def test_a_request_that_fails_leaves_a_store_that_answers_rightly(twin, where, monkeypatch):
    store, ids = make_store(twin), text(1)
    generated(twin, [ids], store=store)
    place, name = f"{twin}.{FAILING[where]}".rsplit(".", 1)
    right = getattr(pkgutil.resolve_name(place), name)

    def fail(*arguments, **options):
        if where == "ending":
            right(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pkgutil.resolve_name(place), name, fail)
        with pytest.raises(KeyboardInterrupt):
            generated(twin, [[*ids, 5]], store=store)

    assert store.usage.locked == 0
    runs = [generated(twin, [[*ids, 6]], store=store) for _ in range(2)]
    assert [run.tokens for run in runs] == 2 * [generated(twin, [[*ids, 6]]).tokens]
    assert runs[1].reused_B.tolist() == [16]


@twins
def test_a_hundred_requests_hold_no_more_memory_than_two(twin):
    """KV-81: every request left its cache behind."""
    import gc

    store = make_store(twin, pool_pages=16)

    def live():
        gc.collect()
        if twin == "torchkv":
            import torch

            return sum(
                x.numel() * x.element_size()
                for x in gc.get_objects()
                if issubclass(type(x), torch.Tensor)
            )
        import jax

        return sum(x.nbytes for x in jax.live_arrays())

    results, after = [], {}
    for number in range(1, 101):
        ids = np.random.default_rng(number).integers(0, 97, 9).tolist()
        results.append(generated(twin, [ids], 3, store=store))
        if number in (2, 100):
            after[number] = live()

    assert after[100] == after[2]
    assert all(result.cache is None for result in results)
