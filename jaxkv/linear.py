"""The two parts that every sub-layer is made of: a norm and a product with a matrix.

Letters: B rows, T new tokens, X rows and tokens in one axis, D width, E outputs, P parts of a
matrix, C channels of the width or R outputs in each.
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
# into how many parts the matrix is cut, and the most rows, which fill one vector.
_LEAST_BYTES, _PARTS, _FEW = 1 << 20, 4, 16


def norm(p: Params, x_BTD: Float[Array, "*B D"], norm: spec.Norm) -> Float[Array, "*B D"]:
    """Return the last axis normed as the config says."""
    if norm.kind == "layer":
        return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)
    return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps, plus_one=norm.plus_one)


def linear(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times the matrix (in, out), plus the bias if there is one."""
    return _biased(_multiply(x_BTD, p["weight"]), p)


def turned(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times a matrix that stands (out, in), plus the bias if there is one."""
    return _biased(by_rows(p["weight"], x_BTD), p)


def by_rows(weight_ED: Float[Array, "E D"], x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return each token's product with each row of a matrix, as of a tied head with its table."""
    (b, t, d), outputs = x_BTD.shape, weight_ED.shape[0]
    if not (1 < b * t <= _FEW and _is_worth_it(weight_ED)):
        return jnp.einsum("BTD,ED->BTE", x_BTD, weight_ED)
    # XLA turns a matrix on the right around for every product; on the left it is read as it stands,
    # and in parts by all threads. The barrier keeps XLA from putting it on the right again.
    parts = math.gcd(outputs, _PARTS)
    weight_PRD = weight_ED.reshape(parts, outputs // parts, d)
    y_PRX = jnp.einsum("PRD,XD->PRX", weight_PRD, x_BTD.reshape(b * t, d))
    return jax.lax.optimization_barrier(y_PRX).reshape(outputs, b * t).T.reshape(b, t, outputs)


def _biased(y_BTE: Array, p: Params) -> Array:
    return y_BTE if p.get("bias") is None else y_BTE + p["bias"]


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
