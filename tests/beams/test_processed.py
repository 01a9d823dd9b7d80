"""Penalties, biases and minimum lengths in a search: each beam goes by its own text."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest

from crosscheck import assert_agree, semantic
from jaxkv.spec.errors import RequestError
from tests.beams import peers
from tests.tiny import TWINS, make_model

BEAMS = 3
# Theirs and ours of one thing; the two that transformers lacks come as a processor of the test's.
PRESENCE, FREQUENCY = 0.4, 0.7
BIAS = {1: 2.0, 3: -1.5, 80: -np.inf}
THEIRS = {
    "repetition_penalty": 1.6,
    "sequence_bias": {(token,): float(bias) for token, bias in BIAS.items()},
    "min_new_tokens": 4,
}
OURS = {
    "repetition_penalty": 1.6,
    "logit_bias": BIAS,
    "min_new_tokens": 4,
    "presence_penalty": PRESENCE,
    "frequency_penalty": FREQUENCY,
}
twins = pytest.mark.parametrize("twin", TWINS)
# One of each kind of prompt; every program of the other decoders would be compiled anew.
names = pytest.mark.parametrize("name", ["llama", "t5"])


class Less:
    """Takes from the scores of new tokens, once and for each time that they came."""

    def __init__(self, start: int):
        self.start = start

    def __call__(self, ids, scores):
        scores = scores.clone()
        for row, new in zip(scores, ids[:, self.start :].tolist(), strict=True):
            for token in set(new):
                row[token] -= PRESENCE + FREQUENCY * new.count(token)
        return scores


@cache
def theirs(name: str, row: int, *, plain: bool = False) -> tuple[list, np.ndarray]:
    """Return the texts and scores of one row alone: transformers counts padding as text."""
    prompt = peers.ROWS[row]
    less = Less(1 if name == "t5" else len(prompt))
    options = {} if plain else THEIRS | {"logits_processor": [less]}
    found, score_BJ = peers.searched(
        name, beams=BEAMS, ends=peers.ENDS[name], rows=[prompt], **options
    )
    return found[0], score_BJ[0]


def search(twin: str, model: Any, **options: Any) -> Any:
    given = {"beams": BEAMS, "n_best": BEAMS, "max_new_tokens": peers.NEW} | options
    return importlib.import_module(f"{twin}.searching").beam_search(model, **given)


@twins
@names
def test_a_ragged_batch_finds_what_transformers_finds_of_each_row(name, twin, model_of):
    """All five at once; padding never counts."""
    model = model_of(name, twin)

    found = search(twin, model, **peers.asked(name), end_ids=peers.ENDS[name], **OURS)

    rows = [theirs(name, row) for row in range(len(peers.ROWS))]
    assert found.best == [texts for texts, _ in rows]
    scores = np.stack([score_J for _, score_J in rows])
    assert_agree(found.score_BM[None], scores[None], semantic(rtol=1e-9), name="scores")


@names
def test_what_transformers_finds_depends_on_them(name):
    """Else the test above would say little."""
    for row in range(len(peers.ROWS)):
        assert theirs(name, row)[0] != theirs(name, row, plain=True)[0]


@twins
def test_one_beam_is_the_greedy_text_where_no_sign_differs(twin, model_of):
    """Of a bias and a minimum length: log-probabilities and logits then have one order."""
    model = model_of("llama", twin)
    given: Any = {"logit_bias": BIAS, "min_new_tokens": 4, "max_new_tokens": peers.NEW}
    generate = importlib.import_module(twin).generate
    greedy = generate(model, peers.ROWS, end_ids=peers.ENDS["llama"], **given)

    found = search(
        twin, model, prompts=peers.ROWS, beams=1, n_best=1, end_ids=peers.ENDS["llama"], **given
    )

    assert found.new_tokens == greedy.new_tokens


@twins
def test_more_beams_than_tokens_that_are_not_barred_are_refused(twin):
    barred = {token: -np.inf for token in range(90)}
    with pytest.raises(RequestError) as error:
        search(
            twin,
            make_model(twin, "llama"),
            prompts=[[1]],
            beams=7,
            n_best=1,
            end_ids=(89, 95),
            logit_bias=barred,
        )

    assert str(error.value) == (
        "beam_search: beams is 7, expected at most 6, of 97 tokens those that go on (91 end a text "
        "or are barred). Lower beams."
    )
