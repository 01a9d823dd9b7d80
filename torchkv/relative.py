"""The relative bias: an addend of the scores from how far a key stands from its query.

Letters: B rows, T queries, S keys, N query heads, C buckets.
Source: Raffel et al. 2020, section 2.1; a distance d past half the buckets falls into bucket
exact + wider * log(d / exact) / log(far / exact), rounded down.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.relative import Relative
from torchkv.caches import Bias


def relative_bias(table_CN: Float[Array, "C N"], *, relative: Relative, causal: bool) -> Bias:
    """Return the function that gives each head's addend from the positions of query and key.

    Args:
        table_CN: One number a bucket and head.
        relative: How distances fall into buckets.
        causal: Whether later keys are never seen, so that no bucket is theirs.

    Cost: one lookup of N numbers a pair of query and key, whatever the number of buckets.
    """
    bucket_O = torch.from_numpy(buckets_of(relative, causal=causal)).to(table_CN.device)
    by_offset_ON, far = F.embedding(bucket_O, table_CN), relative.max_distance

    def bias(query_BT: Int[Array, "B T"], key_BS: Int[Array, "B S"]) -> Float[Array, "B N T S"]:
        offset_BTS = (key_BS.unsqueeze(1) - query_BT.unsqueeze(2)).clamp(-far, far) + far
        return F.embedding(offset_BTS, by_offset_ON).permute(0, 3, 1, 2)

    return bias


def buckets_of(relative: Relative, *, causal: bool) -> np.ndarray:
    """Return the bucket, int32, of each offset of a key from its query: -far to far."""
    far = relative.max_distance
    offset_O = np.arange(-far, far + 1)
    if causal:
        return _bucket(np.maximum(-offset_O, 0), relative.buckets, far)
    half = relative.buckets // 2
    return _bucket(np.abs(offset_O), half, far) + np.int32(half) * (offset_O > 0)


def _bucket(distance_O: np.ndarray, buckets: int, far: int) -> np.ndarray:
    exact = buckets // 2
    steps_O = np.log2(np.maximum(distance_O, exact) / exact) / math.log2(far / exact)
    # Lifted by less than any two distances differ: an edge that is a whole number stays on its
    # side of the logarithm's rounding.
    wide_O = exact + np.floor((buckets - exact) * steps_O + 1e-9)
    bucket_O = np.where(distance_O < exact, distance_O, np.minimum(wide_O, buckets - 1))
    return bucket_O.astype(np.int32)
