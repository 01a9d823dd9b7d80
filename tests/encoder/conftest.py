"""Models that transformers saved, loaded here once a session."""

import importlib
from functools import cache
from typing import Any

import pytest

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.huggingface import read_huggingface
from tests.encoder.peers import peer
from tests.tiny import Cell, new_subject


@pytest.fixture(scope="session")
def load(tmp_path_factory):
    """Return a function: name -> the checkpoint that transformers saved."""

    @cache
    def read(name: str) -> Checkpoint:
        path = tmp_path_factory.mktemp(name)
        peer(name).save_pretrained(path)
        return read_huggingface(path)

    return read


@pytest.fixture(scope="session")
def model_of(load):
    """Return a function: name, twin -> the model, in float64."""

    @cache
    def make(name: str, twin: str) -> Any:
        from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
        checkpoint = load(name)
        return from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")

    return make


@pytest.fixture(scope="session")
def subject(model_of):
    """Return a function: name, twin, layout -> a subject, made once."""
    return cache(
        lambda name, twin, layout="contiguous": new_subject(
            model_of(name, twin), Cell(twin, name, layout), slack=0
        )
    )
