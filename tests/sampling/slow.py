"""The filters as one would explain them, one token at a time; and one twin's on numpy arrays."""

import importlib
import math

import numpy as np


def distribution(logits, *, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Return the probability of each token after temperature, top-k, top-p and min-p, float64."""
    scaled = [x / temperature for x in np.asarray(logits, np.float64).tolist()]
    kept = set(range(len(scaled)))
    if top_k is not None:
        border = sorted(scaled, reverse=True)[top_k - 1]
        kept = {i for i in kept if scaled[i] >= border}
    if top_p < 1:
        chance, spared, dropped = shares(scaled, kept), 0.0, set()
        for i in sorted(kept, key=lambda i: (scaled[i], i)):
            spared += chance[i]
            if spared > 1 - top_p:
                break
            dropped.add(i)
        kept = kept - dropped or {max(kept, key=lambda i: (scaled[i], i))}
    chance = shares(scaled, kept)
    kept = {i for i in kept if chance[i] >= min_p * max(chance)}
    return np.array(shares(scaled, kept))


def shares(scaled, kept) -> list[float]:
    top = max(scaled[i] for i in kept)
    weight = [math.exp(x - top) if i in kept else 0.0 for i, x in enumerate(scaled)]
    return [w / math.fsum(weight) for w in weight]


class Twin:
    """One twin's sampling functions behind numpy."""

    def __init__(self, name):
        self.name = name
        self.sampling = importlib.import_module(f"{name}.sampling")
        self.settings = importlib.import_module(f"{name}.settings")

    def array(self, x):
        if self.name == "torchkv":
            import torch

            x = np.asarray(x)
            return torch.tensor(x.astype(np.int64) if x.dtype == np.uint32 else x)
        import jax.numpy as jnp

        return jnp.asarray(x)

    def sampler(self, vocab_size, batch, **asked):
        found = self.settings.plan_sampling(vocab_size, batch, **asked)
        names = ("temperature_B", "top_k_B", "tail_B", "min_p_B", "seed_B")
        return self.sampling.Sampler(*(self.array(getattr(found, name)) for name in names))

    def warp(self, logits_BV, **asked) -> np.ndarray:
        sampler = self.sampler(logits_BV.shape[1], len(logits_BV), **asked)
        return np.asarray(self.sampling.warp(self.array(logits_BV), sampler))

    def probability(self, logits_BV, **asked) -> np.ndarray:
        warped = self.warp(logits_BV, **asked).astype(np.float64)
        weight = np.exp(warped - warped.max(-1, keepdims=True))
        return weight / weight.sum(-1, keepdims=True)

    def choose(self, logits_BV, uniform_B) -> np.ndarray:
        return np.asarray(self.sampling.choose(self.array(logits_BV), self.array(uniform_B)))

    def uniform(self, seed_B, place_B) -> np.ndarray:
        seeds, places = np.asarray(seed_B, np.uint32), np.asarray(place_B, np.int32)
        return np.asarray(self.sampling.uniform(self.array(seeds), self.array(places)), np.float64)

    def sample(self, logits_BV, place_B, **asked) -> np.ndarray:
        sampler = self.sampler(logits_BV.shape[1], len(logits_BV), **asked)
        places = self.array(np.asarray(place_B, np.int32))
        return np.asarray(self.sampling.sample(self.array(logits_BV), sampler, places))
