"""The relative bias: an addend of the scores from how far a key stands from its query.

Letters: B rows, T queries, S keys, N query heads, C buckets.
Source: Raffel et al. 2020, section 2.1; a distance d past half the buckets falls into bucket
exact + wider * log(d / exact) / log(far / exact), rounded down.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkv.caches import Bias
from jaxkv.spec.relative import Relative


def relative_bias(table_CN: Float[Array, "C N"], *, relative: Relative, causal: bool) -> Bias:
    """Return the function that gives each head's addend from the positions of query and key.

    Args:
        table_CN: One number a bucket and head.
        relative: How distances fall into buckets; static.
        causal: Whether later keys are never seen, so that no bucket is theirs; static.

    Cost: one lookup of N numbers a pair of query and key, whatever the number of buckets.
    """
    far = relative.max_distance
    by_offset_ON = table_CN[jnp.asarray(buckets_of(relative, causal=causal))]

    def bias(query_BT: Int[Array, "B T"], key_BS: Int[Array, "B S"]) -> Float[Array, "B N T S"]:
        offset_BTS = jnp.clip(key_BS[:, None, :] - query_BT[:, :, None], -far, far)
        return jnp.moveaxis(by_offset_ON[offset_BTS + far], 3, 1)

    return bias


def buckets_of(relative: Relative, *, causal: bool) -> np.ndarray:
    """Return the bucket, int32, of each offset of a key from its query: -far to far."""
    far, half = relative.max_distance, relative.buckets // 2
    if causal:
        earlier = [_bucket(distance, relative.buckets, far) for distance in range(far + 1)]
        return np.array([*earlier[::-1], *[0] * far], np.int32)
    either = [_bucket(distance, half, far) for distance in range(far + 1)]
    return np.array([*either[::-1], *[half + bucket for bucket in either[1:]]], np.int32)


def _bucket(distance: int, buckets: int, far: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    wider = buckets - exact
    # distance >= exact * (far / exact)^(k / wider), in whole numbers: a rounded logarithm could
    # put a distance that is exactly an edge on its wrong side.
    edges = (distance**wider * exact**k >= far**k * exact**wider for k in range(1, wider))
    return exact + sum(edges)
