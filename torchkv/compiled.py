"""Steps of decode as one compiled program, on request: `with compiled_steps(): generate(...)`.

An eager step runs some hundred operators a layer one by one. `torch.compile` makes of all layers
one program of static shapes, whose buffers are a window of slots, the power of two that the rows'
length fits in, and whose length is a tensor: one compilation for each batch and window.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache as remembered
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Layer, Mlp, ModelConfig
from torchkv import caches
from torchkv.block import Dropout
from torchkv.caches import Cache
from torchkv.caches.contiguous import ContiguousSite
from torchkv.caches.fixed import FixedSite, OneToken, Unguarded
from torchkv.linear import Params, norm
from torchkv.model import project
from torchkv.stack import embed, no_tap, run_layers

SMALLEST_WINDOW = 128
# Batches, windows and models of one process: far more than PyTorch's own limit of 8.
_PROGRAMS = 256
_RUN: ContextVar[Callable[..., Array] | None] = ContextVar("_RUN", default=None)


@contextmanager
def compiled_steps(backend: str = "inductor") -> Iterator[None]:
    """Run steps of decode within it as one compiled program, where that can be.

    It can where every row holds as many tokens and takes one, in a contiguous cache, and the model
    is a decoder without experts, latents, soft caps of scores, relative biases or scaled rotary
    positions; all else runs as outside. The logits are those of an eager step but for rounding.

    Args:
        backend: Of `torch.compile`; "inductor" needs a C++ compiler on a CPU.

    Cost: a compilation of half a minute to some minutes for each batch and window.
    """
    given = _RUN.set(_compile(backend))
    try:
        yield
    finally:
        _RUN.reset(given)


def forward_step(
    params: Params,
    ids_BT: Int[Array, "B T"],
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    config: ModelConfig,
) -> tuple[Float[Array, "B 1 V"], Cache] | None:
    """Return what `forward` gives for one token a row, compiled; None where `forward` has to.

    Args:
        params: The model's.
        ids_BT: One token a row.
        cache: Consumed, unless None is returned.
        count_B: int32.
        config: The model's.
    """
    run = _RUN.get()
    if run is None or ids_BT.shape[1] != 1 or not _can_be_compiled(cache, config):
        return None
    lengths, counts, over = torch.stack((cache.length_B, count_B, cache.overflow_B)).tolist()
    if {*counts} != {1} or len({*lengths}) > 1 or any(over) or lengths[0] >= cache.capacity:
        return None
    cache, step = caches.begin(cache, count_B, T=1, rectangular=True, clean=True)
    step.epoch.check("forward", "cache")
    step.epoch.write()
    slots = min(max(SMALLEST_WINDOW, 1 << lengths[0].bit_length()), cache.capacity)
    views = [(site.k_BKSH[:, :, :slots], site.v_BKSH[:, :, :slots]) for site in cache.sites]
    with torch._dynamo.config.patch(recompile_limit=_PROGRAMS):
        logits_B1V = run(params, ids_BT, step.length_B, views, config)
    return logits_B1V, caches.commit(cache, step, cache.sites)


@remembered
def _compile(backend: str) -> Callable[..., Array]:
    return torch.compile(_step, fullgraph=True, dynamic=False, backend=backend)


def _step(
    params: Params,
    ids_B1: Array,
    length_B: Array,
    views: list[tuple[Array, Array]],
    config: ModelConfig,
) -> Array:
    one_B1 = torch.ones_like(length_B).unsqueeze(1)
    step: Any = OneToken(length_B, one_B1[:, 0], length_B.unsqueeze(1), one_B1 > 0, Unguarded())
    x_B1D = embed(params, params, ids_B1, step, config)
    sites = tuple(FixedSite(k_BKSH, v_BKSH) for k_BKSH, v_BKSH in views)
    drop = Dropout(0.0, None)
    x_B1D, _ = run_layers(
        params, x_B1D, sites, step, config.layers, config, drop, no_tap, absorbed=None
    )
    if config.final_norm:
        x_B1D = norm(params["norm"], x_B1D, config.norm)
    return project(params, x_B1D, config)


def _can_be_compiled(cache: Cache, config: ModelConfig) -> bool:
    plain = all(isinstance(site, ContiguousSite) and site.rank is None for site in cache.sites)
    return plain and all(_is_plain(layer) for layer in dict.fromkeys(config.layers))


def _is_plain(layer: Layer) -> bool:
    a = layer.attention
    return (
        layer.cross is None
        and isinstance(layer.mlp, Mlp)
        and a.causal
        and (a.latent, a.relative, a.soft_cap) == (None, None, None)
        and (a.rope is None or a.rope.scaling is None)
    )
