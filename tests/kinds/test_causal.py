"""Attention of a long text in two parts, masked and not: it is the plain softmax, and causal."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkv import caches, ops
from jaxkv.caches import causal, slots
from jaxkv.model import forward, params_of
from tests.tiny import make_model

B, K, G, H = 2, 2, 3, 8
BLOCK = ops.QUERY_BLOCK


def arrays(tokens, dtype, *, width=H):
    rng = np.random.default_rng(tokens)
    shapes = (K * G, H), (K, H), (K, width)
    return [jnp.asarray(rng.standard_normal((B, tokens, *shape)), dtype) for shape in shapes]


def plain(q_BTNH, k_BTKH, v_BTKH, *, scale, cap=None):
    """Return softmax attention, all scores at once, in float64 by NumPy."""
    q, k, v = (np.asarray(x, np.float64) for x in (q_BTNH, k_BTKH, v_BTKH))
    k, v = (np.repeat(x, G, axis=2) for x in (k, v))
    score = np.einsum("BTNH,BSNH->BNTS", q, k) * scale
    if cap is not None:
        score = cap * np.tanh(score / cap)
    weight = np.exp(score) * np.tri(q.shape[1])
    return np.einsum("BNTS,BSNH->BTNH", weight / weight.sum(-1, keepdims=True), v)


def attended(q, k, v, rule):
    position_BT = jnp.broadcast_to(jnp.arange(q.shape[1], dtype=jnp.int32), q.shape[:2])
    run = jax.jit(
        lambda q, k, v: slots.attend_fresh(
            q, k, v, position_BT=position_BT, valid_BT=position_BT >= 0, rule=rule
        )
    )
    return np.asarray(run(q, k, v).astype(jnp.float64))


@pytest.mark.parametrize("tokens", [BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 44])
@pytest.mark.parametrize("cap", [None, 2.0], ids=["", "capped"])
def test_two_parts_are_the_plain_softmax(tokens, cap):
    given, rule = arrays(tokens, jnp.float64), ops.Rule(scale=0.3, soft_cap=cap)

    assert causal.is_served(tokens, rule=rule)

    expected = plain(*given, scale=0.3, cap=cap)
    np.testing.assert_allclose(attended(*given, rule), expected, atol=1e-13, rtol=0)


def test_values_may_be_wider_than_keys():
    given = arrays(BLOCK + 7, jnp.float64, width=2 * H)

    found = attended(*given, ops.Rule(scale=0.3))

    np.testing.assert_allclose(found, plain(*given, scale=0.3), atol=1e-13, rtol=0)


def test_scores_too_large_for_an_exponential_do_not_overflow():
    q, k, v = arrays(BLOCK + 9, jnp.float64)

    found = attended(q * 400, k * 400, v, ops.Rule(scale=1.0))

    assert np.isfinite(found).all()
    # Of such scores the highest key alone counts.
    score = np.einsum("BTNH,BSNH->BNTS", q, np.repeat(k, G, axis=2))
    best_BNT = np.where(np.tri(BLOCK + 9), score, -np.inf).argmax(-1)
    each = np.take_along_axis(
        np.repeat(v, G, axis=2).swapaxes(1, 2), best_BNT[..., None], axis=2
    ).swapaxes(1, 2)
    np.testing.assert_allclose(found, each, atol=1e-12, rtol=0)


def test_bfloat16_keeps_scores_and_sums_wide():
    """A scale that is no power of two would round every query again, 0.07 here."""
    q, k, v = arrays(BLOCK + 1, jnp.bfloat16)
    q = q * 16

    found = attended(q, k, v, ops.Rule(scale=0.3))

    # One rounding of each weight, 2^-9 of one, and one of the output of about 3.
    np.testing.assert_allclose(found, plain(q, k, v, scale=0.3), atol=2**-6, rtol=0)


def test_what_comes_later_changes_nothing_before_it():
    q, k, v = arrays(2 * BLOCK + 3, jnp.float32)
    cut = BLOCK + 5

    before = attended(q, k, v, ops.Rule(scale=0.3))
    after = attended(q, k.at[:, cut:].add(3), v.at[:, cut:].multiply(-2), ops.Rule(scale=0.3))

    np.testing.assert_array_equal(after[:, :cut], before[:, :cut])
    assert (after[:, cut:] != before[:, cut:]).any(axis=(0, 2, 3)).all()


def test_tokens_that_are_not_real_get_zeros():
    q, k, v = arrays(BLOCK + 3, jnp.float64)
    count_B = jnp.array([BLOCK - 4, 0])
    valid_BT = jnp.arange(BLOCK + 3) < count_B[:, None]
    k_XTH, v_XTH = slots.heads_first(k), slots.heads_first(v)
    run = jax.jit(partial(causal.attend, rule=ops.Rule(scale=0.3)))

    found = np.asarray(run(q, k_XTH, v_XTH, valid_BT=valid_BT))

    expected = np.where(valid_BT[:, :, None, None], plain(q, k, v, scale=0.3), 0)
    np.testing.assert_allclose(found, expected, atol=1e-13, rtol=0)


def test_a_query_that_sees_nothing_weighs_nothing():
    score_XMS = jnp.array([[[5.0, -3.0], [2.0, jnp.nan]]])
    visible_XMS = jnp.array([[[False, False], [True, False]]])

    weight_XMS, total_XM1 = ops.weigh(score_XMS, visible_XMS)

    np.testing.assert_array_equal(weight_XMS, [[[0, 0], [1, 0]]])
    np.testing.assert_array_equal(total_XM1, [[[1], [1]]])


@pytest.mark.parametrize(
    ("tokens", "rule", "served"),
    [
        (BLOCK, ops.Rule(scale=1.0), False),
        (BLOCK + 1, ops.Rule(scale=1.0), True),
        (BLOCK + 1, ops.Rule(scale=1.0, window=BLOCK + 1), True),
        (BLOCK + 1, ops.Rule(scale=1.0, window=BLOCK), False),
        (BLOCK + 1, ops.Rule(scale=1.0, causal=False), False),
    ],
)
def test_one_block_windows_and_other_texts_are_left_to_masks(tokens, rule, served):
    assert causal.is_served(tokens, rule=rule) == served


def test_a_long_prompt_at_once_gives_the_logits_of_its_pieces():
    """Two blocks and a part; another row ends before them, so that most of its tokens are not real.

    Pieces of 90 are less than a block, and read their cache with masks.
    """
    model = make_model("jaxkv", "llama", "float64")
    config, params = model.config, params_of(model)
    run = jax.jit(partial(forward, config=config, last_only=True), static_argnames="fresh")
    tokens, count_B = 2 * BLOCK + 14, jnp.array([2 * BLOCK + 14, BLOCK - 3], jnp.int32)
    ids_BT = jnp.asarray(np.random.default_rng(3).integers(0, 97, (2, tokens)), jnp.int32)

    def empty():
        return caches.init(config, batch=2, capacity=300, dtype="float64")

    at_once, held = run(params, ids_BT, empty(), count_B, fresh=True)
    cache, pieces = empty(), []
    for start in range(0, tokens, 90):
        part_B = jnp.clip(count_B - start, 0, 90)
        logits, cache = run(params, ids_BT[:, start : start + 90], cache, part_B, fresh=False)
        pieces.append(np.asarray(logits[:, 0]))

    last = np.stack([pieces[(int(count) - 1) // 90][row] for row, count in enumerate(count_B)])
    np.testing.assert_allclose(np.asarray(at_once[:, 0]), last, atol=1e-11, rtol=0)
    np.testing.assert_array_equal(held.length_B, cache.length_B)
