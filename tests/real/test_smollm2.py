"""The real checkpoint, in float32: reference ids, logits and loss, from both twins."""

import json
from functools import cache

import pytest

from tests.children import output_of
from tests.tiny import TWINS

# Source: computed with transformers 5.24 (eager and sdpa), an independent numpy float64 forward
# and llama.cpp on an F32 rewrite of the same file; all agree.
PARIS = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216]
COUNT = [216, 40, 28, 216, 41, 28, 216, 33, 32, 28, 216, 33, 33, 28, 216, 33, 34, 28, 216, 33]
TOP = {7042: 17.37126, 260: 14.88859, 4528: 13.24497}
LOSS, PREDICTIONS = 3.399046, 75

pytestmark = [pytest.mark.usefixtures("smollm2"), pytest.mark.parametrize("twin", TWINS)]


@cache
def probe(twin):
    return json.loads(output_of("-m", "tests.real.probe", twin))


def test_the_child_process_computes_in_float32(twin):
    assert probe(twin)["dtype"].endswith("float32")


@pytest.mark.parametrize(("name", "ids"), [("paris", PARIS), ("count", COUNT)])
def test_the_twenty_greedy_ids_are_the_references(twin, name, ids):
    assert probe(twin)[name]["ids"] == ids


@pytest.mark.parametrize("name", ["paris", "count"])
def test_ids_and_text_are_the_same_with_and_without_cache(twin, name):
    found = probe(twin)[name]

    assert found["ids"] == found["uncached_ids"]
    assert found["text"] == found["uncached_text"]


@pytest.mark.parametrize("name", ["paris", "count"])
def test_positions_forwarded_are_the_prompts_and_all_but_the_last_new_one(twin, name):
    found = probe(twin)[name]

    assert found["forwarded"] == len(found["prompt_ids"]) + 20 - 1


def test_the_three_largest_logits_of_the_prompt_are_the_references(twin):
    top = {int(token): value for token, value in probe(twin)["top"].items()}

    assert list(top) == list(TOP)
    assert top == pytest.approx(TOP, rel=0, abs=2e-4)


def test_the_mean_loss_is_the_references(twin):
    found = probe(twin)

    assert found["predictions"] == PREDICTIONS
    assert found["loss"] == pytest.approx(LOSS, rel=0, abs=5e-5)


def test_the_score_is_the_references(twin):
    loss, predictions = probe(twin)["score"]

    assert predictions == PREDICTIONS
    assert loss == pytest.approx(LOSS, rel=0, abs=5e-5)


def test_digits_are_split_before_the_merges(twin):
    assert probe(twin)["digits"] == [81, 256, 33]


def test_a_chat_with_the_default_system_text_gives_the_references(twin):
    """37 prompt ids, 8 new ones, the last of which ends the answer."""
    words = [
        "generate",
        "smollm2",
        "--chat",
        "--prompt",
        "What is the capital of France?",
        "--json",
    ]

    found = json.loads(output_of("-m", twin, *words))

    assert len(found["prompt_ids"]) == 37
    assert found["ids"] == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert found["forwarded_positions"] == 37 + 8 - 1
