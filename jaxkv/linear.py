"""The two parts that every sub-layer is made of: a norm and a product with a matrix.

Letters: B rows, T new tokens, X rows and tokens in one axis, D width, E outputs, P parts of the
width and C its channels in each, V vocabulary.
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

# Of products that read the matrix and do little else: the bytes from which on another form pays,
# into how many parts the matrix is cut for one row, and the most rows, which fill one vector.
_LEAST_BYTES, _PARTS, _FEW = 1 << 20, 4, 16


def norm(p: Params, x_BTD: Float[Array, "*B D"], norm: spec.Norm) -> Float[Array, "*B D"]:
    """Return the last axis normed as the config says."""
    if norm.kind == "layer":
        return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)
    return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps, plus_one=norm.plus_one)


def linear(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times the matrix, plus the bias if there is one."""
    y_BTE = _multiply(x_BTD, p["weight"])
    return y_BTE if p.get("bias") is None else y_BTE + p["bias"]


def tied(table_VD: Float[Array, "V D"], x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    """Return each token's product with each row of the table of tokens: what a tied head gives."""
    b, t, d = x_BTD.shape
    if not (1 < b * t <= _FEW and _is_worth_it(table_VD)):
        return jnp.einsum("BTD,VD->BTV", x_BTD, table_VD)
    # XLA turns a table on the right around for every product; on the left it is read as it stands.
    # The barrier keeps XLA from putting it on the right again.
    logits_VX = jnp.einsum("VD,XD->VX", table_VD, x_BTD.reshape(b * t, d))
    return jax.lax.optimization_barrier(logits_VX).T.reshape(b, t, -1)


def _multiply(x_BTD: Array, weight_DE: Array) -> Array:
    if not (x_BTD.shape[0] * x_BTD.shape[1] == 1 and _is_worth_it(weight_DE)):
        return jnp.einsum("BTD,DE->BTE", x_BTD, weight_DE)
    # XLA gives a row's whole product to one thread below 2^19 terms, and cuts the columns above, so
    # that threads read short pieces of rows. Parts of whole rows are read on end, each by one.
    width, outputs = weight_DE.shape
    parts = math.gcd(width, _PARTS)
    x_BTPC = x_BTD.reshape(*x_BTD.shape[:2], parts, width // parts)
    weight_PCE = weight_DE.reshape(parts, width // parts, outputs)
    return jnp.sum(jnp.einsum("BTPC,PCE->PBTE", x_BTPC, weight_PCE), axis=0)


def _is_worth_it(weight: Array) -> bool:
    """Return whether reading the matrix takes a CPU longer than a few rows' other work."""
    return (
        weight.dtype in (jnp.float32, jnp.float64)
        and weight.nbytes >= _LEAST_BYTES
        and jax.default_backend() == "cpu"
    )
