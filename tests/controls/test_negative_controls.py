"""Faults planted in each twin, and seen: a relation that cannot fail shows nothing."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck import ComparisonError, Disagreement, assert_agree, close
from jaxkv import programs
from tests.tiny import (
    BATCH,
    CAPACITY,
    CONFIGS,
    TWINS,
    Cell,
    feed,
    ids_of,
    make_model,
    module,
    new_subject,
    weights,
)

EXACT = close(rtol=1e-10, atol=1e-10)
MODELS = tuple(CONFIGS)
pytestmark = [pytest.mark.parametrize("twin", TWINS)]


def _assert_partition(subject, ids, sizes):
    logits, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, sizes)
    assert_agree(logits, subject.full(ids), EXACT, name="logits", names=("cached", "full"))


def _fresh(cell, dtype="float64"):
    return new_subject(make_model(cell.twin, cell.model, dtype), cell)


@pytest.mark.parametrize("model", MODELS)
def test_positions_restarted_after_the_prefix_are_seen(twin, model, monkeypatch):
    """KV-02, KV-03: diverges right after the prefix, with valid shapes."""
    cell = Cell(twin, model, "contiguous")
    ids = ids_of(cell, 1, length=17)
    begin, true = module(cell, "caches").begin, {}

    def restarted(cache, count_B, **options):
        cache, true["step"] = begin(cache, count_B, **options)
        position_BT = true["step"].position_BT
        return cache, replace(true["step"], position_BT=position_BT - position_BT[:, :1])

    _assert_partition(_fresh(cell), ids, [5, 3, 9])
    monkeypatch.setattr(module(cell, "caches"), "begin", restarted)
    monkeypatch.setattr(module(cell, "caches"), "attend", _attend_as_before(cell, true))
    monkeypatch.setattr(module(cell, "caches"), "commit", _commit_as_before(cell, true))

    with pytest.raises(Disagreement) as error:
        _assert_partition(_fresh(cell), ids, [5, 3, 9])
    assert error.value.comparison.first.position == 5


def test_a_causal_triangle_at_the_top_left_corner_is_seen(twin, monkeypatch):
    """KV-05, KV-06: the queries of a chunk lose sight of the history."""
    cell = Cell(twin, "llama", "contiguous")
    ids = ids_of(cell, 2)
    ops = module(cell, "ops")
    is_visible = ops.is_visible

    def top_left(query_BT, key_BS, valid_BS, *, rule):
        return is_visible(query_BT - query_BT[:, :1], key_BS, valid_BS, rule=rule)

    _assert_partition(_fresh(cell), ids, [8, 16])
    monkeypatch.setattr(ops, "is_visible", top_left)

    with pytest.raises(Disagreement) as error:
        _assert_partition(_fresh(cell), ids, [8, 16])
    assert error.value.comparison.first.position == 8


@pytest.mark.parametrize("off", [-1, 1])
def test_an_off_by_one_window_is_seen(twin, off, monkeypatch):
    """KV-11, KV-12: by logits, past the window; the full forward keeps the right one."""
    cell = Cell(twin, "llama", "contiguous")
    ids = ids_of(cell, 3)
    full = _fresh(cell).full(ids)
    ops = module(cell, "ops")
    is_visible = ops.is_visible

    def wider(query_BT, key_BS, valid_BS, *, rule):
        window = None if rule.window is None else rule.window + off
        return is_visible(query_BT, key_BS, valid_BS, rule=replace(rule, window=window))

    monkeypatch.setattr(ops, "is_visible", wider)
    subject = _fresh(cell)
    logits, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, [8, 16])

    with pytest.raises(Disagreement) as error:
        assert_agree(logits, full, EXACT, name="logits")
    # The narrowest window is 5: with one key more the first query to notice stands at 5.
    assert error.value.comparison.first.position == (5 if off == 1 else 4)


@pytest.mark.parametrize("model", MODELS)
def test_a_stale_model_is_seen(twin, model):
    """A cache is valid for the weights that made it."""
    cell = Cell(twin, model, "contiguous")
    ids = ids_of(cell, 4)
    newer = dict(weights(model)) | {
        "layers.0.attn.k.weight": weights(model)["layers.0.attn.v.weight"]
    }
    old, from_arrays = _fresh(cell), module(cell, "weights").from_arrays
    new = new_subject(from_arrays(cell.config, newer, dtype="float64"), cell)

    _, state = feed(old, old.init(BATCH, CAPACITY), ids, [8])
    logits, _ = new.step(state, ids[:, 8:])

    with pytest.raises(Disagreement) as error:
        assert_agree(logits, new.full(ids)[:, 8:], EXACT, name="logits")
    assert error.value.comparison.first.position == 0


@pytest.mark.parametrize("model", MODELS)
def test_dropout_at_rate_one_half_is_seen(twin, model):
    """Reuse ends where the same tokens do not give the same states twice."""
    cell = Cell(twin, model, "contiguous")
    ids = ids_of(cell, 5, length=8)
    quiet, noisy = (_trained_forward(cell, ids, rate) for rate in (0.0, 0.5))

    assert_agree(quiet(1), quiet(2), EXACT, name="logits, rate 0")
    with pytest.raises(Disagreement):
        assert_agree(noisy(1), noisy(2), EXACT, name="logits, rate 0.5")
    with pytest.raises(Disagreement):
        assert_agree(noisy(1), quiet(1), EXACT, name="logits, training and evaluation")


def test_the_prompt_fed_again_is_seen_by_the_positions_forwarded(twin, monkeypatch):
    """Right text, extra work: only the count of what entered the model tells."""
    cell = Cell(twin, "llama", "contiguous")
    loop, prompt = module(cell, "loop"), [5, 3, 9, 1, 7]
    right = _fresh(cell).generate([prompt], 6)
    feed_once = loop._feed

    def feed_twice(params, text, *rest, fresh=False, **options):
        if fresh:
            caches = module(cell, "caches")
            spare = [caches.fork(x) if isinstance(x, caches.Cache) else x for x in rest]
            text, _, _ = feed_once(params, text, *spare, fresh=fresh, **options)
        return feed_once(params, text, *rest, fresh=fresh, **options)

    monkeypatch.setattr(loop, "_feed", feed_twice)
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    wrong = _fresh(cell).generate([prompt], 6)

    assert wrong.new_tokens == right.new_tokens
    assert right.forwarded_positions_B.tolist() == [5 + 6 - 1]
    assert wrong.forwarded_positions_B.tolist() == [5 + 5 + 6 - 1]


def test_concatenation_along_the_head_axis_is_seen_by_its_shape(twin):
    """The head width grows; in a concatenating double, because a fixed buffer cannot express it."""
    cell = Cell(twin, "llama", "contiguous")
    ids = ids_of(cell, 6, length=8)
    subject = _fresh(cell)
    _, state = feed(subject, subject.init(BATCH, 8), ids, [8])
    whole = subject.kv(state, 0).keys_BSKH
    old, new = whole[:, :4], whole[:, 4:]

    right, wrong = np.concatenate([old, new], axis=1), np.concatenate([old, new], axis=3)

    assert_agree(right, whole, EXACT, name="keys")
    with pytest.raises(ComparisonError, match=r"\(4, 4, 3, 36\)"):
        assert_agree(wrong, whole, EXACT, name="keys")


def _attend_as_before(cell, true):
    """Rotate by the restarted positions; write and mask by the true ones: the slots stay."""
    attend = module(cell, "caches").attend

    def attend_restarted(site, step, q, k, v, *, rotate=None, **options):
        if rotate is not None:
            q, k = rotate(q, step.position_BT), rotate(k, step.position_BT)
        return attend(site, true["step"], q, k, v, **options)

    return attend_restarted


def _commit_as_before(cell, true):
    commit = module(cell, "caches").commit
    return lambda cache, step, sites: commit(cache, true["step"], sites)


def _trained_forward(cell, ids, rate):
    forward, params_of = module(cell, "model").forward, module(cell, "model").params_of
    config = replace(cell.config, dropout_rate=rate)
    model = make_model(cell.twin, cell.model)

    def run(seed):
        if cell.twin == "jaxkv":
            import jax
            import jax.numpy as jnp

            call = jax.jit(
                lambda params, ids, count, key: forward(
                    params, ids, None, count, config=config, training=True, key=key
                )[0]
            )
            count = jnp.full(BATCH, 8, jnp.int32)
            arrays = (jnp.asarray(ids, jnp.int32), count, jax.random.key(seed))
            return np.asarray(call(params_of(model), *arrays))
        import torch

        key = torch.Generator().manual_seed(seed)
        count = torch.full((BATCH,), 8, dtype=torch.int32)
        tokens = torch.tensor(ids, dtype=torch.int32)
        out, _ = forward(
            params_of(model), tokens, None, count, config=config, training=True, key=key
        )
        return out.detach().numpy()

    return run
