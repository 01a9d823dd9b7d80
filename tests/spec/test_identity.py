"""An identity's digest keeps apart whatever differs in any field, and a difference has a place."""

import dataclasses

import pytest

from jaxkv.spec.identity import Identity, first_difference
from tests.tiny import CONFIGS

OWN = Identity(CONFIGS["llama"], "ab", "float32", "paged", "c", "")
OTHER = {
    "config": CONFIGS["gpt2"],
    "weights": "ac",
    "dtype": "float64",
    "layout": "contiguous",
    "adapter": "d",
    "tenant": "e",
}


@pytest.mark.parametrize("field", OTHER)
def test_every_field_enters_the_digest(field):
    assert {each.name for each in dataclasses.fields(Identity)} == OTHER.keys()

    other = dataclasses.replace(OWN, **{field: OTHER[field]})

    assert other.digest() != OWN.digest()


def test_equal_identities_have_one_digest():
    assert dataclasses.replace(OWN).digest() == OWN.digest()


def test_the_place_of_a_letter_counts():
    """What is concatenated without lengths cannot tell ("c", "") from ("", "c")."""
    moved = dataclasses.replace(OWN, adapter="", tenant="c")

    assert moved.digest() != OWN.digest()


def test_the_position_scheme_is_part_of_the_config():
    data = CONFIGS["llama"].to_dict()
    data["layers"][0]["attention"]["rope"]["theta"] = 10.0

    other = dataclasses.replace(OWN, config=type(OWN.config).from_dict(data))

    assert other.digest() != OWN.digest()


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, None),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("x.a[1].b", 2, 3)),
        ({"a": 1}, {"a": 1, "c": 2}, ("x.c", "nothing", 2)),
        ({"a": 1, "c": 2}, {"a": 1}, ("x.c", 2, "nothing")),
        ([1, 2], [1], ("len(x)", 2, 1)),
        (1, True, ("x", 1, True)),
        ({"a": None}, {"a": 0}, ("x.a", None, 0)),
    ],
)
def test_the_first_difference_of_plain_data_has_a_place(left, right, found):
    assert first_difference(left, right, "x") == found
