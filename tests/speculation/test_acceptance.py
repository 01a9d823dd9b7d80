"""The distribution of what is kept, by enumerating every outcome on a vocabulary of three.

Probabilities are eighths, their ratios and what is left of their differences are twelfths: a grid
of 12 midpoints stands for each random number, so that counting outcomes is integrating exactly.
"""

import importlib
from itertools import product

import numpy as np
import pytest

from tests.sampling.slow import Twin, distribution
from tests.tiny import TWINS

pytestmark = pytest.mark.parametrize("twin", [Twin(name) for name in TWINS], ids=TWINS)
V = 3
# What the model says after nothing, and after each first token.
P = np.array([[4, 4, 0], [2, 4, 2], [8, 0, 0], [1, 6, 1]]) / 8
DRAFTS = {
    "equal": P,
    "far": np.array([[1, 6, 1], [6, 1, 1], [0, 4, 4], [2, 4, 2]]) / 8,
    "all-rejected": np.array([[0, 0, 8], [8, 0, 0], [0, 8, 0], [0, 0, 8]]) / 8,
    "certain": np.array([[8, 0, 0], [0, 8, 0], [8, 0, 0], [0, 0, 8]]) / 8,
}
KEPT = {"equal": [0, 0, 1], "all-rejected": [1, 0, 0], "certain": [0.5, 0.25, 0.25]}
STEPS = 12


def judge(twin, p_RTV, q_RKV, draft_RK, accept_RK, next_RT):
    module = importlib.import_module(f"{twin.name}.acceptance")
    count_R = np.full(len(draft_RK), draft_RK.shape[1], np.int32)
    given = (p_RTV, q_RKV, draft_RK.astype(np.int32), count_R, accept_RK, next_RT)
    found = module.judge(*(None if x is None else twin.array(x) for x in given))
    return [np.asarray(x) for x in found]


def outcomes(twin, q, *, drawn=True):
    """Return the probability of every text of two tokens, and of each number of kept drafts.

    Two drafts are judged; where fewer than two tokens come of it, the model's own distribution goes
    on, as the next round's does by the same rule.
    """
    grid = (np.arange(STEPS) + 0.5) / STEPS
    pairs = [(x, y) for x, y in product(range(V), repeat=2) if q[0, x] * q[1 + x, y] > 0]
    cases = [(x, y, *u) for x, y in pairs for u in product(grid, repeat=3)]
    table = np.array(cases)
    x, y = table[:, 0].astype(int), table[:, 1].astype(int)
    # What follows both drafts is never seen here: any distribution will do.
    p_RTV = np.stack([P[np.zeros_like(x)], P[1 + x], P[np.zeros_like(x)]], 1)
    q_RKV = np.stack([q[np.zeros_like(x)], q[1 + x]], 1) if drawn else None
    next_RT = np.repeat(table[:, 4:], 3, 1)
    kept, following = judge(twin, p_RTV, q_RKV, np.stack([x, y], 1), table[:, 2:4], next_RT)
    chance = np.zeros((V, V))
    by_kept = np.zeros(3)
    for a, b, n, new in zip(x, y, kept, following, strict=True):
        mass = q[0, a] * q[1 + a, b] / STEPS**3
        by_kept[n] += mass
        if n == 0:
            chance[new] += mass * P[1 + new]
        else:
            chance[a, b if n == 2 else new] += mass
    return chance, by_kept


def owed():
    return P[0][:, None] * P[1:]


@pytest.mark.parametrize("name", DRAFTS)
def test_every_text_of_two_tokens_is_as_likely_as_the_model_says(twin, name):
    """KV-29: all kept, all rejected, mixed; exactly, for drafts from another distribution."""
    chance, by_kept = outcomes(twin, DRAFTS[name])

    np.testing.assert_allclose(chance, owed(), rtol=0, atol=1e-12)
    if name in KEPT:
        np.testing.assert_allclose(by_kept, KEPT[name], rtol=0, atol=1e-12)
    else:
        assert (by_kept > 0.05).all()


def test_drafts_that_nothing_was_drawn_for_are_kept_as_often_as_they_are_likely(twin):
    """A lookup's drafts: q is certain, and need not be given."""
    q = DRAFTS["certain"]

    found, given = outcomes(twin, q, drawn=False), outcomes(twin, q)

    np.testing.assert_allclose(found[0], owed(), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[1], given[1])


def test_the_smallest_public_case_gives_p_and_not_a_draw_anew(twin):
    """KV-29: p = [.5, .3, .2], q = [.2, .3, .5], one draft; drawn anew it is [.35, .39, .26].

    And after a kept draft the next token is drawn from the model's next distribution.
    """
    p, q, steps = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5]), 40
    after = np.array([0.1, 0.6, 0.3])
    grid = (np.arange(steps) + 0.5) / steps
    table = np.array([(x, *u) for x in range(V) for u in product(grid, repeat=2)])
    x, rows = table[:, 0].astype(int), len(table)
    p_RTV = np.broadcast_to(np.stack([p, after]), (rows, 2, V)).copy()
    q_RKV = np.broadcast_to(q, (rows, 1, V)).copy()

    kept, following = judge(
        twin, p_RTV, q_RKV, x[:, None], table[:, 1:2], np.repeat(table[:, 2:], 2, 1)
    )

    mass = q[x] / steps**2
    first = np.bincount(np.where(kept == 1, x, following), mass, V)
    second = np.bincount(following[kept == 1], mass[kept == 1], V)
    np.testing.assert_allclose(first, p, rtol=0, atol=1e-12)
    np.testing.assert_allclose(second / second.sum(), after, rtol=0, atol=1e-12)
    assert np.abs(first - [0.35, 0.39, 0.26]).max() > 0.1


def test_rounding_that_rejects_from_equal_distributions_still_gives_a_token(twin):
    p = np.array([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    q = np.array([[[0.5 + 2e-16, 0.5 + 2e-16, 0.0]]])

    kept, following = judge(
        twin, p, q, np.array([[1]]), np.array([[1 - 1e-16]]), np.array([[0.1, 0.1]])
    )

    assert kept.tolist() == [0]
    assert following.tolist() == [0]


def test_a_draft_of_probability_zero_is_never_kept_and_the_ends_of_the_interval_are_safe(twin):
    p = np.tile(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), (2, 1, 1))
    accept, following = np.array([[0.0], [1 - 2**-24]]), np.full((2, 2), 0.0)

    for draft, wanted in ((0, [0, 0]), (1, [1, 1])):
        kept, new = judge(twin, p, None, np.full((2, 1), draft), accept, following)

        assert kept.tolist() == wanted
        assert new.tolist() == ([1, 1] if draft == 0 else [2, 2])


def test_probabilities_are_those_of_the_filters_and_certain_at_temperature_0(twin):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 2, 8)) * 2
    asked = {"temperature": [0.7, 0.0, 2.0], "top_k": [8, 8, 3], "top_p": [0.9, 1.0, 1.0]}
    module = importlib.import_module(f"{twin.name}.acceptance")

    found = module.probabilities(twin.array(logits), twin.sampler(8, 3, **asked))

    for t in range(2):
        for b in (0, 2):
            own = {name: values[b] for name, values in asked.items()}
            expected = distribution(logits[b, t], **own)
            np.testing.assert_allclose(np.asarray(found)[b, t], expected, rtol=1e-6, atol=1e-12)
        assert np.asarray(found)[1, t].tolist() == np.eye(8)[logits[1, t].argmax()].tolist()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_greedy_keeps_the_first_run_of_likeliest_tokens(twin, count):
    module = importlib.import_module(f"{twin.name}.acceptance")
    logits = np.eye(5)[np.array([[1, 2, 3, 4], [0, 0, 0, 0], [4, 1, 2, 0]])]
    draft = np.array([[1, 2, 3], [1, 0, 0], [4, 0, 2]], np.int32)
    counts = np.full(3, count, np.int32)

    kept, following = module.judge_greedy(*(twin.array(x) for x in (logits, draft, counts)))

    expected = {0: ([0, 0, 0], [1, 0, 4]), 1: ([1, 0, 1], [2, 0, 1]), 3: ([3, 0, 1], [4, 0, 1])}
    assert (np.asarray(kept).tolist(), np.asarray(following).tolist()) == expected[count]
