"""Weights read ahead are those of the names asked for, and few of them wait."""

import numpy as np
import pytest

from jaxkv.spec.checkpoint import Weights
from jaxkv.spec.errors import WeightError
from jaxkv.spec.reading import AHEAD, reading

NAMES = [f"layers.{i}.weight" for i in range(3 * AHEAD)]


def weights(read, *, damaged=""):
    def reader(number, name):
        def array():
            read.append(name)
            if name == damaged:
                raise WeightError(f"{name} is damaged")
            return np.full((2, 3), number)

        return array

    return Weights({name: ((2, 3), reader(i, name)) for i, name in enumerate(NAMES)})


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids=["their order", "backwards"])
def test_each_name_gives_its_own_array_and_is_read_once(order):
    read = []

    with reading(weights(read), least_numbers=0) as take:
        found = [take(name)[0, 0] for name in order]

    assert found == [NAMES.index(name) for name in order]
    assert sorted(read) == sorted(NAMES)


def test_no_more_than_a_few_are_read_before_they_are_asked_for():
    read = []

    with reading(weights(read), least_numbers=0) as take:
        take(NAMES[0])

    assert read == NAMES[: 1 + AHEAD]


def test_a_damaged_array_is_an_error_where_it_is_asked_for():
    read = []

    with reading(weights(read, damaged=NAMES[2]), least_numbers=0) as take:
        before = [take(name)[0, 0] for name in NAMES[:2]]
        with pytest.raises(WeightError, match="weight is damaged"):
            take(NAMES[2])

    assert before == [0, 1]


@pytest.mark.parametrize("least_numbers", [0, 10**9], ids=["a dict", "small weights"])
def test_nothing_is_read_ahead_of_a_plain_mapping_or_of_small_weights(least_numbers):
    read = []
    arrays = weights(read) if least_numbers else {name: np.zeros(1) for name in NAMES}

    with reading(arrays, least_numbers=least_numbers) as take:
        take(NAMES[5])

    assert read == ([NAMES[5]] if least_numbers else [])
