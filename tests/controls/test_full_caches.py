"""What people do when a cache is full, held apart: dropping, cropping, and the whole context."""

from itertools import combinations

import numpy as np
import pytest

from crosscheck import Disagreement, assert_agree, close
from jaxkv.spec.errors import RequestError
from tests.tiny import BATCH, CAPACITY, TWINS, Cell, ids_of, make_model, make_subject, module

EXACT = close(rtol=1e-10, atol=1e-10)
LENGTH, KEEP = 17, 9
twins = pytest.mark.parametrize("twin", TWINS)


def last_logits(twin, model):
    """Return the logits of one more token after the whole text, its crop, and a cut cache."""
    cell = Cell(twin, model, "contiguous")
    subject, ids = make_subject(cell), ids_of(cell, 5, length=LENGTH)
    _, state = subject.step(subject.init(BATCH, CAPACITY), ids[:, :-1])
    visible = np.zeros((BATCH, 1, LENGTH), bool)
    visible[:, :, -KEEP:] = True
    position = np.full((BATCH, 1), LENGTH - 1)
    dropped, _ = subject.step(state, ids[:, -1:], visible=visible, positions=position)
    return {
        "full": subject.full(ids)[:, -1:],
        "dropped": dropped,
        "recomputed": subject.full(ids[:, -KEEP:])[:, -1:],
    }


@twins
@pytest.mark.parametrize("model", ["reference", "gpt2"])
def test_dropping_recomputing_and_the_full_context_are_three_functions(twin, model):
    """The oldest entries gone, the crop computed anew, nothing lost: each differs from the rest."""
    found = last_logits(twin, model)

    for left, right in combinations(found, 2):
        with pytest.raises(Disagreement):
            assert_agree(found[left], found[right], EXACT, name="logits", names=(left, right))


def recomputed(twin, prompt, *, new, capacity, keep, **options):
    model = make_model(twin, "reference")
    run = module(Cell(twin, "reference", "contiguous"), "boundary").recompute_at_boundary
    return run(model, prompt, max_new_tokens=new, capacity=capacity, keep=keep, **options)


@twins
@pytest.mark.parametrize("options", [{}, {"layout": "paged", "page_size": 4}], ids=str)
def test_the_policy_says_what_the_model_says_after_the_text_from_the_last_boundary(twin, options):
    """Capacity 6, 4 kept: 5 prompt tokens give 2, then 3 for each boundary."""
    prompt = [3, 1, 4, 1, 5]

    found = recomputed(twin, prompt, new=10, capacity=6, keep=4, **options)

    subject, text = make_subject(Cell(twin, "reference", "contiguous")), list(prompt)
    starts = [0] * 2 + [3] * 3 + [6] * 3 + [9] * 2
    for start in starts:
        logits = subject.full(np.array([text[start:]]))[0, -1]
        text.append(int(logits.argmax()))
    assert found.new_tokens == text[len(prompt) :]
    assert found.boundaries == [3, 6, 9]
    assert found.forwarded_positions == 6 + 6 + 6 + 5


@twins
def test_the_policy_is_no_cache_of_the_full_context(twin):
    """And up to the first boundary it is: then what is forgotten shows."""
    prompt = [3, 1, 4, 1, 5]
    model, cell = make_model(twin, "reference"), Cell(twin, "reference", "contiguous")
    whole = module(cell, "generation").generate(model, [prompt], max_new_tokens=24).new_tokens[0]

    found = recomputed(twin, prompt, new=24, capacity=6, keep=2)

    assert found.new_tokens[:2] == whole[:2]
    assert found.new_tokens != whole


@twins
def test_a_prompt_beyond_the_capacity_keeps_its_end(twin):
    prompt = [1 + i % 17 for i in range(11)]

    found = recomputed(twin, prompt, new=2, capacity=6, keep=4)

    assert found.boundaries == [7]
    again = recomputed(twin, prompt[-4:], new=2, capacity=6, keep=4)
    assert found.new_tokens == again.new_tokens


@twins
@pytest.mark.parametrize("keep", [0, 7])
def test_keeping_nothing_or_more_than_fits_is_refused(twin, keep):
    with pytest.raises(RequestError) as error:
        recomputed(twin, [1, 2], new=3, capacity=6, keep=keep)

    assert str(error.value) == (
        f"recompute_at_boundary: keep is {keep}, expected 1 to 6, the capacity."
    )
