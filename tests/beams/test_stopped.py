"""Stop strings and log-probabilities in a search: transformers' rule, and those of the model."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from transformers import StoppingCriteria, StoppingCriteriaList

from crosscheck import assert_agree, semantic
from tests.beams import peers
from tests.sampling.test_stop_strings import decode
from tests.tiny import DEEP, TWINS, make_model

BEAMS = 3
twins = pytest.mark.parametrize("twin", TWINS)
names = pytest.mark.parametrize("name", peers.NAMES if DEEP else ["llama", "t5"])


class Stops(StoppingCriteria):
    """Ends a text whose newest token completes one of the strings, as transformers' own does."""

    def __init__(self, strings, start):
        self.strings, self.start = strings, start

    def __call__(self, ids, scores, **_) -> Any:
        import torch

        texts = [decode(row) for row in ids[:, self.start :].tolist()]
        return torch.tensor([any(s in text for s in self.strings) for text in texts])


@cache
def free(name: str):
    return peers.searched(name, beams=BEAMS, ends=peers.ENDS[name])[0]


@cache
def strings(name: str) -> tuple[str, ...]:
    """Return a string across two tokens of the first row's best text, and one of the last row's."""
    first, last = decode(free(name)[0][0]), decode(free(name)[2][0])
    return first[3:6], last[1:3]


@cache
def theirs(name: str):
    """Return transformers' texts, the stop string and what follows it with them, and scores."""
    start = 1 if name == "t5" else max(map(len, peers.ROWS))
    criteria = StoppingCriteriaList([Stops(strings(name), start)])
    options = {"stopping_criteria": criteria}
    return peers.searched(name, beams=BEAMS, ends=peers.ENDS[name], **options)


def search(twin: str, model: Any, **options: Any) -> Any:
    given = {"beams": BEAMS, "n_best": BEAMS, "max_new_tokens": peers.NEW} | options
    return importlib.import_module(f"{twin}.searching").beam_search(model, **given)


def left(text: str, stops: tuple[str, ...]) -> str:
    """Return a text up to the string in it that is complete first."""
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    return text[: min(ends)[1]] if ends else text


@twins
@names
def test_a_stop_string_ends_a_beam_as_transformers_ends_it(name, twin, model_of):
    """By the score of all its tokens; what is returned ends before the string."""
    stops = strings(name)
    ends = peers.ENDS[name]

    found = search(
        twin, model_of(name, twin), **peers.asked(name), end_ids=ends, stop=stops, decode=decode
    )

    texts, score_BJ = theirs(name)
    cut = [[left(decode(_whole(ids, stops)), stops) for ids in row] for row in texts]
    assert found.best_texts == cut
    assert found.texts == [row[0] for row in cut]
    assert found.best == [
        [ids[: len(text) // 2] for ids, text in zip(*both, strict=True)]
        for both in zip(texts, cut, strict=True)
    ]
    assert_agree(found.score_BM[None], score_BJ[None], semantic(rtol=1e-9), name="scores")
    assert {*found.stopped} & {*stops}
    assert texts != free(name)


def _whole(ids: list[int], stops: tuple[str, ...]) -> list[int]:
    """Return a text without what pads it: up to the token that completes a string."""
    counts = (n for n in range(len(ids) + 1) if any(s in decode(ids[:n]) for s in stops))
    return ids[: next(counts, len(ids))]


@twins
def test_one_beam_with_a_stop_string_is_the_greedy_text_with_it(twin):
    """And of many strings the host looks further: nearly all continuations end a text."""
    model = make_model(twin, "llama")
    generate = importlib.import_module(twin).generate
    prompts, asked = [[3, 41, 59], [7]], {"max_new_tokens": 8, "decode": decode}
    text = decode(generate(model, prompts, max_new_tokens=8).new_tokens[0])

    for stop in ([text[5:8]], [chr(97 + i) for i in range(20)]):
        plain = generate(model, prompts, stop=stop, **asked)
        found = search(twin, model, prompts=prompts, beams=1, n_best=1, stop=stop, **asked)

        for name in ("new_tokens", "texts", "stopped"):
            assert getattr(found, name) == getattr(plain, name), name


@twins
@pytest.mark.parametrize("is_stopped", [False, True], ids=["free", "stopped"])
def test_log_probabilities_are_those_of_the_models_own_distribution(twin, is_stopped):
    """Of each returned text: before penalties, as `generate` tells them."""
    model = make_model(twin, "llama")
    asked, text = {"repetition_penalty": 1.5, "n_best": 2, "max_new_tokens": 5}, ""
    if is_stopped:
        text = decode(search(twin, model, prompts=[[3, 41, 59]], **asked).best[0][0])
        asked |= {"stop": text[5:8], "decode": decode}

    found = search(twin, model, prompts=[[3, 41, 59], [7]], logprobs=4, **asked)

    assert not is_stopped or text[5:8] in found.stopped
    forced = importlib.import_module(twin).generate
    for b, prompt in enumerate(([3, 41, 59], [7])):
        for m, ids in enumerate(found.best[b]):
            for i, token in enumerate(ids):
                one = forced(
                    model,
                    [[*prompt, *ids[:i]]],
                    max_new_tokens=1,
                    logit_bias={token: 1e6},
                    logprobs=4,
                )
                assert one.new_tokens == [[token]]
                ours = found.logprobs[b][m][i], *found.top_logprobs[b][m][i]
                theirs = one.logprobs[0][0], *one.top_logprobs[0][0]
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
                assert found.top_ids[b][m][i].tolist() == one.top_ids[0][0].tolist()
            assert len(found.logprobs[b][m]) == len(ids)
    assert found.logprobs[0][0].dtype == np.float32


@twins
def test_nothing_is_told_unless_wanted(twin):
    model = make_model(twin, "llama")
    plain = search(twin, model, prompts=[[7]])
    told = search(twin, model, prompts=[[7]], logprobs=True)

    assert (plain.logprobs, plain.top_ids, plain.texts) == (None, None, None)
    assert (told.top_ids, told.top_logprobs) == (None, None)
    assert told.best == plain.best
