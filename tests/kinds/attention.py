"""One attention alone, fed in chunks through the verbs: for what no model shows by itself."""

from dataclasses import replace

import numpy as np

from jaxkv.spec.tiny import llama
from tests.tiny import PAGE, module

ROWS, HEADS, KV_HEADS, WIDTH = 2, 6, 3, 18


def arrays_of(cell):
    """Return the function that makes an array of the cell's twin."""
    if cell.twin == "torchkv":
        import torch

        return torch.from_numpy
    import jax.numpy as jnp

    return jnp.asarray


def attend_of(cell, **options):
    """Return the twin's `attend`, compiled where the twin compiles: eager JAX compiles each op."""
    attend = module(cell, "caches").attend
    if cell.twin == "torchkv":
        return lambda site, step, *parts: attend(site, step, *parts, **options)
    import jax

    return jax.jit(lambda site, step, *parts: attend(site, step, *parts, **options))


def one_layer(window=None, *, heads=HEADS, kv_heads=KV_HEADS):
    """Return a config of one attention without rotary positions, head width 18."""
    config = llama(window)
    layer = config.layers[0]
    attention = replace(layer.attention, num_heads=heads, num_kv_heads=kv_heads, rope=None)
    return replace(config, layers=(replace(layer, attention=attention),))


def draw(seed, tokens, *, rows=ROWS):
    """Return queries, keys and values with peaked scores."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, tokens, n, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS))
    return tuple(rng.normal(size=shape) * 1.5 for shape in shapes)


def attend_in_chunks(cell, config, qkv, sizes, *, rule, capacity=44, layout=None, bias=None):
    """Return the outputs of chunks of the given sizes fed one after the other."""
    caches, array = module(cell, "caches"), arrays_of(cell)
    rows = qkv[0].shape[0]
    layout = layout or cell.layout
    options = {"page_size": PAGE} if layout == "paged" else {}
    cache = caches.init(
        config, batch=rows, capacity=capacity, dtype="float64", layout=layout, **options
    )
    attend, outs, at = attend_of(cell, rule=rule, bias=bias), [], 0
    for size in sizes:
        count = array(np.full(rows, size, np.int32))
        cache, step = caches.begin(cache, count, T=size, fresh=at == 0 and size > 1)
        parts = [array(np.ascontiguousarray(x[:, at : at + size])) for x in qkv]
        out, site = attend(cache.sites[0], step, *parts)
        cache = caches.commit(cache, step, (site,))
        outs.append(np.asarray(out))
        at += size
    return np.concatenate(outs, axis=1)


def attend_uncached(cell, config, qkv, *, rule, bias=None):
    """Return the outputs of one forward that stores nothing."""
    caches, array = module(cell, "caches"), arrays_of(cell)
    rows, tokens = qkv[0].shape[:2]
    cache = caches.init(config, batch=rows, capacity=64, dtype="float64", layout="uncached")
    count = array(np.full(rows, tokens, np.int32))
    _, step = caches.begin(cache, count, T=tokens, fresh=True)
    parts = [array(x) for x in qkv]
    out, _ = attend_of(cell, rule=rule, bias=bias)(cache.sites[0], step, *parts)
    return np.asarray(out)
