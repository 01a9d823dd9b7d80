"""What is served from a store equals what is computed anew, and its counts are exact."""

import dataclasses
import random

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.errors import CapacityError, RequestError, Unsupported
from tests.prefix.stores import Books, generated, make_store, subject_of
from tests.tiny import CONFIGS, DEEP, PAGE, TWINS, Cell, make_subject, module, weights

EXACT = close(rtol=1e-10, atol=1e-10)
twins = pytest.mark.parametrize("twin", TWINS)
V = 97


def text(seed: int, length: int = 17) -> list[int]:
    return np.random.default_rng(seed).integers(0, V, length).tolist()


def draw(rng: random.Random, earlier: list[list[int]]) -> list[int]:
    """Return a text that shares a beginning with an earlier one, of any length."""
    front = rng.choice(earlier)[: rng.randrange(25)] if earlier else []
    length = max(1, min(24, len(front) + rng.randrange(9)))
    return (front + [rng.randrange(V) for _ in range(24)])[:length]


@pytest.mark.parametrize("seed", range(25 if DEEP else 1))
@pytest.mark.parametrize("pool_pages", [16, 64], ids=["under-pressure", "roomy"])
@twins
def test_any_program_of_requests_gives_the_logits_of_computing_anew(twin, pool_pages, seed):
    """A dictionary says what is reused, and for whom; the logits are those of one forward."""
    rng, subject, books = random.Random(seed), subject_of(twin), Books(pool_pages)
    store, texts = subject.prefix_store(pool_pages=pool_pages), []
    reused = evicted = 0
    for _ in range(40):
        tenant, ids = rng.choice(["a", "b"]), draw(rng, texts)
        texts.append(ids)

        logits, n = store.step(np.array([ids]), tenant=tenant)

        assert int(n[0]) == books.serve(tenant, ids)
        right = subject.full(np.array([ids]))
        assert_agree(logits[:, n[0] :], right[:, n[0] :], EXACT, name="logits")
        for each in "ab":
            counts = dataclasses.astuple(store.store.counts(each))
            assert counts == tuple(books.counts.get(each, [0] * 5))
        usage = store.store.usage
        assert usage.free + usage.evictable == pool_pages
        assert (usage.locked, usage.evicted) == (0, books.evicted)
        reused, evicted = reused + int(n[0]), usage.evicted
    assert reused
    assert (evicted > 0) == (pool_pages == 16)


@twins
def test_a_shared_prefix_enters_the_model_once(twin):
    store, first = make_store(twin), text(1)
    second = [*first[:13], *text(2, 4)]

    cold = generated(twin, [first], store=store)
    warm = generated(twin, [second], store=store)

    assert cold.reused_B.tolist() == [0]
    assert warm.reused_B.tolist() == [12]
    assert warm.forwarded_positions_B.tolist() == [17 - 12 + 5 - 1]
    assert warm.tokens == generated(twin, [second]).tokens


@twins
def test_draws_are_those_without_a_store(twin):
    store, ids = make_store(twin), text(1)
    how = {"temperature": 1.5, "seeds": 3}
    generated(twin, [ids], store=store)

    warm = generated(twin, [ids], 9, store=store, **how)

    assert warm.reused_B.tolist() == [16]
    assert warm.tokens == generated(twin, [ids], 9, **how).tokens


def test_a_request_of_the_same_size_compiles_nothing():
    store = make_store("jaxkv")

    runs = [generated("jaxkv", [[*text(1, 13), own]], store=store) for own in range(4)]

    assert [run.compilations for run in runs[2:]] == [0, 0]
    assert [run.compilations <= 1 for run in runs] == [True] * 4


@twins
def test_a_continued_chat_reuses_what_was_generated(twin):
    store = make_store(twin)
    first = generated(twin, [text(1, 9)], 8, store=store)

    turn = [*first.tokens[0], 5]
    second = generated(twin, [turn], store=store)

    assert second.reused_B.tolist() == [16]
    assert second.tokens == generated(twin, [turn]).tokens


@pytest.mark.parametrize("length", [1, 2 * PAGE, 2 * PAGE + 1], ids=str)
@twins
def test_a_whole_prompt_that_is_known_leaves_one_token_to_compute(twin, length):
    """KV-39: a prompt whose every page was cached left nothing to run, and no logits."""
    store, ids = make_store(twin), text(3, length)

    runs = [generated(twin, [ids], 1, store=store, logprobs=True) for _ in range(3)]

    alone = generated(twin, [ids], 1, logprobs=True)
    assert [run.tokens for run in runs] == [alone.tokens] * 3
    for run in runs:
        np.testing.assert_allclose(run.logprobs[0], alone.logprobs[0], rtol=1e-6)
    assert [int(run.forwarded_positions_B[0]) for run in runs] == [length, 1, 1]


@twins
def test_rows_of_one_batch_equal_their_solo_runs(twin):
    store, front = make_store(twin, pool_pages=64), text(4, 12)
    generated(twin, [front], store=store)
    rows = [[*front, *text(5, 3)], text(6, 7), [*front[:9], *text(7, 1)], front]

    batch = generated(twin, rows, [5, 3, 0, 4], store=store)

    assert batch.reused_B.tolist() == [12, 0, 0, 11]
    for row, ids, budget in zip(range(4), rows, [5, 3, 0, 4], strict=True):
        assert batch.tokens[row] == generated(twin, [ids], budget).tokens[0]
    counts = store.counts()
    assert (counts.hits, counts.misses, counts.reused, counts.shared) == (2, 2, 23, 6)


@twins
def test_a_store_under_another_salt_forwards_as_much_as_a_cold_one(twin):
    store, ids = make_store(twin), text(8)
    generated(twin, [ids], store=store, tenant="a")

    other = generated(twin, [ids], store=store, tenant="b")
    own = generated(twin, [ids], store=store, tenant="a")

    cold = generated(twin, [ids], store=make_store(twin), tenant="b")
    assert other.forwarded_positions_B.tolist() == cold.forwarded_positions_B.tolist() == [21]
    assert own.forwarded_positions_B.tolist() == [5]


@twins
def test_a_tenants_counts_do_not_tell_what_others_did(twin):
    """In a pool with room for all: the counts of b are those of a store that only b uses."""
    busy, alone = make_store(twin, pool_pages=64), make_store(twin, pool_pages=64)
    for seed in (1, 1, 2):
        generated(twin, [text(seed)], store=busy, tenant="a")

    for store in (busy, alone):
        for seed in (1, 2, 2):
            generated(twin, [text(seed)], store=store, tenant="b")

    assert busy.counts("b") == alone.counts("b")
    assert busy.counts("b").hits == 1
    assert busy.counts("nobody") == type(busy.counts("b"))()


@twins
def test_what_a_tenant_forgets_is_gone(twin):
    store, ids = make_store(twin, pool_pages=11), text(9)
    generated(twin, [ids], store=store, tenant="a")

    gone = store.forget("a")
    again = generated(twin, [ids], store=store, tenant="a")

    assert gone == 5
    assert again.reused_B.tolist() == [0]
    assert store.counts("a").misses == 1


def stored(cache, pages):
    """Return what the pages hold, of every buffer of a pool; pages lead in all."""
    count = len(cache.shared.count_A)
    buffers = [
        np.asarray(x).reshape(count, -1)[pages]
        for site in cache.sites
        for x in vars(site).values()
        if hasattr(x, "dtype")
    ]
    return np.concatenate(buffers, axis=1)


@pytest.mark.parametrize("how", ["forgotten", "evicted"])
@twins
def test_pages_that_held_another_tenants_text_are_wiped_when_handed_out(twin, how):
    store, ids = make_store(twin, pool_pages=11), text(9)
    generated(twin, [ids], store=store, tenant="a")
    if how == "forgotten":
        store.forget("a")

    lease = store.lease([text(2, 40)], [5], weights="w", tenant="b")

    assert len(lease.page_M) == 11
    assert not stored(lease.cache, lease.page_M).any()


@twins
def test_nan_of_one_request_reaches_no_other(twin):
    """Weights with a NaN: a step may read the whole pool, and a weight of 0 does not silence it."""
    store, arrays = make_store(twin, pool_pages=22), {**weights("llama")}
    arrays["layers.0.attn.v.weight"] = arrays["layers.0.attn.v.weight"] + np.nan
    from_arrays = module(Cell(twin, "llama", "paged"), "weights").from_arrays
    broken = from_arrays(CONFIGS["llama"], arrays, dtype="float64")
    generated(twin, [text(1)], store=store, model=broken)

    ids = text(2, 6)

    assert generated(twin, [ids], store=store).tokens == generated(twin, [ids]).tokens
    assert store.counts().kept == 2


@twins
def test_an_evicted_prefix_is_computed_again_and_the_oldest_goes_first(twin):
    store = make_store(twin, pool_pages=11)
    oldest, older, newest = text(1), text(2), text(3)
    for ids, budget in ((oldest, 5), (older, 9), (newest, 9)):
        generated(twin, [ids], budget, store=store)
    kept, gone = store.counts().kept, store.usage.evicted

    again = generated(twin, [older], 9, store=store)
    first = generated(twin, [oldest], store=store)

    assert (kept, gone) == (5 + 6 + 6, 7)
    assert again.reused_B.tolist() == [16]
    assert first.reused_B.tolist() == [0]
    assert first.tokens == generated(twin, [oldest]).tokens


@twins
def test_a_pool_too_small_for_a_request_says_by_how_much_and_not_what_others_hold(twin):
    """The refusal of b is the same, whether the pool is empty or holds prefixes of a."""
    store, told = make_store(twin, pool_pages=11), []

    for _ in range(2):
        with pytest.raises(CapacityError) as error:
            generated(twin, [text(1, 30), text(2, 30)], store=store, tenant="b")
        told.append(str(error.value))
        generated(twin, [text(1)], store=store, tenant="a")

    assert told == 2 * [
        "lease: the request may take 18 pages of 4, the pool of 11 can give 11. Make the store "
        "with pool_pages 18, or ask for less at once."
    ]
    right = generated(twin, [text(1)]).tokens
    assert generated(twin, [text(1)], store=store, tenant="b").tokens == right


@twins
def test_a_row_longer_than_the_stores_capacity_is_refused(twin):
    with pytest.raises(CapacityError, match=r"prompt 41 . max_new_tokens 5 - 1 = 45 slots"):
        generated(twin, [text(1, 41)], store=make_store(twin))


WRONG = [
    ({"tenant": "a"}, "tenant is 'a', but there is no store in which it could matter"),
    ({"adapter": "a"}, "adapter is 'a', but there is no store"),
    ({"store": "own", "capacity": 40}, "capacity is given beside a store"),
    ({"store": "own", "layout": "paged"}, "layout is given beside a store"),
    ({"store": "own", "keep_cache": True}, "keep_cache is given beside a store"),
    ({"store": "own", "cached": False}, "cached is given beside a store"),
    ({"store": "gpt2"}, "the store is for gpt2 in float64, the model is llama in float64"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[each[1][:20] for each in WRONG])
@twins
def test_what_does_not_go_with_a_store_is_refused(twin, options, message):
    stores = {"own": "llama", "gpt2": "gpt2"}
    if "store" in options:
        options = {**options, "store": make_store(twin, model=stores[options["store"]])}

    with pytest.raises(RequestError) as error:
        generated(twin, [text(1)], **options)

    assert message in str(error.value)


@twins
def test_a_text_that_does_not_begin_with_its_prompt_is_not_kept(twin):
    store = make_store(twin)
    lease = store.lease([[1, 2, 3]], [1], weights="w")
    held = dataclasses.replace(lease.cache, length_B=lease.cache.length_B + 3)

    with pytest.raises(RequestError, match=r"settle: texts\[0\] does not begin with the prompt"):
        store.settle(lease, held, [[1, 2, 4]])
    longer = dataclasses.replace(lease.cache, length_B=lease.cache.length_B + 5)
    with pytest.raises(RequestError, match=r"texts\[0\] has 3 tokens, the cache holds 5"):
        store.settle(lease, longer, [[1, 2, 3]])


@twins
def test_layouts_without_pages_share_none(twin):
    subject = make_subject(Cell(twin, "llama", "contiguous"))

    assert "layout=paged has" in subject.info.absent["prefix"]
    with pytest.raises(Unsupported, match="the contiguous layout has no pages to share"):
        subject.prefix_store()
