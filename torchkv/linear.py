"""The two parts that every sub-layer is made of: a norm and a product with a matrix.

Letters: B rows, T new tokens, X rows and tokens in one axis, D width, E outputs, P parts of them.
"""

import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor as Array

from jaxkv.spec import config as spec
from torchkv import ops

Params = Mapping[str, Any]

# Of products that read the matrix and do little else: the most rows, the bytes from which on it
# pays, and into how many parts the matrix is cut for one row.
_FEW, _LEAST_BYTES, _PARTS = 16, 1 << 20, 8


def _is_amd() -> bool:
    """Return whether the processor is AMD's, where PyTorch's products of few rows are slow."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "AuthenticAMD" in platform.processor()


_ON_AMD = _is_amd()


def norm(p: Params, x_BTD: Float[Array, "*B D"], norm: spec.Norm) -> Float[Array, "*B D"]:
    """Return the last axis normed as the config says."""
    if norm.kind == "layer":
        return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)
    return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps, plus_one=norm.plus_one)


def linear(p: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
    """Return x times the matrix, plus the bias if there is one."""
    weight_ED, bias_E = p["weight"], p.get("bias")
    if not _is_read_alone(x_BTD, weight_ED):
        return F.linear(x_BTD, weight_ED, bias_E)
    y_BTE = _multiply(x_BTD.flatten(0, 1), weight_ED).view(*x_BTD.shape[:-1], -1)
    return y_BTE if bias_E is None else y_BTE + bias_E


def _is_read_alone(x_BTD: Array, weight_ED: Array) -> bool:
    """Return whether these are few rows on a CPU of AMD, times a matrix that takes time to read."""
    return (
        _ON_AMD
        and weight_ED.nbytes >= _LEAST_BYTES
        and 0 < x_BTD.shape[0] * x_BTD.shape[1] <= _FEW
        and weight_ED.dtype in (torch.float32, torch.float64)
        and weight_ED.is_cpu
        and weight_ED.is_contiguous()
    )


def _multiply(x_XD: Array, weight_ED: Array) -> Array:
    # There `F.linear` gives one row to one thread, 16 GB/s where two read 30, and is slower yet
    # with two to eight rows; on an Intel it is the faster one up to four: docs/performance.md.
    if len(x_XD) > 1:
        return (weight_ED @ x_XD.T).T.contiguous()
    outputs, width = weight_ED.shape
    parts = math.gcd(outputs, _PARTS)
    each_PDE = weight_ED.view(parts, outputs // parts, width).mT
    return torch.bmm(x_XD.expand(parts, 1, width), each_PDE).view(1, outputs)
