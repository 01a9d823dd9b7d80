"""A keras-hub CausalLM as a subject: a double with the package's calls, in numpy.

The package itself runs in tests/wild.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from crosscheck.adapters.keras_hub import adapt_keras_hub
from crosscheck.subjects import describe
from tests.tool.checking import quick, row_of

VOCAB, WIDTH, LONGEST = 19, 6, 48
OPS = SimpleNamespace(
    ones=lambda shape, dtype: np.ones(shape, dtype),
    zeros=lambda shape, dtype: np.zeros(shape, dtype),
    shape=np.shape,
    take=np.take,
    convert_to_tensor=np.asarray,
    convert_to_numpy=lambda x: getattr(x, "array", x),
)


class Variable:
    def __init__(self, path, array):
        self.path, self.array = path, array

    dtype = property(lambda self: self.array.dtype)

    def assign(self, array):
        self.array = np.asarray(array, self.array.dtype)


class Backbone:
    """Learned positions; its sizes and dtype are what get_config tells."""

    compute_dtype = "float32"
    max_sequence_length = LONGEST
    transformer_layers = ()

    def get_config(self):
        return {"dtype": self.compute_dtype}

    @classmethod
    def from_config(cls, config):
        return cls()


class CausalLM:
    """One attention layer over a cache [B, 1, 2, S, 1, H], written as `call_with_cache` does."""

    fault = None

    def __init__(self, backbone=None, preprocessor=None):
        self.backbone = backbone or Backbone()
        sizes = {"embed": (VOCAB, WIDTH), "place": (LONGEST, WIDTH), "head": (WIDTH, VOCAB)}
        sizes |= {f"qkv_{i}": (WIDTH, WIDTH) for i in range(3)}
        self.weights = [Variable(k, np.zeros(s, np.float32)) for k, s in sizes.items()]

    def __call__(self, inputs):
        ids = inputs["token_ids"]
        return self.call_with_cache(ids, np.zeros((len(ids), 1, 2, ids.shape[1], 1, WIDTH)), 0)[0]

    def call_with_cache(self, ids, cache, index):
        table = {w.path: w.array.astype(np.float64) for w in self.weights}
        tokens, room = ids.shape[1], cache.shape[3]
        first = 0 if self.fault == "restarted" else index
        x = table["embed"][ids] + table["place"][first : first + tokens]
        cache = cache.astype(np.float64)
        at = min(index, room - tokens)
        if at < index and self.fault != "clamps":
            raise IndexError(f"{index + tokens} tokens, room for {room}")
        for which in (0, 1):
            cache[:, 0, which, at : at + tokens, 0] = x @ table[f"qkv_{1 + which}"]
        keys, values = cache[:, 0, 0, :, 0], cache[:, 0, 1, :, 0]
        seen = np.arange(room) <= np.arange(index, index + tokens)[:, None]
        scores = np.where(seen, x @ table["qkv_0"] @ keys.swapaxes(1, 2), -np.inf)
        read = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + read / read.sum(-1, keepdims=True) @ values
        return (x @ table["head"]).astype(np.float32), x, cache.astype(np.float32)

    def _build_cache(self, ids):
        shape = (len(ids), 1, 2, ids.shape[1], 1, WIDTH)
        return None, self.call_with_cache(ids, np.zeros(shape), 0)[2]


@pytest.fixture(autouse=True)
def keras(monkeypatch):
    """A keras of numpy, under torch's name."""
    double = SimpleNamespace(ops=OPS, backend=SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", double)


def subject(fault=None):
    return adapt_keras_hub(type("Lm", (CausalLM,), {"fault": fault})(), amplify=True)


def test_what_the_package_offers_is_declared_and_what_not_has_a_reason():
    info = describe(subject())

    assert {"cache", "chunk", "capacity", "rollback", "gather", "kv"} <= info.capabilities
    assert not {"left_pad", "positions", "f64"} & info.capabilities
    assert info.absent["f64"] == "keras's torch backend resolves float64 to float32"
    assert (info.num_layers, info.kv_heads, info.max_positions) == (1, 1, LONGEST)


@pytest.mark.parametrize(
    ("relation", "fault"),
    [("cache.partition", "restarted"), ("cache.capacity", "clamps")],
)
def test_what_the_package_does_wrong_is_found(relation, fault):
    report = quick(subject(fault), relation)

    assert row_of(report, relation, "float32").verdict == "fail"


@pytest.mark.parametrize(
    "relation", ["cache.partition", "cache.capacity", "cache.rollback", "cache.fork_gather"]
)
def test_without_the_mistake_nothing_is(relation):
    # One layer is too few for some planted faults to show: blind, but no alarm.
    assert row_of(quick(subject(), relation), relation, "float32").verdict in ("pass", "blind")


def test_written_keys_and_values_are_read_back_and_used():
    mine = subject()
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    _, state = mine.step(mine.init(2, 8), ids)
    held = mine.kv(state, 0)

    changed = mine.with_kv(state, 0, replace(held, keys_BSKH=2 * held.keys_BSKH))

    assert np.allclose(mine.kv(changed, 0).keys_BSKH, 2 * held.keys_BSKH)
    assert not np.allclose(mine.step(changed, ids[:, :1])[0], mine.step(state, ids[:, :1])[0])
