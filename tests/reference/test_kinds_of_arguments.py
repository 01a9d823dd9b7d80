"""An argument of the wrong kind is refused at the call, in a sentence; both twins."""

import importlib
from inspect import unwrap

import pytest

from jaxkv.spec.errors import RequestError
from tests.tiny import CONFIGS, TWINS, make_model

pytestmark = pytest.mark.parametrize("twin", TWINS)


@pytest.mark.parametrize("capacity", ["12", 12.0, True], ids=repr)
def test_a_capacity_that_is_no_whole_number_is_refused(twin, capacity):
    plan = unwrap(importlib.import_module(f"{twin}.planning").plan)

    with pytest.raises(RequestError) as error:
        plan(CONFIGS["reference"], [[1, 2]], max_new_tokens=3, capacity=capacity)

    assert str(error.value) == f"plan: capacity is {capacity!r}, expected a whole number or None."


def test_the_other_twins_model_is_refused_by_name(twin):
    (other,) = set(TWINS) - {twin}
    check = unwrap(importlib.import_module(f"{twin}.request").check)

    with pytest.raises(RequestError) as error:
        check(
            "generate",
            make_model(other, "reference"),
            [[1]],
            end_ids=(),
            cache=None,
            capacity=None,
            sampling={},
            max_new_tokens=3,
        )

    assert str(error.value) == (
        f"generate: model is a {other}.model.Decoder, expected {twin}.model.Decoder. "
        "Was it made by the other twin?"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "ring"},
            "stream: layout is 'ring', expected one of contiguous, paged, window, quantized, "
            "sinks, sinks_absolute, uncached.",
        ),
        (
            {"page_size": 4},
            "stream: page_size is 4, but layout is 'contiguous'. Leave it out, or set "
            "layout='paged'.",
        ),
    ],
    ids=["layout", "page_size"],
)
def test_a_stream_checks_its_layout_before_the_first_item(twin, options, message):
    stream = importlib.import_module(f"{twin}.streaming").stream

    with pytest.raises(RequestError) as error:
        stream(make_model(twin, "reference"), [[1, 2]], max_new_tokens=3, **options)

    assert str(error.value) == message
