"""Penalties, biases, minimum lengths, log-probabilities beside drafts: those of `generate`."""

from functools import cache

import numpy as np
import pytest

from tests.speculation.twins import BUDGETS, PROMPTS, TWINS, generate, greedy, speculate

twins = pytest.mark.parametrize("twin", TWINS)
# Rows want different things; the last one ends by a token that it may not take at first.
PENALTIES = {
    "repetition_penalty": [1.6, 1.0, 1.2],
    "presence_penalty": [0.7, 0.0, 0.4],
    "frequency_penalty": [0.4, 0.9, 0.0],
    "logit_bias": [{3: 2.5, 11: -1.5}, None, {7: 1.0}],
    "min_new_tokens": [5, 0, 6],
}


@cache
def ends(twin):
    """Return a token that each of two texts would take early."""
    return [greedy(twin)[0][2], greedy(twin)[2][1]]


def asked(twin):
    return {**PENALTIES, "end_ids": ends(twin), "logprobs": 3}


@cache
def plain(twin):
    return generate(twin, **asked(twin))


@twins
@pytest.mark.parametrize(("draft", "k"), [("itself", 4), ("near", 4), ("lookup", 2)])
def test_greedy_with_penalties_is_plain_greedy_with_penalties(twin, draft, k):
    """What a token is taken from knows the drafts kept before it in the same step."""
    found = speculate(twin, draft=draft, k=k, **asked(twin))

    assert found.new_tokens == plain(twin).new_tokens != greedy(twin)
    assert len(found.new_tokens[0]) >= 5
    assert len(found.new_tokens[2]) >= 6
    held = [len(prompt) for prompt in PROMPTS]
    forwarded = held + found.length_B - held - 1 + found.rolled_back_B
    assert found.forwarded_positions_B.tolist() == forwarded.tolist()
    if draft == "itself":
        # A draft is taken from what the same text makes of its own logits.
        has_ended = [len(row) < most for row, most in zip(found.new_tokens, BUDGETS, strict=True)]
        kept = np.where(has_ended, found.accepted_B, found.drafted_B)
        assert found.accepted_B.tolist() == kept.tolist()
        assert found.drafted_B.sum() > 0


@twins
@pytest.mark.parametrize(("draft", "k"), [("near", 4), ("lookup", 2)])
def test_log_probabilities_are_those_of_plain_generation(twin, draft, k):
    """Of the model's own distribution, of each token in the text, whoever drafted it."""
    found, expected = speculate(twin, draft=draft, k=k, **asked(twin)), plain(twin)

    for b in range(len(PROMPTS)):
        assert found.top_ids[b].tolist() == expected.top_ids[b].tolist()
        for name in ("logprobs", "top_logprobs"):
            ours, theirs = getattr(found, name)[b], getattr(expected, name)[b]
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, err_msg=name)


@twins
def test_a_budget_of_none_has_no_log_probabilities(twin):
    found = speculate(twin, max_new_tokens=0, logprobs=2)

    assert [row.shape for row in found.logprobs] == [(0,)] * 3
    assert [row.shape for row in found.top_ids] == [(0, 2)] * 3
    assert speculate(twin, max_new_tokens=0).logprobs is None


@twins
def test_drawn_drafts_of_the_model_itself_are_kept_with_penalties_too(twin):
    """Model and draft draw from one distribution only if both heed the same text."""
    drawn = {"temperature": 3.0, "top_k": 6, "seeds": [5, 6, 7]}
    penalties = {name: value for name, value in PENALTIES.items() if name != "min_new_tokens"}

    found = speculate(twin, draft="itself", **drawn, **penalties)

    assert found.accepted_B.tolist() == found.drafted_B.tolist()
    assert found.new_tokens != speculate(twin, draft="itself", **drawn).new_tokens
