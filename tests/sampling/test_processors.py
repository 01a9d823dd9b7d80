"""What a text does to its own logits, against transformers' own processors."""

import math

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError, ShapeError
from tests.sampling.processed import Processing, theirs
from tests.tiny import TWINS

VOCABULARY = 9
LOGITS = np.array(
    [
        [2.0, -1.0, 0.5, 3.0, 0.0, 1.5, -2.0, 2.5, -0.25],
        [0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8, 0.9],
        [9.0, -9.0, 4.0, 8.0, -3.0, 8.5, 0.0, 2.0, -7.0],
    ]
)
# Tokens in the prompt alone, among the new ones alone, in both, several times, and in neither.
ROWS = [([3, 1, 3], [5, 1, 5, 5]), ([8], []), ([0, 2], [4, 6, 4])]
ENDS = (7, 3)
# Fractions that float32 holds exactly.
CASES = {
    "repetition": {"repetition_penalty": 1.25},
    "repetition, below 1": {"repetition_penalty": 0.5},
    "presence": {"presence_penalty": 0.75},
    "presence, below 0": {"presence_penalty": -0.5},
    "frequency": {"frequency_penalty": 0.375},
    "bias": {"logit_bias": {2: -1.5, 7: 4.0, 3: -math.inf}},
    "minimum": {"min_new_tokens": 4},
    "minimum, reached": {"min_new_tokens": 3},
    "every": {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "logit_bias": {1: 2.0, 5: -4.0, 8: 3.0},
        "min_new_tokens": 2,
    },
}
pytestmark = pytest.mark.parametrize("twin", [Processing(name) for name in TWINS], ids=TWINS)


@pytest.mark.parametrize("case", CASES)
def test_each_rule_and_all_together_are_those_of_transformers(twin, case):
    asked = CASES[case]

    found = twin.process(LOGITS, ROWS, ends=ENDS, **asked)

    wanted = [
        theirs(row, *texts, ends=ENDS, **asked) for row, texts in zip(LOGITS, ROWS, strict=True)
    ]
    np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-15, atol=0)


def test_each_row_has_its_own_numbers(twin):
    asked = {
        "repetition_penalty": [1.0, 2.0, 0.5],
        "presence_penalty": [0.5, 0.0, 1.0],
        "frequency_penalty": [0.0, 0.25, -0.5],
        "logit_bias": [None, {8: 1.0, 0: -2.0, 1: 0.5, 2: 3.0, 4: 4.0}, {6: -math.inf}],
        "min_new_tokens": [5, 0, 3],
    }

    found = twin.process(LOGITS, ROWS, ends=ENDS, **asked)

    for b, (row, texts) in enumerate(zip(LOGITS, ROWS, strict=True)):
        own = {name: values[b] for name, values in asked.items()}
        np.testing.assert_array_equal(found[b], theirs(row, *texts, ends=ENDS, **own))


@pytest.mark.parametrize("padding", [0, 3, 7])
def test_padding_never_counts(twin, padding):
    """KV-70: whatever the padding's id, an end token's among them."""
    alone = [
        twin.process(LOGITS[b : b + 1], [ROWS[b]], ends=ENDS, slots=7, **CASES["every"])[0]
        for b in range(3)
    ]

    batch = twin.process(LOGITS, ROWS, ends=ENDS, slots=24, padding=padding, **CASES["every"])

    np.testing.assert_array_equal(batch, np.stack(alone))


def test_a_row_with_neutral_numbers_keeps_its_logits_to_the_bit(twin):
    """KV-71: next to a row with penalties."""
    asked = {"repetition_penalty": [1.0, 1.0, 3.0], "logit_bias": [None, {}, {0: 1.0}]}

    found = twin.process(LOGITS.astype(np.float32), ROWS, ends=ENDS, **asked)

    np.testing.assert_array_equal(found[:2], LOGITS[:2].astype(np.float32))
    assert (found[2] != LOGITS[2].astype(np.float32)).any()


def test_what_a_store_knew_of_a_prompt_is_seen_but_is_not_new(twin):
    cut = [(prompt[1:], new) for prompt, new in ROWS]
    known = [prompt[:1] for prompt, _ in ROWS]

    found = twin.process(LOGITS, cut, ends=ENDS, known=known, **CASES["every"])

    np.testing.assert_array_equal(found, twin.process(LOGITS, ROWS, ends=ENDS, **CASES["every"]))


def test_half_precision_is_penalized_in_float32(twin):
    found = twin.process(LOGITS.astype(np.float16), ROWS, ends=ENDS, **CASES["every"])

    assert found.dtype == np.float32


def test_numbers_that_change_nothing_are_none(twin):
    neutral = {"repetition_penalty": [1.0, 1], "logit_bias": [{}, None], "min_new_tokens": 0}

    assert twin.plan(VOCABULARY, 2, ENDS, **neutral) is None


FACTOR = "a number from 1e-06 to 1e+06 (1 changes nothing)"
REAL = "a number from -1e+06 to 1e+06"
WHOLE = "a whole number of at least 0, below 2147483648"
WRONG = [
    *[("repetition_penalty", x, FACTOR) for x in (0.0, -1.5, math.nan, math.inf, True)],
    *[("presence_penalty", x, REAL) for x in (math.nan, -math.inf, 2e6, True)],
    *[("frequency_penalty", x, REAL) for x in (math.nan, math.inf, -2e6)],
    *[("min_new_tokens", x, WHOLE) for x in (-1, 1.5, True, 2**31)],
]


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG, ids=str)
def test_a_number_out_of_range_is_refused(twin, name, value, wanted):
    with pytest.raises(RequestError) as error:
        twin.plan(VOCABULARY, 1, ENDS, **{name: value})

    assert str(error.value) == f"plan_processors: {name} is {value!r}, expected {wanted}."


REFUSED = {
    "another number of rows": (
        {"presence_penalty": [1.0, 1.0, 1.0]},
        "presence_penalty has 3 numbers for 2 prompts. Give one, or one a prompt.",
    ),
    "another number of mappings": (
        {"logit_bias": [{}, {}, {}]},
        "logit_bias has 3 mappings for 2 prompts. Give one, or one a prompt.",
    ),
    "an id outside": (
        {"logit_bias": {9: 1.0}},
        "logit_bias names the id 9, expected 0 to 8.",
    ),
    "no bias": (
        {"logit_bias": [{}, {3: math.nan}]},
        "logit_bias of the id 3 is nan, expected a number from -1e+06 to 1e+06, or -inf (which "
        "bars it).",
    ),
    "nothing left": (
        {"logit_bias": dict.fromkeys((0, 1, 2, 4, 5, 6, 8), -math.inf), "min_new_tokens": [0, 1]},
        "of 9 tokens, logit_bias bars 7 of row 1 and min_new_tokens 2 more, expected at least one "
        "to be left. Bar fewer.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_fit_are_refused(twin, case):
    asked, message = REFUSED[case]

    with pytest.raises((RequestError, ShapeError)) as error:
        twin.plan(VOCABULARY, 2, ENDS, **asked)

    assert str(error.value) == f"plan_processors: {message}"
