"""The least that this machine needs: reading the bytes, and the matrix products, by XLA's threads.

A step of decode reads every weight once and the keys and values that are used. How fast the machine
reads is measured on the model's own arrays, by one compiled reduction, in the same run. It is a
reference and no bound: a better schedule of the reads can pass it.
"""

from collections.abc import Callable
from typing import Any

from bench.timing import seconds
from jaxkv.spec import memory
from jaxkv.spec.config import ModelConfig

Measure = Callable[[], float]


def weight_read(model: Any) -> Measure:
    """Return a measure, in ms, of reading every parameter of a jaxkv model once."""
    import jax
    import jax.numpy as jnp

    from jaxkv.model import params_of

    leaves = jax.tree.leaves(params_of(model))
    total = jax.jit(lambda arrays: sum(jnp.sum(array) for array in arrays))
    return lambda: seconds(lambda: total(leaves).block_until_ready()) * 1000


def products(model: Any, *, tokens: int) -> Measure:
    """Return a measure, in ms, of the layers' matrix products alone with so many rows.

    Args:
        model: jaxkv's.
        tokens: Rows of the activations: prompt tokens of all rows together, or the batch of a step.
    """
    import jax
    import jax.numpy as jnp

    from jaxkv.linear import linear, turned
    from jaxkv.model import Turned

    modules = [
        each
        for layer in model.layers
        for each in (layer.attn.qkv, layer.attn.o, layer.mlp.up, layer.mlp.down)
    ]
    forms = [(turned, 1) if isinstance(each, Turned) else (linear, 0) for each in modules]

    def multiply(inputs: Any, weights: Any) -> Any:
        return [
            jnp.sum(form({"weight": weight}, inputs[weight.shape[axis]]))
            for (form, axis), weight in zip(forms, weights, strict=True)
        ]

    weights = [each.weight[...] for each in modules]
    widths = {weight.shape[axis] for (_, axis), weight in zip(forms, weights, strict=True)}
    inputs = {each: jnp.ones((1, tokens, each), model.dtype) for each in widths}
    compiled = jax.jit(multiply)
    return lambda: seconds(lambda: jax.block_until_ready(compiled(inputs, weights))) * 1000


def step_bytes(config: ModelConfig, *, batch: int, used: int, itemsize: int = 4) -> int:
    """Return the bytes that a step of decode moves at least: weights, and used keys and values.

    Args:
        config: The model's; a token's expert layers are counted whole.
        batch: Rows.
        used: Tokens that each row holds.
        itemsize: Bytes an element.
    """
    weights = memory.weight_bytes(memory.num_parameters(config), itemsize)
    kv = memory.model_cache_bytes(config, batch=batch, tokens=used, itemsize=itemsize)
    return weights + kv


def step_floor(config: ModelConfig, read_ms: float, *, batch: int, used: int) -> float:
    """Return the milliseconds of a step at the rate at which the weights were read.

    Args:
        config: The model's.
        read_ms: Measured time of one read of all weights.
        batch: Rows.
        used: Tokens that each row holds.
    """
    alone = step_bytes(config, batch=batch, used=0)
    return read_ms * step_bytes(config, batch=batch, used=used) / alone
