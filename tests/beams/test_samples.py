"""Samples of one prompt: computed once, each the text that it is drawn as alone."""

import importlib
from typing import Any

import numpy as np
import pytest

from crosscheck import assert_agree, semantic
from tests.beams.test_search import LAYOUTS, RAGGED, asked
from tests.sampling.test_stop_strings import decode
from tests.tiny import DEEP, TWINS, make_model

SAMPLES, NEW, SEEDS, HEAT = 3, 8, [7, 2**32 - 1], 6.0
CASES = [
    (twin, layout)
    for twin in TWINS
    for layout in LAYOUTS
    if twin == "torchkv" or DEEP or layout in ("contiguous", "paged")
]
twins = pytest.mark.parametrize("twin", TWINS)


def drawn(twin: str, prompts: Any = None, **options: Any) -> Any:
    """Return the twin's samples; by default on the tests' one shape."""
    given = {"samples": SAMPLES, "max_new_tokens": NEW, "seeds": SEEDS, "temperature": HEAT}
    return importlib.import_module(f"{twin}.samples").sample_many(
        make_model(twin, "llama"), RAGGED if prompts is None else prompts, **given | options
    )


def alone(twin: str, seeds: np.ndarray, *, layout: str = "contiguous", **options: Any) -> Any:
    """Return what `generate` draws for each row's prompt and each of its seeds.

    Layouts that change no result give way to contiguous, so that little is compiled.
    """
    changes = layout in ("quantized", "sinks") or twin == "torchkv"
    return importlib.import_module(f"{twin}.generation").generate(
        make_model(twin, "llama"),
        [prompt for prompt in RAGGED for _ in range(SAMPLES)],
        **{"max_new_tokens": NEW, "temperature": HEAT} | options,
        seeds=seeds.ravel().tolist(),
        **asked(layout if changes else "contiguous"),
    )


@pytest.mark.parametrize(("twin", "layout"), CASES)
def test_each_sample_is_the_text_of_its_own_seed(twin, layout):
    """KV-34: on every layout; the seeds of a row count up from its own, past 2**32 from 0."""
    found = drawn(twin, **asked(layout))

    assert found.seed_BM.tolist() == [[7, 8, 9], [2**32 - 1, 0, 1]]
    solo = alone(twin, found.seed_BM, layout=layout)
    assert [text for row in found.samples for text in row] == solo.new_tokens
    assert found.tokens == [solo.tokens[0], solo.tokens[SAMPLES]]
    assert len({tuple(text) for row in found.samples for text in row}) == 2 * SAMPLES


@twins
def test_a_prompt_is_forwarded_once_for_all_samples(twin):
    found = drawn(twin, max_new_tokens=[NEW, 3])

    assert found.forwarded_positions_B.tolist() == [6 + SAMPLES * (NEW - 1), 2 + SAMPLES * 2]


@twins
def test_samples_share_the_prompts_pages_and_copy_the_last_one_once_a_writer(twin):
    """KV-34: of 6 tokens in pages of 4 the first page stays, the second is copied for two."""
    found = drawn(twin, **asked("paged"))

    # The second row's 2 tokens are one partly filled page: two copies more.
    assert found.copied_pages == 2 * (SAMPLES - 1)
    # A prompt that fills its pages is shared and never copied.
    full = drawn(twin, [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4]], **asked("paged"))
    assert full.copied_pages == 0
    assert drawn(twin).copied_pages is None


@twins
def test_each_sample_stops_by_itself(twin):
    whole = drawn(twin)
    ends = [whole.samples[0][0][2], whole.samples[1][1][4]]
    found = drawn(twin, end_ids=ends)

    solo = alone(twin, found.seed_BM, end_ids=ends)
    assert [text for row in found.samples for text in row] == solo.new_tokens
    assert len(found.samples[0][0]) == 3
    assert any(len(text) == NEW for row in found.samples for text in row)
    assert found.forwarded_positions_B.tolist() == [
        count + sum(len(text) - 1 for text in row)
        for count, row in zip((6, 2), found.samples, strict=True)
    ]


@twins
def test_seeds_may_be_named_one_a_sample(twin):
    found = drawn(twin, seeds=[[3, 5, 3], [9, 8, 7]])

    solo = alone(twin, np.array([3, 5, 3, 9, 8, 7]))
    assert [text for row in found.samples for text in row] == solo.new_tokens
    assert found.samples[0][0] == found.samples[0][2]


@twins
def test_one_seed_for_all_gives_samples_that_differ(twin):
    """KV-35: a fixed seed is not copied to each of them; and the same again gives the same."""
    found, again = (drawn(twin, seeds=7) for _ in range(2))

    assert found.seed_BM.tolist() == [[7, 8, 9]] * 2
    assert found.samples == again.samples
    assert len({tuple(text) for text in found.samples[0]}) == SAMPLES


@twins
def test_samples_do_not_depend_on_their_neighbours(twin):
    found = drawn(twin)
    other = drawn(twin, [RAGGED[0], [9, 9, 9]], temperature=[HEAT, 0.0], top_k=[97, 5])

    assert other.samples[0] == found.samples[0]
    assert other.samples[1] == [other.samples[1][0]] * SAMPLES  # greedy


@twins
def test_penalties_biases_and_minimum_lengths_hold_for_each_sample_by_its_own_text(twin):
    whole = drawn(twin)
    ends = [whole.samples[0][0][2], whole.samples[1][1][4]]
    penalties = {
        "repetition_penalty": [1.6, 1.0],
        "presence_penalty": [0.0, 4.0],
        "frequency_penalty": [2.0, 0.0],
        "logit_bias": [{3: 2.5, 11: -np.inf}, None],
        "min_new_tokens": [5, 0],
    }
    each = {name: [x for x in rows for _ in range(SAMPLES)] for name, rows in penalties.items()}

    found = drawn(twin, end_ids=ends, logprobs=3, **penalties)

    solo = alone(twin, found.seed_BM, end_ids=ends, logprobs=3, **each)
    assert [text for row in found.samples for text in row] == solo.new_tokens
    assert found.samples != drawn(twin, end_ids=ends).samples
    assert [x.tolist() for row in found.top_ids for x in row] == [x.tolist() for x in solo.top_ids]
    tops = zip([x for row in found.top_logprobs for x in row], solo.top_logprobs, strict=True)
    for ours, theirs in tops:
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@twins
def test_stop_strings_end_each_sample_where_they_end_its_solo_run(twin):
    """A string across two tokens of one sample, another at the end of another's text."""
    whole = drawn(twin, logprobs=True)
    first, last = decode(whole.samples[0][0]), decode(whole.samples[1][2])
    asked = {"stop": [first[3:6], last[-3:]], "decode": decode, "logprobs": True}

    found = drawn(twin, **asked)

    solo = alone(twin, found.seed_BM, **asked)
    assert [text for row in found.samples for text in row] == solo.new_tokens
    assert [text for row in found.sample_texts for text in row] == solo.texts
    assert (found.texts, found.stopped) == (solo.texts[::SAMPLES], solo.stopped[::SAMPLES])
    assert found.new_tokens == [row[0] for row in found.samples]
    assert found.samples[0][0] == whole.samples[0][0][: len(found.samples[0][0])]
    assert len({len(text) for row in found.samples for text in row}) > 1
    assert [len(x) for row in found.logprobs for x in row] == [len(x) for x in solo.new_tokens]


@twins
def test_log_probabilities_are_those_of_the_solo_run(twin):
    found = drawn(twin, logprobs=True)

    solo = alone(twin, found.seed_BM, logprobs=True)
    pairs = zip([x for row in found.logprobs for x in row], solo.logprobs, strict=True)
    for ours, theirs in pairs:
        assert ours.dtype == np.float32
        # Rounded to float32 by both twins.
        pair = (x.astype(float)[None, None] for x in (ours, theirs))
        assert_agree(*pair, semantic(rtol=1e-6), name="logprobs")


@twins
def test_other_settings_and_seeds_cost_no_compilation(twin):
    drawn(twin)
    found = drawn(twin, seeds=[1, 2], temperature=[0.5, 3.0], top_k=9, max_new_tokens=4, end_ids=3)

    assert found.compilations == (None if twin == "torchkv" else 0)
