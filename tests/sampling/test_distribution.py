"""The distribution that is drawn from, enumerated exactly on a small vocabulary."""

import math

import numpy as np
import pytest

from tests.sampling.slow import Twin, distribution
from tests.tiny import TWINS

VOCABULARY = 8
LOGITS = np.array(
    [
        [2.0, -1.0, 0.5, 3.0, 0.0, 1.5, -2.0, 2.5],
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        [9.0, -9.0, 4.0, 8.0, -3.0, 8.5, 0.0, 2.0],
    ]
)
TIES = np.array([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 1.0, 0.0], [3.0] * 8])
FILTERS = {
    "none": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.5},
    "coldest": {"temperature": 1e-4},
    "k1": {"top_k": 1},
    "k3": {"top_k": 3},
    "k7": {"top_k": 7},
    "all": {"top_k": VOCABULARY, "top_p": 1.0, "min_p": 0.0},
    "p-tiny": {"top_p": 1e-6},
    "p-half": {"top_p": 0.5},
    "p-most": {"top_p": 0.97},
    "p-almost-all": {"top_p": 1 - 1e-8},
    "min-p": {"min_p": 0.2},
    "min-p-one": {"min_p": 1.0},
    "k-p": {"top_k": 5, "top_p": 0.8},
    "every": {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
}
pytestmark = pytest.mark.parametrize("twin", [Twin(name) for name in TWINS], ids=TWINS)


def theirs(logits_BV, *, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Return what transformers' own processors leave."""
    import torch
    from transformers.generation import logits_process as processors

    scores = torch.tensor(logits_BV)
    steps = [processors.TemperatureLogitsWarper(temperature)]
    steps += [processors.TopKLogitsWarper(top_k)] if top_k else []
    steps += [processors.TopPLogitsWarper(top_p)] if top_p < 1 else []
    steps += [processors.MinPLogitsWarper(min_p)] if min_p else []
    for step in steps:
        scores = step(torch.zeros((len(scores), 1), dtype=torch.int64), scores)
    return scores.softmax(-1).numpy()


@pytest.mark.parametrize("case", FILTERS)
@pytest.mark.parametrize("logits", [LOGITS, TIES], ids=["distinct", "ties"])
def test_the_filters_leave_the_distribution_of_the_definition_and_of_transformers(
    twin, logits, case
):
    asked = FILTERS[case]

    found = twin.probability(logits, **{"temperature": 1.0, **asked})

    slow = np.stack([distribution(row, **asked) for row in logits])
    np.testing.assert_allclose(found, slow, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found, theirs(logits, **asked), rtol=1e-6, atol=1e-12)
    assert ((found > 0) == (slow > 0)).all()


def test_each_row_has_its_own_settings(twin):
    asked = {
        "temperature": [0.5, 1.0, 2.0],
        "top_k": [8, 3, 6],
        "top_p": [0.9, 1.0, 0.7],
        "min_p": [0.0, 0.3, 0.1],
    }

    found = twin.probability(LOGITS, **asked)

    for b in range(3):
        own = {name: values[b] for name, values in asked.items()}
        np.testing.assert_allclose(found[b], distribution(LOGITS[b], **own), rtol=1e-6, atol=1e-12)


def test_settings_that_keep_all_leave_the_logits_as_they_are(twin):
    """KV-68, KV-69: k = V, p = 1; also where probabilities underflow to 0."""
    logits = np.array([[0.0, -2000.0, -1.0, -1e30]])

    kept = twin.warp(logits, temperature=1.0, top_k=4, top_p=1.0, min_p=0.0)

    assert (kept == logits).all()


@pytest.mark.parametrize("case", ["none", "k3", "p-half", "every"])
def test_evenly_spaced_numbers_choose_each_token_as_often_as_it_is_likely(twin, case):
    """Inverse transform, enumerated: N numbers hit a token N p times, but for the two ends."""
    number = 4096
    asked = {"temperature": 1.0, **FILTERS[case]}
    warped = twin.warp(LOGITS, **asked)
    uniform = (np.arange(number) + 0.5) / number

    for b, row in enumerate(warped):
        tokens = twin.choose(np.repeat(row[None], number, 0), uniform)
        counts = np.bincount(tokens, minlength=VOCABULARY)
        expected = number * distribution(LOGITS[b], **FILTERS[case])
        assert np.abs(counts - expected).max() <= 1
        assert counts[expected == 0].sum() == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1 - 2**-53], ids=["0", "top32", "top64"])
def test_the_ends_of_the_unit_interval_never_choose_a_dropped_token(twin, uniform):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 50)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.9] = -np.inf
    logits[:, 25] = 0.0

    tokens = twin.choose(logits, np.full(200, uniform))

    assert np.isfinite(logits[np.arange(200), tokens]).all()


def test_the_numbers_drawn_are_uniform_over_seeds_and_places(twin):
    """Dvoretzky-Kiefer-Wolfowitz: a uniform sample leaves this band once in a million runs."""
    n = 4096
    band = math.sqrt(math.log(2 / 1e-6) / (2 * n))
    grid = (np.arange(n) + 0.5) / n

    for seeds, places in (
        (np.full(n, 7), np.arange(n)),
        (np.arange(n), np.full(n, 7)),
    ):
        drawn = twin.uniform(seeds, places)
        assert ((drawn >= 0) & (drawn < 1)).all()
        assert np.abs(np.sort(drawn) - grid).max() <= band + 1 / n
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5 / math.sqrt(n)


def test_a_biased_number_leaves_that_band(twin):
    """The control of the test before: squares are not uniform."""
    n = 4096
    drawn = np.sort(twin.uniform(np.full(n, 7), np.arange(n)) ** 1.3)

    band = math.sqrt(math.log(2 / 1e-6) / (2 * n))
    assert np.abs(drawn - (np.arange(n) + 0.5) / n).max() > band


def test_a_number_follows_from_seed_and_place_alone(twin):
    alone = [twin.uniform([seed], [place])[0] for seed, place in ((3, 5), (2**32 - 1, 0), (3, 6))]

    together = twin.uniform([3, 2**32 - 1, 3], [5, 0, 6])

    assert together.tolist() == alone
    assert len(set(alone)) == 3


def test_draws_have_the_exact_distribution(twin):
    """All steps together; each frequency within Hoeffding's bound at one in a million."""
    n, asked = 8192, FILTERS["every"]
    rows = np.repeat(LOGITS[:1], n, 0)

    tokens = twin.sample(rows, np.arange(n), seeds=11, **asked)

    found = np.bincount(tokens, minlength=VOCABULARY) / n
    bound = math.sqrt(math.log(2 * VOCABULARY / 1e-6) / (2 * n))
    expected = distribution(LOGITS[0], **asked)
    assert np.abs(found - expected).max() <= bound
    assert found[expected == 0].sum() == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1e-30},
        {"temperature": 1e-300},
    ],
    ids=str,
)
def test_what_leaves_one_token_equals_greedy(twin, asked):
    """KV-68, KV-69: and nothing is divided by 0."""
    tokens = twin.sample(LOGITS.astype(np.float32), [0, 1, 2], **asked)

    assert tokens.tolist() == LOGITS.argmax(-1).tolist()


def test_equal_logits_at_temperature_0_give_the_lowest_id(twin):
    assert twin.sample(TIES, [0, 1], temperature=0.0).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e38, 1.7e308])
def test_the_hottest_temperature_is_the_uniform_distribution(twin, temperature):
    found = twin.probability(LOGITS.astype(np.float32), temperature=temperature)

    np.testing.assert_allclose(found, 1 / VOCABULARY, rtol=1e-6)


def test_log_probabilities_are_natural_and_of_the_models_own_distribution(twin):
    tokens = twin.array(np.array([6, 0, 3], np.int32))

    found = np.asarray(twin.sampling.logprob(twin.array(LOGITS), tokens))

    expected = [math.log(distribution(LOGITS[b])[t]) for b, t in enumerate([6, 0, 3])]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
