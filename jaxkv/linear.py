"""The two parts that every sub-layer is made of: a norm and a product with a matrix.

Letters: B rows, T new tokens, D width, E outputs, P parts of the width and C its channels in each.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkv import ops
from jaxkv.spec import config as spec

Params = Mapping[str, Any]

# Of products that read the matrix and do little else: the bytes from which on it pays to cut it,
# and into how many parts.
_LEAST_BYTES, _PARTS = 1 << 20, 4


def norm(p: Params, x_BTD: Float[Array, "*B D"], norm: spec.Norm) -> Float[Array, "*B D"]:
    """Return the last axis normed as the config says."""
    if norm.kind == "layer":
        return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)
    return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps, plus_one=norm.plus_one)


def linear(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times the matrix, plus the bias if there is one."""
    y_BTE = _multiply(x_BTD, p["weight"])
    return y_BTE if p.get("bias") is None else y_BTE + p["bias"]


def _multiply(x_BTD: Array, weight_DE: Array) -> Array:
    if not _is_read_alone(x_BTD, weight_DE):
        return jnp.einsum("BTD,DE->BTE", x_BTD, weight_DE)
    # XLA gives a row's whole product to one thread below 2^19 terms, and cuts the columns above, so
    # that threads read short pieces of rows. Parts of whole rows are read on end, each by one.
    width, outputs = weight_DE.shape
    parts = math.gcd(width, _PARTS)
    x_BTPC = x_BTD.reshape(*x_BTD.shape[:2], parts, width // parts)
    weight_PCE = weight_DE.reshape(parts, width // parts, outputs)
    return jnp.sum(jnp.einsum("BTPC,PCE->PBTE", x_BTPC, weight_PCE), axis=0)


def _is_read_alone(x_BTD: Array, weight_DE: Array) -> bool:
    """Return whether this is one row on a CPU, times a matrix that takes time to read."""
    return (
        x_BTD.shape[0] * x_BTD.shape[1] == 1
        and weight_DE.dtype in (jnp.float32, jnp.float64)
        and weight_DE.nbytes >= _LEAST_BYTES
        and jax.default_backend() == "cpu"
    )
