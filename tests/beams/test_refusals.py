"""What beams and samples refuse, with both numbers and the next step; the twins' words are one."""

import importlib
from typing import Any

import pytest

from jaxkv.spec.errors import CapacityError, JaxkvError, RequestError, ShapeError, Unsupported
from tests.tiny import TWINS, make_model

BAD_BEAMS: dict[str, tuple[dict[str, Any], type[JaxkvError], str]] = {
    "none": (
        {"beams": 0},
        RequestError,
        "beam_search: beams is 0, expected a whole number of at least 1. `generate` gives one "
        "text a prompt.",
    ),
    "half": (
        {"beams": 2.5},
        RequestError,
        "beam_search: beams is 2.5, expected a whole number of at least 1. `generate` gives one "
        "text a prompt.",
    ),
    "true": (
        {"beams": True},
        RequestError,
        "beam_search: beams is True, expected a whole number of at least 1. `generate` gives one "
        "text a prompt.",
    ),
    "more-than-tokens": (
        {"beams": 98},
        RequestError,
        "beam_search: beams is 98, expected at most 97, of 97 tokens those that go on (0 end "
        "a text or are barred). Lower beams.",
    ),
    "more-than-go-on": (
        {"beams": 96, "end_ids": [5, 5, 6]},
        RequestError,
        "beam_search: beams is 96, expected at most 95, of 97 tokens those that go on (2 end "
        "a text or are barred). Lower beams.",
    ),
    "n-best": (
        {"n_best": 4},
        RequestError,
        "beam_search: n_best is 4, expected at most 3, the beams. Raise beams, or lower n_best.",
    ),
    "n-best-none": (
        {"n_best": 0},
        RequestError,
        "beam_search: n_best is 0, expected a whole number of at least 1. `generate` gives one "
        "text a prompt.",
    ),
    "no-budget": (
        {"max_new_tokens": [4, 0]},
        RequestError,
        "beam_search: max_new_tokens is 0 in row 1, expected at least 1. Leave out prompts that "
        "want no tokens.",
    ),
    "penalty-nan": (
        {"length_penalty": float("nan")},
        RequestError,
        "beam_search: length_penalty is nan, expected a finite number. 1.0 takes the mean "
        "log-probability.",
    ),
    "penalty-word": (
        {"length_penalty": "1"},
        RequestError,
        "beam_search: length_penalty is '1', expected a finite number. 1.0 takes the mean "
        "log-probability.",
    ),
    "penalty-far": (
        {"length_penalty": -50, "max_new_tokens": 8},
        RequestError,
        "beam_search: length_penalty is -50, expected -28.9 to 28.9 for texts of 8 new tokens: no "
        "score could tell them apart. Take one nearer to 0.",
    ),
    "early-word": (
        {"early_stopping": "always"},
        RequestError,
        "beam_search: early_stopping is 'always', expected True, False or 'never'. False is "
        "transformers' default.",
    ),
    "early-number": (
        {"early_stopping": 1},
        RequestError,
        "beam_search: early_stopping is 1, expected True, False or 'never'. False is "
        "transformers' default.",
    ),
    "uncached": (
        {"layout": "uncached"},
        Unsupported,
        "beam_search: layout is 'uncached', which keeps nothing to give to several rows, expected "
        "one of contiguous, paged, window, quantized, sinks, sinks_absolute. Choose one that has "
        "`gather`.",
    ),
    "layout": (
        {"layout": "heap"},
        RequestError,
        "beam_search: layout is 'heap', expected one of contiguous, paged, window, quantized, "
        "sinks, sinks_absolute, uncached.",
    ),
    "capacity": (
        {"capacity": 7},
        CapacityError,
        "plan: prompt 2 + max_new_tokens 8 - 1 = 9 slots (the last token is never fed back), "
        "capacity 7. Raise capacity or lower max_new_tokens by 2.",
    ),
}
BAD_SAMPLES: dict[str, tuple[dict[str, Any], type[JaxkvError], str]] = {
    "none": (
        {"samples": 0},
        RequestError,
        "sample_many: samples is 0, expected a whole number of at least 1. `generate` gives one "
        "text a prompt.",
    ),
    "no-budget": (
        {"max_new_tokens": 0},
        RequestError,
        "sample_many: max_new_tokens is 0 in row 0, expected at least 1. Leave out prompts that "
        "want no tokens.",
    ),
    "uncached": (
        {"layout": "uncached"},
        Unsupported,
        "sample_many: layout is 'uncached', which keeps nothing to give to several rows, expected "
        "one of contiguous, paged, window, quantized, sinks, sinks_absolute. Choose one that has "
        "`gather`.",
    ),
    "few-seeds": (
        {"seeds": [[1, 2, 3], [4, 5]]},
        RequestError,
        "sample_many: seeds[1] has 2 numbers, expected 3, one a sample. Give one a row to have the "
        "others counted up from it.",
    ),
    "large-seed": (
        {"seeds": [[1, 2, 3], [4, 5, 2**32]]},
        RequestError,
        "sample_many: seeds[1] holds 4294967296, expected whole numbers from 0 to 4294967295. Take "
        "it modulo 4294967296.",
    ),
    "rows-of-seeds": (
        {"seeds": [[1, 2, 3]]},
        ShapeError,
        "plan_sampling: seeds has 1 numbers for 2 prompts. Give one, or one a prompt.",
    ),
}
twins = pytest.mark.parametrize("twin", TWINS)


def refusal(twin: str, file: str, name: str, kind: type[JaxkvError], **options: Any) -> str:
    """Return the message with which a twin's function refuses."""
    function = getattr(importlib.import_module(f"{twin}.{file}"), name)
    given = {"max_new_tokens": 8} | options
    with pytest.raises(kind) as error:
        function(make_model(twin, "llama"), [[1, 2], [3]], **given)
    return str(error.value)


@pytest.mark.parametrize("case", BAD_BEAMS)
@twins
def test_a_search_that_cannot_be_is_refused(twin, case):
    options, kind, message = BAD_BEAMS[case]

    assert refusal(twin, "searching", "beam_search", kind, **{"beams": 3} | options) == message


@pytest.mark.parametrize("case", BAD_SAMPLES)
@twins
def test_samples_that_cannot_be_are_refused(twin, case):
    options, kind, message = BAD_SAMPLES[case]

    assert refusal(twin, "samples", "sample_many", kind, **{"samples": 3} | options) == message
