"""What a lookup drafts, against a search as one would explain it; and how often it tries."""

import importlib
from functools import cache

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError
from tests.sampling.slow import Twin
from tests.speculation.twins import (
    PROMPTS,
    TWINS,
    generate,
    greedy,
    lookup,
    model,
    speculate,
)

# In these the last tokens stood before, but nothing of what followed comes again.
LURING = [
    [7, 50, 49, 30, 50, 29, 21, 49, 29, 30, 49, 7, 7, 7, 30, 29],
    [21, 49, 49, 30, 21, 21, 30, 49, 21, 29, 50, 49],
    [21, 7, 21, 21, 21, 50, 30, 49, 29, 49, 21, 30, 49, 30],
]
twins = pytest.mark.parametrize("twin", TWINS)


def slow(ids, k, longest, shortest):
    """Return the drafts of one text by trying every length and place."""
    for length in range(min(longest, len(ids) - 1), shortest - 1, -1):
        places = [i for i in range(len(ids) - length) if ids[i : i + length] == ids[-length:]]
        if places:
            text = ids[:]
            start = places[-1] + length
            for at in range(start, start + k):
                text.append(text[at])
            return text[len(ids) :]
    return None


def looked_up(twin, texts, want, *, k, **asked):
    drafts, loop = (importlib.import_module(f"{twin}.{name}") for name in ("drafts", "loop"))
    as_array = Twin(twin).array
    ids = np.zeros((len(texts), max(map(len, texts)) + 3), np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    count = np.array([len(text) for text in texts], np.int32)
    text = loop.start(
        as_array(ids), as_array(count), as_array(count), slots=ids.shape[1], logprobs=False
    )
    want = as_array(np.array(want, np.int32))
    found = drafts.look_up(text, want, k=k, lookup=drafts.PromptLookup(**asked))
    return np.asarray(found.ids_BK), np.asarray(found.count_B)


@twins
@pytest.mark.parametrize(("longest", "shortest"), [(1, 1), (3, 1), (4, 2), (3, 3)])
def test_a_lookup_finds_what_a_slow_search_finds(twin, longest, shortest):
    rng = np.random.default_rng(longest)
    texts = [rng.integers(0, 3, n).tolist() for n in (1, 2, 3, 5, 8, 13, 21, 30)]

    ids, count = looked_up(twin, texts, [5] * 8, k=5, longest=longest, shortest=shortest)

    expected = [slow(text, 5, longest, shortest) for text in texts]
    assert count.tolist() == [0 if each is None else 5 for each in expected]
    for row, each in zip(ids.tolist(), expected, strict=True):
        assert each is None or row == each
    assert 0 < (count > 0).sum() < 8 or shortest == 1


@twins
def test_a_text_that_repeats_itself_drafts_on_beyond_its_end(twin):
    ids, count = looked_up(twin, [[7, 1, 2, 1, 2], [4, 4, 4, 4, 4]], [4, 2], k=4)

    assert ids.tolist() == [[1, 2, 1, 2], [4, 4, 4, 4]]
    assert count.tolist() == [4, 2]


def rounds(prompt, new, k, *, longest, shortest, longest_pause):
    """Return drafted, accepted and steps of a greedy row, from its ids, as one would explain it."""
    at, drafted, accepted, steps, missed, pause = 1, 0, 0, 0, 0, 0
    while at < len(new):
        want = min(k, len(new) - at - 1)
        known = slow(prompt + new[:at], k, longest, shortest)
        tries = want > 0 and pause == 0 and known is not None
        pause, steps, kept = max(pause - 1, 0), steps + 1, 0
        while tries and kept < want and known[kept] == new[at + kept]:
            kept += 1
        if tries:
            missed = 0 if kept else missed + 1
            pause = pause if kept else min(2 ** (missed - 1), longest_pause)
            drafted, accepted = drafted + want, accepted + kept
        at += kept + 1
    return drafted, accepted, steps


@twins
@pytest.mark.parametrize("longest_pause", [0, 16])
def test_counts_are_those_of_a_count_by_hand_and_what_fails_is_tried_less_often(
    twin, longest_pause
):
    """Pauses of 1, 2, 4, ... plain steps after drafts of which nothing was kept."""
    asked = {"longest": 2, "shortest": 1}
    texts = list(zip(LURING, generate(twin, LURING).new_tokens, strict=True))

    drafter = lookup(twin, **asked, longest_pause=longest_pause)
    found = speculate(twin, LURING, draft=drafter, k=4)

    told = zip(found.drafted_B, found.accepted_B, found.steps_B, strict=True)
    by_hand, bold = (
        [rounds(*text, 4, **asked, longest_pause=pause) for text in texts]
        for pause in (longest_pause, 0)
    )
    assert [tuple(map(int, row)) for row in told] == by_hand
    assert (by_hand == bold) == (longest_pause == 0)
    assert found.accepted_B.sum() < found.drafted_B.sum()


@cache
def drafted(text, want):
    """Return what the near model alone says after a text."""
    call = importlib.import_module("torchkv.generation").generate
    return call(model("torchkv", nudge=0.1), [list(text)], max_new_tokens=want).new_tokens[0]


def rounds_of_a_model(prompt, new, k):
    """Return drafted, accepted and steps of a greedy row whose drafts know the text alone."""
    at, proposed, accepted, steps = 1, 0, 0, 0
    while at < len(new):
        want, kept = min(k, len(new) - at - 1), 0
        known = drafted((*prompt, *new[:at]), want) if want else []
        while kept < want and known[kept] == new[at + kept]:
            kept += 1
        at, steps = at + kept + 1, steps + 1
        proposed, accepted = proposed + want, accepted + kept
    return proposed, accepted, steps


@twins
def test_a_draft_model_drafts_from_the_text_and_from_nothing_that_was_taken_back(twin):
    """KV-28, the other half: what stays in the draft's cache changes no text, but its drafts."""
    found = speculate(twin, draft="near", k=4)

    told = zip(found.drafted_B, found.accepted_B, found.steps_B, strict=True)
    by_hand = [rounds_of_a_model(*each, 4) for each in zip(PROMPTS, greedy(twin), strict=True)]
    assert [tuple(map(int, row)) for row in told] == by_hand
    assert 0 < found.accepted_B.sum() < found.drafted_B.sum()


@twins
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"shortest": 0}, "shortest is 0, expected a whole number of at least 1."),
        ({"longest": 1}, "longest is 1, expected a whole number of at least 2."),
        ({"longest": True}, "longest is True, expected a whole number of at least 2."),
        ({"longest_pause": -1}, "longest_pause is -1, expected a whole number of at least 0."),
    ],
    ids=str,
)
def test_a_lookup_of_impossible_lengths_is_refused(twin, asked, told):
    with pytest.raises(RequestError) as error:
        lookup(twin, **asked)

    assert str(error.value) == f"PromptLookup: {told}"
