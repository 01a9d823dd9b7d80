"""A tiny DeepSeek-V3 with its module, whose drafts are right always, at times or hardly ever.

With `spread` 0 no layer adds to the stream, so that both model and module name a function of the
last token; with more they drift apart.
"""

import importlib
from dataclasses import replace
from functools import cache

import numpy as np

from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from tests.sampling.slow import Twin

CONFIG = replace(tiny_family("deepseek_v3"), draft_layers=1, has_mtp=True)
PROMPTS = [[24, 47, 31, 24, 37, 69, 46], [61, 9], [90, 15, 3, 53, 81]]
BUDGETS = [14, 9, 12]
SPREADS = {"right": 0.0, "mixed": 0.15, "wrong": 1.0}


@cache
def arrays(spread):
    found = random_arrays(CONFIG, seed=5)
    alike = {"mtp.embed_norm.weight": np.ones(CONFIG.width)}
    alike |= {"mtp.norm.weight": found["norm.weight"]}
    first_half = np.eye(CONFIG.width, 2 * CONFIG.width)
    alike |= {"mtp.merge.weight": first_half + spread * found["mtp.merge.weight"]}
    ends = ("attn.o.weight", "attn.o.bias", "down.weight")
    shrunk = {name: spread * x for name, x in found.items() if name.endswith(ends)}
    return found if spread == SPREADS["wrong"] else found | shrunk | alike


@cache
def model(twin, drafts="mixed"):
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    return from_arrays(CONFIG, arrays(SPREADS[drafts]), dtype="float64")


def speculate(twin, prompts=PROMPTS, *, drafts="mixed", k=3, **asked):
    call = importlib.import_module(f"{twin}.speculative").speculate
    asked = {"max_new_tokens": BUDGETS, "draft": "mtp", **asked}
    return call(model(twin, drafts), prompts, k=k, **asked)


def generate(twin, prompts=PROMPTS, *, drafts="mixed", **asked):
    call = importlib.import_module(f"{twin}.generation").generate
    return call(model(twin, drafts), prompts, **{"max_new_tokens": BUDGETS, **asked})


class Module:
    """One twin's module on whole texts, from nothing; compiled where the twin compiles."""

    def __init__(self, twin, decoder):
        names = ("caches", "linear", "model", "mtp")
        self.caches, self.linear, self.model, self.mtp = (
            importlib.import_module(f"{twin}.{name}") for name in names
        )
        self.twin, self.config, self.dtype = Twin(twin), decoder.config, decoder.dtype
        self.params = self.model.params_of(decoder)
        if twin == "jaxkv":
            import jax

            self._heard, self._read = jax.jit(self._heard), jax.jit(self._read)

    def heard(self, ids):
        """Return the model's normed stream at each of these tokens, [1, T, D]."""
        return self._heard(self.params, *self._row(ids))

    def cache(self, capacity):
        config = self.mtp.stack_of(self.config)
        return self.caches.init(config, batch=1, capacity=capacity, dtype=self.dtype)

    def read(self, stream, ids, cache):
        """Return logits and stream behind these places, and the cache with them."""
        logits, out, cache = self._read(self.params, stream, cache, *self._row(ids))
        return np.asarray(logits)[0], out, cache

    def drafts(self, ids, k):
        """Return k greedy drafts for a text."""
        logits, out, cache = self.read(self.heard(ids[:-1]), ids[1:], self.cache(len(ids) + k))
        found = [int(logits[-1].argmax())]
        while len(found) < k:
            logits, out, cache = self.read(out[:, -1:], found[-1:], cache)
            found.append(int(logits[-1].argmax()))
        return found

    def _row(self, ids):
        as_array = self.twin.array
        return as_array(np.array([ids], np.int32)), as_array(np.array([len(ids)], np.int32))

    def _heard(self, params, ids, count):
        stream = self.mtp.Stream(self.config)
        self.model.forward(params, ids, None, count, config=self.config, tap=stream)
        return self.linear.norm(params["norm"], stream.heard_BTD, self.config.norm)

    def _read(self, params, stream, cache, ids, count):
        out, cache = self.mtp.predict(params, stream, ids, cache, count, config=self.config)
        return self.model.project(params, out, self.config), out, cache
