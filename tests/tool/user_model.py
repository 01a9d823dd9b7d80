"""A decoder as a user would have one, in numpy; its faults are switched on by name.

It knows nothing of crosscheck: what drives it in a test is written out by the tester itself.
"""

import atexit
import os
import time
from types import SimpleNamespace

import numpy as np

WIDTH, VOCAB, LONGEST = 8, 23, 64
CAPABILITIES = {"cache", "chunk", "persistent", "rollback", "gather", "positions", "f64", "f32"}


class Decoder:
    """One layer of attention over learned positions; a state is (keys, values, capacity)."""

    def __init__(self, fault=None, dtype="float64"):
        draw = np.random.default_rng(0)
        self.fault = fault
        self.embed = draw.normal(size=(VOCAB, WIDTH)).astype(dtype)
        self.position = draw.normal(size=(LONGEST, WIDTH)).astype(dtype)
        self.qkv = draw.normal(size=(3, WIDTH, WIDTH)).astype(dtype)
        self.head = draw.normal(size=(WIDTH, VOCAB)).astype(dtype) * (fault != "mute")
        self.info = SimpleNamespace(
            name=f"decoder/{fault or 'right'}",
            framework="numpy",
            dtype=dtype,
            vocab_size=VOCAB,
            num_layers=1,
            max_positions=LONGEST,
            capabilities=frozenset(CAPABILITIES),
        )

    def cast(self, dtype):
        return Decoder(self.fault, dtype)

    def full(self, ids, positions=None):
        return self._forward(np.asarray(ids), *self.init(len(ids))[:2], positions, start=0)[0]

    def init(self, batch, capacity=None):
        empty = np.zeros((batch, 0, WIDTH), self.embed.dtype)
        return empty, empty, capacity

    def step(self, state, ids, positions=None):
        keys, values, capacity = state
        held, ids = keys.shape[1], np.asarray(ids)
        if self.fault == "hangs" and held > 3:
            # What a framework does that is cut off while it computes.
            atexit.register(os.abort)
            time.sleep(600)
        if self.fault == "raises" and held > 3:
            raise IndexError("index 4 is out of bounds")
        if capacity is not None and held + ids.shape[1] > capacity and self.fault != "unbounded":
            raise ValueError(f"{held + ids.shape[1]} tokens, room for {capacity}")
        start = 0 if self.fault == "restarted" else held
        logits, keys, values = self._forward(ids, keys, values, positions, start=start)
        return logits, (keys, values, capacity)

    def length(self, state):
        return np.full(len(state[0]), state[0].shape[1])

    def rollback(self, state, length):
        kept = int(np.max(length))
        return state[0][:, :kept], state[1][:, :kept], state[2]

    def gather(self, state, rows):
        rows = np.asarray(rows)
        values = state[1] if self.fault == "values-stay" else state[1][rows]
        return state[0][rows], values, state[2]

    def _forward(self, ids, keys, values, positions, start):
        count = ids.shape[1]
        positions = np.arange(start, start + count) if positions is None else positions
        x = self.embed[ids] + self.position[positions]
        query, key, value = x @ self.qkv[0], x @ self.qkv[1], x @ self.qkv[2]
        keys, values = np.concatenate([keys, key], 1), np.concatenate([values, value], 1)
        total = keys.shape[1]
        seen = np.arange(total) <= np.arange(total - count, total)[:, None]
        scores = np.where(seen, query @ keys.swapaxes(1, 2), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return (x + weights @ values) @ self.head, keys, values


def right():
    return Decoder()


def restarted():
    return Decoder("restarted")


def raises():
    return Decoder("raises")


def hangs():
    return Decoder("hangs")


def values_stay():
    return Decoder("values-stay")


def mute():
    return Decoder("mute")


def unmade():
    raise RuntimeError("no weights here\nand more lines")


def nothing():
    Decoder()


def wanting(size):
    return Decoder()
