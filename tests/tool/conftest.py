"""One tiny decoder for the tests of the tool; its sizes are pairwise distinct."""

import numpy as np
import pytest

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.random_weights import random_arrays


@pytest.fixture(scope="session")
def make_config():
    """Return a function: changes -> plain data of a config (D=20 N=6 K=3 H=8 R=3 F=26 V=11)."""

    def make(*, layers=1, attention=None, mlp=None, norm=None, **model):
        layer = {
            "attention": {
                "num_heads": 6,
                "num_kv_heads": 3,
                "head_dim": 8,
                "window": None,
                "rope": {"theta": 100.0, "rotary_dim": 6, "scaling": None},
                "qkv_bias": True,
                "out_bias": True,
                "soft_cap": None,
            }
            | (attention or {}),
            "mlp": {"width": 26, "activation": "silu", "gated": True, "bias": True} | (mlp or {}),
        }
        return {
            "family": "tiny",
            "vocab_size": 11,
            "width": 20,
            "max_positions": 16,
            "layers": [layer] * layers,
            "norm": {"kind": "rms", "eps": 1e-5} | (norm or {}),
            "learned_positions": False,
            "tied_head": False,
            "head_bias": True,
            "dropout_rate": 0.0,
        } | model

    return make


@pytest.fixture(scope="session")
def make_arrays():
    """Return a function: config, seed -> its float64 weights."""

    def make(config, seed=0):
        return random_arrays(ModelConfig.from_dict(config), seed)

    return make


@pytest.fixture
def tiny_decoder(make_config, make_arrays):
    """Return (config, arrays, ids_BT) of two layers on 3 rows of 7 tokens."""
    config = make_config(layers=2)
    ids_BT = np.random.default_rng(5).integers(0, 11, (3, 7))
    return config, make_arrays(config), ids_BT


@pytest.fixture
def register():
    """Return a function that registers a relation for one test: name, run -> nothing."""
    from crosscheck.relations.registry import RELATIONS, relation
    from tests.tool.checking import CASE

    before = dict(RELATIONS)

    def add(name, run, *, cases=(CASE,), needs=("cache",), catches=("head.scale",)):
        run.__doc__ = "Holds."
        relation(name=name, needs=needs, cases=lambda info, seed: cases, catches=catches)(run)

    yield add
    for name in RELATIONS.keys() - before.keys():
        del RELATIONS[name]
