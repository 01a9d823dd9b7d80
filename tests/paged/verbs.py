"""Driving a paged cache of one layer by its verbs alone, with numpy outside, on either twin.

What is written is the row's own text: the key and value of a token are functions of the token, so
that a page read by the wrong row shows.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm
from tests.kinds.attention import arrays_of
from tests.tiny import Cell, module

CONFIG = ModelConfig(
    family="llama",
    vocab_size=97,
    width=40,
    max_positions=512,
    layers=(Layer(Attention(2, 1, 3, None, None, False, False), Mlp(52, "silu", True, False)),),
    norm=Norm("rms", 1e-5),
    learned_positions=False,
    tied_head=True,
    head_bias=False,
)


@dataclass
class Driver:
    """One twin's verbs on one-layer caches."""

    cell: Cell

    def __post_init__(self):
        self.caches, self.array = module(self.cell, "caches"), arrays_of(self.cell)
        self.step = partial(_step, self.caches)
        if self.cell.twin == "jaxkv":
            import jax

            self.step = jax.jit(self.step)

    def init(self, **sizes):
        return self.caches.init(CONFIG, dtype="float64", **{"layout": "paged", **sizes})

    def append(self, cache, texts):
        """Return the cache with each row's tokens appended, or refused."""
        width = max(8, *(len(text) for text in texts))
        tokens = np.zeros((len(texts), width))
        for b, text in enumerate(texts):
            tokens[b, : len(text)] = text
        kv = np.repeat(tokens[:, :, None, None], 3, axis=3)
        count = np.array([len(text) for text in texts], np.int32)
        return self.step(cache, self.array(kv), self.array(count))

    def rollback(self, cache, lengths):
        return self.caches.rollback(cache, self.array(np.array(lengths, np.int32)))

    def gather(self, cache, rows):
        return self.caches.gather(cache, self.array(np.array(rows, np.int32)))

    def texts(self, cache):
        """Return the tokens that each row reads back, from its keys; its values must agree."""
        k, v, position, valid = (np.asarray(x) for x in self.caches.read(cache, 0))
        np.testing.assert_array_equal(k[valid], -v[valid])
        assert (position == np.arange(k.shape[1])).all()
        return [k[b, valid[b], 0, 0].astype(int).tolist() for b in range(len(k))]


def _step(caches, cache, kv_BTKH, count_B):
    import importlib

    ops = importlib.import_module(caches.__name__.replace("caches", "ops"))
    cache, step = caches.begin(cache, count_B, T=kv_BTKH.shape[1])
    q_BTNH = kv_BTKH.repeat(2, axis=2) if hasattr(kv_BTKH, "at") else kv_BTKH.repeat(1, 1, 2, 1)
    _, site = caches.attend(
        cache.sites[0], step, q_BTNH, kv_BTKH, -kv_BTKH, rule=ops.Rule(scale=1.0)
    )
    return caches.commit(cache, step, (site,))


def table(cache):
    return np.asarray(cache.shared.table_BC)


def counts(cache):
    return np.asarray(cache.shared.count_A)


def held(cache):
    """Return how many pages each row holds."""
    return (table(cache) > 0).sum(axis=1).tolist()


def free(cache):
    return int((counts(cache)[1:] == 0).sum())


def copied(cache):
    return int(cache.shared.copied)


def assert_sound(cache):
    """Raise unless counts equal occurrences and every row holds just the pages of its tokens."""
    pages, size = table(cache), cache.shared.page_size
    occurrences = np.bincount(pages.reshape(-1), minlength=len(counts(cache)))
    occurrences[0] = 0
    np.testing.assert_array_equal(counts(cache), occurrences)
    lengths = np.asarray(cache.length_B)
    expected = np.arange(pages.shape[1]) < -(-lengths // size)[:, None]
    np.testing.assert_array_equal(pages > 0, expected)
    for row in pages:
        used = row[row > 0]
        assert len(set(used.tolist())) == len(used)
