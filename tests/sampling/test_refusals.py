"""Settings out of range: refused with the value and what is expected, the same from both twins."""

import math

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError, ShapeError
from tests.sampling.slow import Twin
from tests.tiny import TWINS

HEAT = "a finite number of at least 0 (0 is greedy)"
KEPT = "a whole number from 1 to 8, the vocabulary (which keeps all)"
MASS = "a number above 0 and at most 1 (which keeps all)"
SHARE = "a number from 0 (which keeps all) to 1"
SEED = "a whole number from 0 to 4294967295"
WRONG = [
    *[("temperature", value, HEAT) for value in (-1.0, -1e-9, math.nan, math.inf, True, "1")],
    *[("top_k", value, KEPT) for value in (-1, 0, 9, 1.5, True)],
    *[("top_p", value, MASS) for value in (0.0, 0, -0.1, 1.1, math.nan, math.inf, True)],
    *[("min_p", value, SHARE) for value in (-0.1, 1.1, math.nan, True)],
    *[("seeds", value, SEED) for value in (-1, 2**32, 1.5, True)],
]
pytestmark = pytest.mark.parametrize("twin", [Twin(name) for name in TWINS], ids=TWINS)


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG, ids=str)
def test_a_number_out_of_range_is_refused(twin, name, value, wanted):
    """KV-68, KV-69: never clamped, never a backend's own error."""
    given = [value] if isinstance(value, str) else value

    with pytest.raises(RequestError) as error:
        twin.settings.plan_sampling(8, 1, **{name: given})

    assert str(error.value) == f"plan_sampling: {name} is {value!r}, expected {wanted}."


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "seeds"])
def test_a_list_of_another_length_is_refused(twin, name):
    with pytest.raises(ShapeError) as error:
        twin.settings.plan_sampling(8, 3, **{name: [1, 1]})

    assert str(error.value) == (
        f"plan_sampling: {name} has 2 numbers for 3 prompts. Give one, or one a prompt."
    )


@pytest.mark.parametrize("value", [1, np.int64(1), np.float32(1)], ids=repr)
def test_whole_and_numpy_numbers_are_numbers(twin, value):
    found = twin.settings.plan_sampling(8, 2, temperature=value, top_p=value, min_p=value)

    assert found.temperature_B.tolist() == found.min_p_B.tolist() == [1.0, 1.0]
    assert found.tail_B.tolist() == [0.0, 0.0]
