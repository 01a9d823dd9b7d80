"""A cache whose layers do not fit together is refused by the layer that does not fit."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from jaxkv.spec.errors import ShapeError
from tests.tiny import TWINS, Cell, ids_of, module


def mixed(cell, *, batch=4, dtype="float64", **attention):
    """Return a cache of the model whose second site was made for something else."""
    caches, layer = module(cell, "caches"), cell.config.layers[1]
    other = replace(layer, attention=replace(layer.attention, **attention))
    config = replace(cell.config, layers=(cell.config.layers[0], other))
    right = caches.init(cell.config, batch=4, capacity=20, dtype="float64")
    wrong = caches.init(config, batch=batch, capacity=20, dtype=dtype)
    return replace(right, sites=(right.sites[0], wrong.sites[1]))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 9}, "attend: k_BTKH has H=8, the cache has H=9"),
        ({"num_kv_heads": 1}, "attend: k_BTKH has B*K=12 lines, the cache has 4"),
        ({"batch": 3}, "attend: k_BTKH has B*K=12 lines, the cache has 9"),
    ],
    ids=str,
)
def test_a_site_of_another_shape_among_right_ones_is_refused(twin, change, message):
    cell = Cell(twin, "reference", "contiguous")

    with pytest.raises(ShapeError) as error:
        cell.subject.step(mixed(cell, **change), ids_of(cell, 1, batch=4, length=8))

    assert str(error.value).startswith(message)


@pytest.mark.parametrize("twin", TWINS)
def test_a_site_of_another_dtype_among_right_ones_is_refused(twin):
    cell = Cell(twin, "reference", "contiguous")

    with pytest.raises(ShapeError, match="k_BTKH is float64, the cache float32"):
        cell.subject.step(mixed(cell, dtype="float32"), ids_of(cell, 1, batch=4, length=8))


def test_a_site_on_another_device_among_right_ones_is_refused_by_torchkv():
    import torch

    cell = Cell("torchkv", "reference", "contiguous")
    with torch.device("meta"):
        elsewhere = mixed(cell)
    cache = cell.subject.init(4, 20)

    with pytest.raises(ShapeError, match="k_BTKH is on cpu, the cache on meta"):
        cell.subject.step(
            replace(cache, sites=(cache.sites[0], elsewhere.sites[1])),
            ids_of(cell, 1, batch=4, length=8),
        )


DEVICES = """
import jax, numpy as np
from dataclasses import replace
from tests.tiny import Cell, ids_of
cell = Cell("jaxkv", "reference", "contiguous")
first, second = jax.devices()
cache = jax.device_put(cell.subject.init(4, 20), first)
cell.subject.step(cache, ids_of(cell, 1, batch=4, length=8))
moved = replace(cache, sites=(cache.sites[0], jax.device_put(cache.sites[1], second)))
try:
    cell.subject.step(moved, ids_of(cell, 1, batch=4, length=8))
except ValueError as error:
    print(error)
"""


def test_a_site_on_another_device_among_right_ones_is_refused_by_jax_itself():
    """One program lives on one set of devices: JAX checks its arguments, jaxkv adds nothing."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}

    child = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "incompatible devices" in child.stdout
