"""`python -m bench layouts` times no layout that reads another's entries, on a tiny model."""

import importlib
from dataclasses import replace

import pytest

from bench.layouts import FLAT, NEW, Steps, Subject
from jaxkv.spec.tiny import open_subject
from tests.tiny import TWINS

USED, WINDOW = 24, 9
OTHERS = (
    Subject("pages", {"layout": "paged", "page_size": 4}, used=USED),
    Subject("ring", {"layout": "window", "slack": NEW}, used=USED, window=WINDOW),
)
SUBJECTS = (replace(FLAT, used=USED), *OTHERS)
twins = pytest.mark.parametrize("twin", TWINS)


@twins
def test_layouts_that_hold_the_same_noise_give_the_same_ids(twin):
    steps = Steps(twin, open_subject("llama")[0])

    assert steps.open(2, SUBJECTS) == []
    assert sorted(steps.cache) == ["contiguous", "pages", "ring"]


@twins
def test_a_row_beside_shorter_ones_goes_on_as_beside_its_likes(twin):
    steps = Steps(twin, open_subject("llama")[0])
    ragged = Subject("ragged", {}, used=USED, rows=(9, USED))
    steps.cache = {each.name: steps.filled(each, batch=2) for each in (SUBJECTS[0], ragged)}

    assert steps.cache["ragged"].length_B.tolist() == [9, USED]
    level, beside = (steps.ids(each) for each in (SUBJECTS[0], ragged))
    assert beside[1] == level[1]
    assert beside[0] != level[0]
    assert steps.cache["ragged"].length_B.tolist() == [9, USED]


@twins
def test_a_layout_that_reads_another_rows_entries_is_named(twin):
    class Wrong(Steps):
        def filled(self, subject, *, batch):
            cache = super().filled(subject, batch=batch)
            rows = self._counts([1, 0])
            return self.caches.gather(cache, rows) if subject in OTHERS else cache

    assert Wrong(twin, open_subject("llama")[0]).open(2, SUBJECTS) == ["pages", "ring"]


@twins
def test_a_ring_one_slot_off_is_named(twin):
    class Wrong(Steps):
        def filled(self, subject, *, batch):
            cache = super().filled(subject, batch=batch)
            if subject.name != "ring":
                return cache
            return replace(cache, sites=tuple(_turned(site, twin) for site in cache.sites))

    assert Wrong(twin, open_subject("llama")[0]).open(2, SUBJECTS) == ["ring"]


def _turned(site, twin):
    """Return a site with every slot's entry in the next slot."""
    numbers = importlib.import_module({"jaxkv": "jax.numpy", "torchkv": "torch"}[twin])
    arrays = {name: x for name, x in vars(site).items() if name[:2] in ("k_", "v_")}
    turned = {n: numbers.roll(x, 1, n.split("_")[1].index("C")) for n, x in arrays.items()}
    return replace(site, **turned)
