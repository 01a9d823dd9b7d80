"""Page size, page order and tile width change no result; a page written while shared does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck import Disagreement, assert_agree, close
from tests.relations.test_partition import partitions
from tests.tiny import (
    BATCH,
    CAPACITY,
    TWINS,
    Cell,
    feed,
    ids_of,
    make_model,
    module,
    new_subject,
    shared_by,
)

EXACT = close(rtol=1e-10, atol=1e-10)
CELLS = [Cell(twin, model, "paged") for twin in TWINS for model in ("reference", "llama")]
cells = pytest.mark.parametrize("cell", CELLS, ids=str)


def subject_of(cell, page_size):
    kind = module(cell, "subject").Subject
    return kind(make_model(cell.twin, cell.model), layout="paged", page_size=page_size)


@cells
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_any_page_size_gives_the_logits_of_one_forward(cell, page_size):
    subject, ids = subject_of(cell, page_size), ids_of(cell, 11)

    logits, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [5, 1, 8, 1, 1, 8])

    assert_agree(logits, subject.full(ids), EXACT, name="logits", names=("pages", "full"))
    assert state.shared.page_size == page_size


@shared_by(CELLS)
@given(order=st.permutations(range(1, 45)), seed=st.integers(0, 2**16))
def test_the_order_of_the_pages_changes_nothing(cell, order, seed):
    subject, ids = cell.subject, ids_of(cell, seed)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9])
    moved = permuted(cell, subject.fork(state), np.array([0, *order]))

    left, left_state = feed(subject, state, ids[:, 9:], [1, 7])
    right, right_state = feed(subject, moved, ids[:, 9:], [1, 7])

    assert_agree(left, right, EXACT, name="logits", names=("in order", "permuted"))
    for layer in range(subject.info.num_layers):
        a, b = subject.kv(left_state, layer), subject.kv(right_state, layer)
        sides = [{"k": kv.keys_BSKH, "v": kv.values_BSKH} for kv in (a, b)]
        assert_agree(*sides, EXACT, name="cache", valid=a.valid_BS)


def permuted(cell, state, to_A):
    """Return the cache with page i at place to_A[i] of every pool."""
    from_A = np.argsort(to_A)
    heads = 1 if cell.twin == "torchkv" else cell.config.layers[0].attention.num_kv_heads
    lines = (from_A[:, None] * heads + np.arange(heads)).reshape(-1)
    sites = tuple(
        replace(site, **{n: x[lines] for n, x in vars(site).items() if n[:2] in ("k_", "v_")})
        for site in state.sites
    )
    shared = state.shared
    to_A = to_A.astype(np.int32)
    if cell.twin == "torchkv":
        import torch

        to_A = torch.from_numpy(to_A)
    else:
        import jax.numpy as jnp

        to_A = jnp.asarray(to_A)
    table_BC, count_A = to_A[shared.table_BC], shared.count_A[from_A]
    return replace(state, sites=sites, shared=replace(shared, table_BC=table_BC, count_A=count_A))


@cells
@pytest.mark.parametrize("sizes", [[5, 3, 9, 7], [1] * 24, [23, 1]], ids=str)
def test_tiles_of_two_pages_give_the_logits_of_one_forward(cell, sizes, monkeypatch):
    """The carried softmax, with windows of 5 and 8 that begin inside a tile and past the first."""
    monkeypatch.setattr(module(cell, "caches.page_reads"), "TILE", 8)
    subject, ids = subject_of(cell, 4), ids_of(cell, 12)

    state, logits, at = subject.init(BATCH, CAPACITY), [], 0
    for size in sizes:
        out, state = subject.step(subject.poison(state), ids[:, at : at + size])
        logits.append(out)
        at += size

    assert_agree(np.concatenate(logits, 1), subject.full(ids), EXACT, name="logits")


@cells
def test_ragged_rows_read_by_tiles_equal_their_solo_runs(cell, monkeypatch):
    monkeypatch.setattr(module(cell, "caches.page_reads"), "TILE", 8)
    subject, ids = subject_of(cell, 4), ids_of(cell, 13)
    counts, at = [[3, 8, 0, 5], [8, 1, 0, 8], [1, 0, 0, 1]], np.zeros(BATCH, int)
    state = subject.init(BATCH, CAPACITY)

    for count in counts:
        chunk = np.stack([np.roll(row, -start)[:8] for row, start in zip(ids, at, strict=True)])
        logits, state = subject.step(state, chunk, count=np.array(count))
        for b, n in enumerate(count):
            whole = subject.full(ids[b : b + 1])[:, at[b] : at[b] + n]
            if n:
                assert_agree(logits[b : b + 1, :n], whole, EXACT, name=f"row {b}")
        at += count


@shared_by(CELLS)
@given(sizes=partitions(total=12), seed=st.integers(0, 2**8))
def test_paged_agrees_with_contiguous(cell, sizes, seed):
    flat, ids = replace(cell, layout="contiguous").subject, ids_of(cell, seed, length=12)

    left, _ = feed(cell.subject, cell.subject.init(BATCH, CAPACITY), ids, sizes)
    right, _ = feed(flat, flat.init(BATCH, CAPACITY), ids, sizes)

    assert_agree(left, right, EXACT, name="logits", names=("paged", "contiguous"))


@cells
def test_a_page_written_while_shared_is_seen(cell, monkeypatch):
    """KV-34: without the copy, rows that were one diverge from their solo runs."""
    ids = ids_of(cell, 14, length=9)
    pages = module(cell, "caches.pages")
    begin_shared = pages.begin_shared

    def assert_duplicates_live_apart():
        subject = new_subject(make_model(cell.twin, cell.model), cell)
        _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [6])
        state = subject.gather(state, np.zeros(BATCH, int))
        logits, _ = feed(subject, state, ids[:, 6:], [1, 2])
        texts = np.concatenate([np.repeat(ids[:1, :6], BATCH, 0), ids[:, 6:]], 1)
        assert_agree(logits, subject.full(texts)[:, 6:], EXACT, name="logits")

    def without_copy(shared, length_B, count_B, *, T):
        plan, short_B = begin_shared(shared, length_B, count_B, T=T)
        column_C = np.arange(shared.table_BC.shape[1])
        if cell.twin == "torchkv":
            import torch as xp

            column_C = xp.from_numpy(column_C)
        else:
            import jax.numpy as xp
        was_held_BC = column_C < -(-length_B // shared.page_size)[:, None]
        table_BC = xp.where(was_held_BC, shared.table_BC, plan.pages.table_BC)
        none_B = xp.zeros_like(plan.target_B)
        pages = replace(plan.pages, table_BC=table_BC)
        return replace(plan, pages=pages, source_B=none_B, target_B=none_B), short_B

    assert_duplicates_live_apart()
    monkeypatch.setattr(pages, "begin_shared", without_copy)

    with pytest.raises(Disagreement):
        assert_duplicates_live_apart()


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.model == "llama"], ids=str)
def test_generation_across_tiles_gives_the_ids_of_contiguous(cell):
    prompts = [[1 + i % 17 for i in range(n)] for n in (250, 3, 130)]

    paged = subject_of(cell, 16).generate(prompts, 12)
    flat = replace(cell, layout="contiguous").subject.generate(prompts, 12)

    assert paged.new_tokens == flat.new_tokens


@cells
def test_a_larger_paged_cache_goes_on_where_it_stopped(cell):
    """`narrow` cuts the table and `widen` restores it: the pool and the counts stay exact."""
    subject = subject_of(cell, 5)
    first = subject.generate([[1, 2, 3], [4] * 9], 4, keep_cache=True, capacity=150)
    again = subject.generate([[5], [6]], 3, cache=first.cache, keep_cache=True)
    pages = np.asarray(again.cache.shared.table_BC)

    assert pages.shape == (2, 30)
    held = -(-np.asarray(again.cache.length_B) // 5)
    assert (pages > 0).sum(1).tolist() == held.tolist()
    assert np.asarray(again.cache.shared.count_A).sum() == held.sum()
