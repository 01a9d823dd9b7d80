"""The models of `peers`, loaded by both twins once a session."""

import importlib
from functools import cache
from typing import Any

import pytest

from tests.beams import peers


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Return a function: name, twin -> the model, in float64."""
    load = cache(lambda name: peers.save(name, tmp_path_factory.mktemp(name)))

    @cache
    def make(name: str, twin: str) -> Any:
        checkpoint = load(name)
        from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
        return from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")

    return make
