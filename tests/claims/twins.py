"""What the tests of claims share: arrays of a twin, and attention seen through its own verbs."""

import numpy as np

from jaxkv.spec.tiny import llama
from tests.tiny import module


def ints(twin: str, array):
    if twin == "torchkv":
        import torch

        return torch.tensor(np.asarray(array), dtype=torch.int32)
    import jax.numpy as jnp

    return jnp.asarray(array, jnp.int32)


def floats(twin: str, array):
    if twin == "torchkv":
        import torch

        return torch.tensor(array)
    import jax.numpy as jnp

    return jnp.asarray(array)


def a_key(twin: str, seed: int = 0):
    if twin == "torchkv":
        import torch

        return torch.Generator().manual_seed(seed)
    import jax

    return jax.random.key(seed)


def attend_once(cell, q, k, v, *, causal: bool):
    """Return one fresh attention of queries to keys and values [T, H], by the twin's own verbs."""
    caches, tokens = module(cell, "caches"), len(q)
    cache = caches.init(one_head(None), batch=1, capacity=32, dtype="float64")
    cache, step = caches.begin(cache, ints(cell.twin, [tokens]), T=tokens, fresh=True)
    arrays = (floats(cell.twin, x[None, :, None, :]) for x in (q, k, v))
    rule = caches.Rule(scale=18**-0.5, causal=causal)
    out, _ = caches.attend(cache.sites[0], step, *arrays, rule=rule)
    return np.asarray(out)[0, :, 0]


def keys_seen(cell, sizes, *, window: int | None = None):
    """Return which positions each query saw [T, T]: its output over one-hot values shows them."""
    caches, total = module(cell, "caches"), sum(sizes)
    config = one_head(window)
    cache = caches.init(config, batch=1, capacity=32, dtype="float64", layout=cell.layout)
    rule = caches.Rule(scale=1.0, window=window)
    rows, at = [], 0
    for size in sizes:
        cache, step = caches.begin(cache, ints(cell.twin, [size]), T=size)
        values = np.zeros((1, size, 1, 18))
        values[0, np.arange(size), 0, at + np.arange(size)] = 1.0
        zeros, values = floats(cell.twin, np.zeros((1, size, 1, 18))), floats(cell.twin, values)
        out, site = caches.attend(cache.sites[0], step, zeros, zeros, values, rule=rule)
        cache = caches.commit(cache, step, (site,))
        rows.append(np.asarray(out)[0, :, 0, :total] > 1e-9)
        at += size
    return np.concatenate(rows)


def one_head(window: int | None):
    """Return a config of one layer with one head of width 18, enough for 18 positions."""
    from dataclasses import replace

    config = llama(window)
    layer = config.layers[0]
    attention = replace(layer.attention, num_heads=1, num_kv_heads=1, rope=None)
    return replace(config, layers=(replace(layer, attention=attention),))
