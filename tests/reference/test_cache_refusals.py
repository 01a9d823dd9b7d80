"""Caches whose parts do not fit, or that are asked for what they do not offer."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from jaxkv.spec.errors import RequestError, ShapeError, Unsupported
from tests.reference.test_refusals import _floats, _ints, _of
from tests.tiny import CONFIGS, TWINS

pytestmark = pytest.mark.parametrize("twin", TWINS)
REFERENCE = CONFIGS["reference"]


@pytest.mark.parametrize("layout", ["contiguous", "window"])
def test_a_layer_with_fewer_slots_than_the_cache_is_refused(twin, layout):
    caches = _of(twin, "caches")
    small, large = (
        caches.init(CONFIGS["llama"], batch=1, capacity=n, dtype="float64", layout=layout)
        for n in (20, 30)
    )
    mixed = replace(large, sites=(large.sites[0], small.sites[1], large.sites[2]))

    with pytest.raises(ShapeError) as error:
        caches.begin(mixed, _ints(twin, np.array([1])), T=1)

    assert str(error.value) == (
        "begin: sites[1] has 20 slots, the cache has capacity 30. Make the cache with `init`."
    )


@pytest.mark.parametrize("fault", ["dtype", "shape"])
def test_values_that_do_not_fit_their_keys_are_refused(twin, fault):
    caches = _of(twin, "caches")
    cache = caches.init(REFERENCE, batch=1, capacity=20, dtype="float64")
    name = next(name for name in vars(cache.sites[1]) if name.startswith("v_"))
    values = getattr(cache.sites[1], name)
    form = {"dtype": (values.shape, "float32"), "shape": (values[..., :7].shape, "float64")}[fault]
    other = np.zeros(*form)
    site = copy(cache.sites[1])
    object.__setattr__(site, name, _floats(twin, other))  # past the suite's own shape checks
    mixed = replace(cache, sites=(cache.sites[0], site))

    with pytest.raises(ShapeError, match=r"begin: sites\[1\] has values .* beside keys"):
        caches.begin(mixed, _ints(twin, np.array([1])), T=1)


@pytest.mark.parametrize("layout", ["contiguous", "window"])
def test_an_option_that_a_layout_does_not_know_is_refused(twin, layout):
    with pytest.raises(RequestError) as error:
        _of(twin, "caches").init(
            REFERENCE, batch=1, capacity=20, dtype="float64", layout=layout, page_size=16
        )

    assert str(error.value) == f"init: layout {layout!r} has no option 'page_size'. Leave it out."


@pytest.mark.parametrize("layout", ["contiguous", "uncached"])
def test_keys_left_out_are_refused_by_a_layout_that_stores_them(twin, layout):
    caches = _of(twin, "caches")
    cache = caches.init(REFERENCE, batch=1, capacity=20, dtype="float64", layout=layout)
    cache, step = caches.begin(cache, _ints(twin, np.array([1])), T=1, fresh=True)
    q = _floats(twin, np.zeros((1, 1, 3, 8)))

    with pytest.raises(Unsupported, match="stores the step's own keys and values"):
        caches.attend(cache.sites[0], step, q, None, None, rule=caches.Rule(scale=1.0))
