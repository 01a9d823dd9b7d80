"""The annotations of both twins are checked while tests run: first each call, then each 17th."""

import importlib

import jaxtyping
import numpy as np
import pytest

from tests.annotations import EACH, WHOLE
from tests.tiny import DEEP, TWINS


def refused(norm, x_TD, gain_D, calls):
    """Return how many of so many calls were refused."""
    count = 0
    for _ in range(calls):
        try:
            norm(x_TD, gain_D, eps=1e-6)
        except jaxtyping.TypeCheckError:
            count += 1
        except RuntimeError:
            # PyTorch's own words, where the annotation was not looked at.
            pass
    return count


@pytest.mark.parametrize("twin", TWINS)
def test_a_wrong_shape_is_refused_at_first_and_now_and_then_in_a_long_test(twin):
    norm = importlib.import_module(f"{twin}.ops").rms_norm
    asarray = importlib.import_module({"jaxkv": "jax.numpy", "torchkv": "torch"}[twin]).asarray
    # Broadcasting would let it pass in jaxkv.
    wrong = asarray(np.ones((3, 1))), asarray(np.ones(5))
    right = asarray(np.ones((3, 5))), asarray(np.ones(5))

    assert refused(norm, *wrong, 3) == 3
    assert refused(norm, *right, WHOLE) == 0
    # The function calls another one, which counts as well.
    assert 3 <= refused(norm, *wrong, 3 * EACH) <= (3 * EACH if DEEP else EACH)
