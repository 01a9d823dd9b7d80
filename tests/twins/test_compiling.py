"""How little jaxkv's subject compiles, since a tiny model's run is nearly all compiling."""

import numpy as np

from jaxkv.testing import compiling
from jaxkv.testing.driver import Driver
from tests.tiny import Cell, make_model, new_subject

CELL = Cell("jaxkv", "reference", "contiguous")


def test_steps_of_many_sizes_are_three_programs(monkeypatch):
    """A first step, a later one, and one of a single token."""
    traced = []
    forwarded = Driver._forwarded

    def counting(self, *given, **promises):
        traced.append(promises)
        return forwarded(self, *given, **promises)

    monkeypatch.setattr(Driver, "_forwarded", counting)
    subject = new_subject(make_model("jaxkv", "reference"), CELL, slack=0)

    for rows in (1, 2, 3, 4):
        state = subject.init(rows, 44)
        for tokens in (3, 1, 8, 20, 1):
            _, state = subject.step(state, np.zeros((rows, tokens), np.int32))

    assert len(traced) == 3


def test_an_option_of_the_compiler_that_a_release_lacks_is_left_out(monkeypatch):
    known = compiling._CHEAP
    monkeypatch.setattr(compiling, "_CHEAP", {**known, "xla_of_another_year": 1})

    compiling._known_options.cache_clear()
    found = compiling._known_options()
    compiling._known_options.cache_clear()

    assert found == known
