"""An adapter can be wrong where the model is right: what it passes on in silence is caught."""

import numpy as np
import pytest

from crosscheck.subjects.functions import from_functions
from tests.tool.checking import quick, row_of
from tests.tool.user_model import Decoder

MODEL = Decoder()


def drive(**changed):
    """Return a subject of the right decoder, with some of its functions replaced."""
    calls = {"full": full, "init": init, "step": step, "rollback": rollback}
    return from_functions(**(calls | changed), max_positions=64)


def full(ids):
    return MODEL.full(ids)


def init(batch, capacity):
    return MODEL.init(batch), 0


def step(state, ids):
    cache, count = state
    positions = np.arange(count, count + ids.shape[1])
    logits, cache = MODEL.step(cache, ids, positions=positions)
    return logits, (cache, count + ids.shape[1])


def rollback(state, length):
    return MODEL.rollback(state[0], length), int(length[0])


def full_unmasked(ids, mask=None):
    """Take a keyword and pass nothing on: the model has no such thing."""
    return full(ids)


def step_unmasked(state, ids, mask=None):
    return step(state, ids)


def step_stale(state, ids):
    """Give back the cache that came in."""
    logits, _ = step(state, ids)
    return logits, state


def trim(cache, drop):
    """Refuse as a full ring does: nothing is taken back, and that is said by a 0."""
    return 0


def rollback_told_zero(state, length):
    """Do not look at how much was taken back."""
    cache, count = state
    trim(cache, count - int(length[0]))
    return cache, count


def rollback_by_counter(state, length):
    """Do not ask the flag that says no: only the counter moves, the entries stay."""
    return state[0], int(length[0])


@pytest.mark.parametrize(
    ("relation", "changed"),
    [
        ("pad.left", {"full": full_unmasked, "step": step_unmasked}),
        ("cache.partition", {"step": step_stale}),
        ("cache.rollback", {"rollback": rollback_told_zero}),
        ("cache.rollback", {"rollback": rollback_by_counter}),
    ],
    ids=["ignored keyword", "stale cache", "rollback refused by 0", "rollback refused by a flag"],
)
def test_what_an_adapter_passes_on_in_silence_is_a_divergence(relation, changed):
    report = quick(drive(**changed), relation)

    assert row_of(report, relation).verdict == "fail"


@pytest.mark.parametrize("relation", ["cache.partition", "cache.rollback"])
def test_the_same_adapter_without_the_mistake_passes(relation):
    assert row_of(quick(drive(), relation), relation).verdict == "pass"
