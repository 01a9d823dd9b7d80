"""What makes reuse right, what a cached query sees, and what is another function altogether."""

import numpy as np
import pytest

from crosscheck import Disagreement, assert_agree, close
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny import llama
from tests.claims.twins import a_key, attend_once, ints, keys_seen
from tests.tiny import (
    BATCH,
    CAPACITY,
    CELLS,
    CONFIGS,
    LONGEST,
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
RNG = np.random.default_rng(3)
Q, K, V = RNG.normal(size=(3, 7, 18))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("sizes", [[5, 8, 3], [16], [1] * 16, [9, 1, 6]], ids=str)
def test_a_query_at_offset_i_after_p_cached_tokens_sees_keys_up_to_p_plus_i(twin, sizes):
    seen = keys_seen(Cell(twin, "llama", "contiguous"), sizes)

    np.testing.assert_array_equal(seen, np.tril(np.ones((16, 16), bool)))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("layout", ["contiguous", "window"])
def test_a_window_bounds_the_keys_that_each_query_sees_to_min_of_t_and_w(twin, layout):
    """A prompt of 6, then 9 tokens one by one: with W = 4, and without a window."""
    cell, sizes = Cell(twin, "llama", layout), [6] + [1] * 9
    number = np.arange(1, 16)

    windowed, whole = (keys_seen(cell, sizes, window=window).sum(1) for window in (4, None))

    np.testing.assert_array_equal(windowed, np.minimum(number, 4))
    np.testing.assert_array_equal(whole, number)
    assert whole[6:].sum() == 9 * 6 + 9 * 10 // 2


@pytest.mark.parametrize("twin", TWINS)
def test_a_bidirectional_encoders_states_change_when_its_input_grows(twin):
    cell = Cell(twin, "llama", "contiguous")
    short, long = (
        {causal: attend_once(cell, Q[:n], K[:n], V[:n], causal=causal) for causal in (True, False)}
        for n in (6, 7)
    )

    np.testing.assert_allclose(long[True][:6], short[True], rtol=0, atol=1e-12)
    assert np.abs(long[False][:6] - short[False]).max(1).min() > 1e-3


@pytest.mark.parametrize("twin", TWINS)
def test_cross_attention_needs_only_its_own_query_and_the_kept_keys_and_values(twin):
    cell = Cell(twin, "llama", "contiguous")
    other = Q.copy()
    other[[0, 1, 2, 4, 5, 6]] = RNG.normal(size=(6, 18))

    one, two = (attend_once(cell, q, K, V, causal=False) for q in (Q, other))

    np.testing.assert_allclose(one[3], two[3], rtol=0, atol=1e-12)
    assert np.abs(np.delete(one - two, 3, 0)).max() > 1e-3


@pytest.mark.parametrize("twin", TWINS)
def test_dropping_the_oldest_keys_is_not_recomputing_the_cropped_text(twin):
    """Rotary positions are relative, so only what the dropped tokens said can tell them apart.

    With one layer nothing can: its keys and values come from single tokens. With two the kept
    entries of the second layer still contain tokens that the first has dropped.
    """
    one, two = (last_logits(twin, windows) for windows in ((4,), (4, 4)))

    assert_agree(*one, EXACT, name="logits, 1 layer", names=("dropped", "recomputed"))
    with pytest.raises(Disagreement):
        assert_agree(*two, EXACT, name="logits, 2 layers", names=("dropped", "recomputed"))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("model", CONFIGS)
def test_a_length_inferred_from_the_allocation_is_seen(twin, model, monkeypatch):
    """The padding of a row counts as text: positions and mask of what follows are wrong."""
    cell = Cell(twin, model, "contiguous")
    begin = module(cell, "caches").begin

    def by_allocation(cache, count_B, *, T, **options):
        return begin(cache, count_B * 0 + T, T=T, **options)

    assert_ragged(own_subject(cell))
    monkeypatch.setattr(module(cell, "caches"), "begin", by_allocation)

    with pytest.raises(Disagreement) as error:
        assert_ragged(own_subject(cell))
    # Row 0 fills its chunk of 8; row 1 has 3 real tokens and is the first to go wrong.
    assert (error.value.comparison.first.row, error.value.comparison.first.position) == (1, 0)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_forward_without_a_cache_keeps_nothing(cell):
    model, ids = module(cell, "model"), ids_of(cell, 9, length=8)

    logits, after = model.forward(
        model.params_of(make_model(cell.twin, cell.model)),
        ints(cell.twin, ids),
        None,
        ints(cell.twin, [8] * BATCH),
        config=cell.config,
    )

    assert after is None
    assert_agree(np.asarray(logits), cell.subject.full(ids), EXACT, name="logits")


def test_equal_results_with_and_without_jit():
    import jax

    cell = Cell("jaxkv", "reference", "contiguous")
    ids = ids_of(cell, 10, length=8)

    jitted, _ = cell.subject.step(cell.subject.init(BATCH, CAPACITY), ids)
    with jax.disable_jit():
        plain, _ = cell.subject.step(cell.subject.init(BATCH, CAPACITY), ids)

    assert_agree(jitted, plain, EXACT, name="logits", names=("jit", "no jit"))


@pytest.mark.parametrize("twin", TWINS)
def test_training_runs_the_full_causal_pass_with_gradients(twin):
    """The loss at position 4 depends on tokens 0 to 4, through one pass without a cache."""
    cell = Cell(twin, "reference", "contiguous")
    ids = np.arange(8)[None]

    touched = np.flatnonzero(np.abs(embedding_gradient(cell, ids, at=4)).sum(1))

    assert touched.tolist() == [0, 1, 2, 3, 4]


def own_subject(cell):
    return new_subject(make_model(cell.twin, cell.model), cell)


def assert_ragged(subject):
    """Two rows of 24 and 3 tokens in one chunk, then 4 more each, against their solo texts.

    24 tokens are a width that jaxkv's subject does not pad.
    """
    ids = RNG_IDS % subject.info.vocab_size
    _, state = subject.step(subject.init(2, 64), ids[:, :LONGEST], count=np.array([LONGEST, 3]))
    more = np.stack([ids[0, LONGEST:], ids[1, 3:7]])
    logits, _ = subject.step(state, more, count=np.array([4, 4]))
    full = subject.full(ids)
    expected = np.stack([full[0, LONGEST:], full[1, 3:7]])
    assert_agree(logits, expected, EXACT, name="logits", names=("ragged", "solo"))


RNG_IDS = np.random.default_rng(8).integers(0, 97, (2, 28))


def last_logits(twin, windows):
    """Return logits after 11 tokens: cached with rings of 4, and recomputed from the last 4."""
    cell, config = Cell(twin, "llama", "window"), llama(*windows)
    arrays = random_arrays(config, seed=7)
    model = module(cell, "weights").from_arrays(config, arrays, dtype="float64")
    subject, ids = new_subject(model, cell), ids_of(cell, 12, length=11)
    logits, _ = feed(subject, subject.init(BATCH, CAPACITY), ids, [8, 1, 1, 1])
    return logits[:, -1:], subject.full(ids[:, -4:])[:, -1:]


def embedding_gradient(cell, ids, *, at):
    """Return the gradient of one logit at a position, by vocabulary row; a token is its own id."""
    model = module(cell, "model")
    own = module(cell, "weights").from_arrays(cell.config, weights("reference"), dtype="float64")
    options = {"config": cell.config, "training": True, "key": a_key(cell.twin)}
    tokens, count = ints(cell.twin, ids), ints(cell.twin, [ids.shape[1]])
    if cell.twin == "torchkv":
        own.requires_grad_()
        logits, _ = model.forward(model.params_of(own), tokens, None, count, **options)
        logits[0, at].square().sum().backward()
        return own.embed.grad.numpy()
    import jax

    def loss(params):
        return (model.forward(params, tokens, None, count, **options)[0][0, at] ** 2).sum()

    return np.asarray(jax.jit(jax.grad(loss))(model.params_of(own))["embed"])
