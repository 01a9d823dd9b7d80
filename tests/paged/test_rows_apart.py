"""What is not finite stays with its row: pages of all rows lie in one pool, and are read as one."""

import importlib
from typing import Any

import numpy as np
import pytest

from tests.tiny import CONFIGS, TWINS, Cell, module

ROWS, WIDTH, HELD = 3, 2, (6, 5, 3)
SPOILT = 1
twins = pytest.mark.parametrize("twin", TWINS)


def chunk(layer: Any, tokens: int, *, seed: int) -> list[np.ndarray]:
    """Return queries, keys and values."""
    rng, a = np.random.default_rng(seed), layer.attention
    heads = (a.num_heads, a.num_kv_heads, a.num_kv_heads)
    return [rng.normal(size=(ROWS, tokens, n, a.head_dim)) for n in heads]


def answers(
    twin: str, spoil: Any, *, count=(2, 1, 2), page_size: int = 8, clean: bool = False
) -> np.ndarray:
    """Return the second chunk's outputs, one array of it changed by `spoil`."""
    caches, config = module(Cell(twin, "", ""), "caches"), CONFIGS["llama"]
    xp: Any = importlib.import_module({"jaxkv": "jax.numpy", "torchkv": "torch"}[twin])
    layer, rule = config.layers[0], caches.Rule(scale=0.3)
    cache = caches.init(
        config, batch=ROWS, capacity=24, dtype="float64", layout="paged", page_size=page_size
    )
    out = None
    for seed, (n_B, tokens) in enumerate([(HELD, max(HELD)), (count, WIDTH)]):
        arrays = chunk(layer, tokens, seed=seed)
        if seed:
            spoil(*arrays)
        counts = xp.asarray(np.array(n_B, np.int32))
        cache, step = caches.begin(cache, counts, T=tokens, clean=clean)
        q, k, v = (xp.asarray(array) for array in arrays)
        out, site = caches.attend(cache.sites[0], step, q, k, v, rule=rule)
        cache = caches.commit(cache, step, (site, *cache.sites[1:]))
    return np.asarray(out)


def in_keys(q, k, v, *, value):
    # Above 0, because a score of -inf is a weight of 0, which is an answer.
    q[SPOILT, :, :, 2] = 1
    k[SPOILT, 0, 0, 2] = value


def in_values(q, k, v, *, value):
    v[SPOILT, 0, 0, 2] = value


def in_a_query(q, k, v, *, value):
    q[SPOILT, 0, 0, 2] = value


PLACES = {"keys": in_keys, "values": in_values, "a query": in_a_query}
pools = pytest.mark.parametrize("page_size", [8, 2], ids=["in their place", "by tiles"])


@pools
@pytest.mark.parametrize("clean", [False, True], ids=["any", "clean"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", PLACES)
@twins
def test_what_is_not_finite_in_one_row_reaches_no_other(twin, place, value, clean, page_size):
    right = answers(twin, lambda q, k, v: None, page_size=page_size)

    found = answers(
        twin, lambda *x: PLACES[place](*x, value=value), page_size=page_size, clean=clean
    )

    others = [row for row in range(ROWS) if row != SPOILT]
    np.testing.assert_allclose(found[others], right[others], rtol=1e-12, atol=1e-12)
    # Its own row is told: a number made up for it would look like an answer.
    assert not np.isfinite(found[SPOILT, 0]).all()


@pools
@twins
def test_nan_in_a_padding_token_reaches_no_answer(twin, page_size):
    def spoil(q, k, v):
        for x in (q, k, v):
            x[SPOILT, 1] = np.nan

    right = answers(twin, lambda q, k, v: None, page_size=page_size)
    found = answers(twin, spoil, page_size=page_size)

    others = [row for row in range(ROWS) if row != SPOILT]
    np.testing.assert_allclose(found[others], right[others], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[SPOILT, :1], right[SPOILT, :1], rtol=1e-12, atol=1e-12)
