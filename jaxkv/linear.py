"""The two parts that every sub-layer is made of: a norm and a product with a matrix.

Letters: B rows, T new tokens, D width, E outputs.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkv import ops
from jaxkv.spec import config as spec

Params = Mapping[str, Any]


def norm(p: Params, x_BTD: Float[Array, "*B D"], norm: spec.Norm) -> Float[Array, "*B D"]:
    """Return the last axis normed as the config says."""
    if norm.kind == "layer":
        return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)
    return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps, plus_one=norm.plus_one)


def linear(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times the matrix, plus the bias if there is one."""
    y_BTE = jnp.einsum("BTD,DE->BTE", x_BTD, p["weight"])
    return y_BTE if p.get("bias") is None else y_BTE + p["bias"]
