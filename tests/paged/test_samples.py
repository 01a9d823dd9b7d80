"""Several samples of one prompt: its pages are shared, their draws are their own."""

import numpy as np
import pytest

from tests.kinds.attention import arrays_of
from tests.paged.verbs import assert_sound, copied, counts
from tests.tiny import TWINS, Cell, make_model, module

PROMPT, NEW, SEEDS = [3, 1, 4, 1, 5, 9], 10, [7, 8, 9, 10]
twins = pytest.mark.parametrize("twin", TWINS)


def samples(twin, seeds):
    """Return the texts that are drawn after one prompt, and the cache that they end in."""
    cell = Cell(twin, "llama", "paged")
    model, caches, generation = make_model(twin, "llama"), module(cell, "caches"), "generation"
    sizes = {"batch": 1, "capacity": 24, "layout": "paged", "page_size": 4, "pool_pages": 30}
    cache = caches.init(cell.config, dtype="float64", **sizes)
    generate = module(cell, generation).generate
    first = generate(model, [PROMPT], max_new_tokens=1, cache=cache, keep_cache=True).cache
    rows_B = arrays_of(cell)(np.zeros(len(seeds), np.int32))
    shared = caches.gather(caches.rollback(first, first.length_B - 1), rows_B)
    found = generate(
        model,
        [PROMPT[-1:]] * len(seeds),
        max_new_tokens=NEW,
        temperature=6.0,
        seeds=seeds,
        cache=shared,
        keep_cache=True,
    )
    return found.new_tokens, found.cache


@twins
def test_samples_of_one_prompt_differ_and_depend_on_their_seeds_alone(twin):
    """KV-35: four streams, the same ones again, and each as it is drawn by itself."""
    texts, cache = samples(twin, SEEDS)

    assert len({tuple(text) for text in texts}) == len(SEEDS)
    assert samples(twin, SEEDS)[0] == texts
    assert [samples(twin, [seed])[0][0] for seed in SEEDS] == texts
    # The prompt's first page is whole and stays shared; of its second three of four take a copy.
    assert counts(cache).max() == len(SEEDS)
    assert copied(cache) == len(SEEDS) - 1
    assert_sound(cache)
